"""The channel between a study and its workers: whoever is in between can end the connection, and change nothing."""

import asyncio
import struct

import pytest

from agentnb.studies.channel import LOST, Connection, Listener, Ticket, connect

PROOF_OF_WORKER = 64
"""The bytes of the proof of a worker."""
CODES = 64
"""The bytes of the codes of a message; its length has four more."""


def frames(data):
    """Return the messages in what the study has sent after the handshake, each with its length and its codes."""
    found = []
    while data:
        end = 4 + CODES + struct.unpack_from("!I", data)[0]
        found.append(data[:end])
        data = data[end:]
    return found


def flipped(frame, at):
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


CHANGES = {
    "a changed body": lambda one, two: [flipped(one, 4 + 32 + 3), two],
    "a changed length": lambda one, two: [flipped(one, 3), two],
    "a huge length": lambda one, two: [b"\xff\xff\xff\xff" + one[4:], two],
    "a changed code": lambda one, two: [flipped(one, len(one) - 1), two],
    "a left-out message": lambda one, two: [two],
    "messages in another order": lambda one, two: [two, one],
    "a truncated message": lambda one, two: [one[:-40], two],
}


async def received_through(change):
    """Return the two messages of a study as a worker receives them through a relay that changes them."""
    both = asyncio.Event()

    async def serve(connection: Connection) -> None:
        connection.send({"n": 1})
        connection.send({"n": 2})
        await both.wait()

    listener = Listener(serve)
    await listener.open(["127.0.0.1"])

    async def between(reader, writer):
        study_reads, study = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(await study_reads.readexactly(32))
        study.write(await reader.readexactly(PROOF_OF_WORKER))
        writer.write(await study_reads.readexactly(32))
        sent = await study_reads.readexactly(2 * (4 + CODES + len(b'{"n": 1}')))
        writer.write(b"".join(change(*frames(sent))))
        writer.close()
        study.close()

    relay = await asyncio.start_server(between, "127.0.0.1", 0)
    port = relay.sockets[0].getsockname()[1]
    worker = await connect(Ticket(("127.0.0.1",), port, listener.key, "w", ("h", 1)))
    received = []
    try:
        while True:
            received.append(await worker.receive())
    except LOST:
        pass
    finally:
        both.set()
        worker.close()
        relay.close()
        await listener.close()
    return received


def test_messages_that_nobody_changes_arrive_in_order():
    assert asyncio.run(received_through(lambda one, two: [one, two])) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_connection_ends_before_a_message_that_is_not_the_next_one(change):
    assert asyncio.run(received_through(change)) == []


def test_a_message_that_is_repeated_arrives_once():
    assert asyncio.run(received_through(lambda one, two: [one, one, two])) == [{"n": 1}]


def test_a_message_that_is_sent_back_to_its_sender_ends_the_connection():
    async def reflected():
        ended = asyncio.get_running_loop().create_future()

        async def serve(connection: Connection) -> None:
            connection.send({"n": 1})
            try:
                ended.set_result(await connection.receive())
            except LOST as error:
                ended.set_result(error)

        listener = Listener(serve)
        await listener.open(["127.0.0.1"])

        async def between(reader, writer):
            study_reads, study = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(await study_reads.readexactly(32))
            study.write(await reader.readexactly(PROOF_OF_WORKER))
            writer.write(await study_reads.readexactly(32))
            study.write(await study_reads.readexactly(4 + CODES + len(b'{"n": 1}')))
            await study_reads.read()
            writer.close()
            study.close()

        relay = await asyncio.start_server(between, "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        worker = await connect(Ticket(("127.0.0.1",), port, listener.key, "w", ("h", 1)))
        try:
            return await asyncio.wait_for(ended, 10)
        finally:
            worker.close()
            relay.close()
            await listener.close()

    assert isinstance(asyncio.run(reflected()), LOST)
