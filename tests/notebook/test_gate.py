"""Comm messages while a cell runs, in real kernels; the test acts as the front end."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from agentnb.notebook.comm_gate import CommGate, Mechanism, comm_gate
from agentnb.notebook.environment import KernelEnvironment, in_kernel
from tests.kernels import REPOSITORY
from tests.notebook.live_kernel import LiveKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import asyncio, threading, time
from concurrent.futures import Future
import comm
from agentnb.notebook.environment import KernelEnvironment
from agentnb.notebook.comm_gate import comm_gate

environment = KernelEnvironment()
future, order = Future(), []
button, other = comm.create_comm(target_name="button"), comm.create_comm(target_name="other")

def clicked(message):
    order.append("click")
    print("clicked")
    button.send({"answer": message["content"]["data"]})
    future.set_result(message["content"]["data"])

button.on_msg(clicked)
other.on_msg(lambda message: order.append("other"))
comm_gate().register(button.comm_id)
print(button.comm_id, other.comm_id)
"""
WAYS_TO_WAIT = {"blocks": "environment.wait(future)", "awaits": "await environment.wait_async(future)"}


class Cells:
    """A kernel with a button, and the cells that wait for it."""

    def __init__(self, kernel: LiveKernel) -> None:
        self.kernel = kernel
        self.button, self.other = kernel.run(SETUP).split()

    def start(self, code: str) -> str:
        """Start a cell and give its id once its code is running; of a cell that awaits, once it does."""
        says_so = "asyncio.get_running_loop().call_soon(print, 'started')" if "await " in code else "print('started')"
        cell = self.kernel.send(f"{says_so}\n{code}")
        self.kernel.until_printed(cell, "started")
        return cell

    def click(self, data: object = "approved") -> str:
        return self.kernel.comm(self.button, data)


@pytest.fixture
def cells(kernel: LiveKernel) -> Iterator[Cells]:
    cells = Cells(kernel)
    yield cells
    click = cells.click()  # after a failed test, a cell may still wait
    kernel.until(lambda: kernel.is_idle(click))


@pytest.fixture(params=list(WAYS_TO_WAIT))
def waiting(request: pytest.FixtureRequest) -> str:
    return WAYS_TO_WAIT[request.param]


def test_a_click_is_handled_while_a_cell_waits(cells: Cells, waiting: str) -> None:
    cell = cells.start(f"{waiting}\nprint(future.result())")
    cells.click("approved")
    assert cells.kernel.reply(cell)["status"] == "ok"
    cells.kernel.until_printed(cell, "approved")


def test_a_text_sent_in_one_message_arrives_whole(cells: Cells, waiting: str) -> None:
    text = "größer als \N{CLAPPING HANDS SIGN}\n" * 5000
    cell = cells.start(f"{waiting}\nprint(len(future.result()['text']), future.result()['text'][-5:])")
    cells.click({"text": text})
    assert cells.kernel.reply(cell)["status"] == "ok"
    cells.kernel.until_printed(cell, f"{len(text)} {text[-5:]}")


def test_other_requests_keep_their_order(cells: Cells, waiting: str) -> None:
    first = cells.start(f"{waiting}\norder.append('first cell')")
    second = cells.kernel.send("order.append('second cell')")
    third = cells.kernel.send("order.append('third cell')")
    cells.click()
    for cell in (first, second, third):
        assert cells.kernel.reply(cell)["status"] == "ok"
    assert cells.kernel.run("print(order)").strip() == "['click', 'first cell', 'second cell', 'third cell']"


def test_messages_of_other_comms_do_not_overtake_a_blocked_cell(cells: Cells) -> None:
    first = cells.start("environment.wait(future)\norder.append('first cell')")
    cells.kernel.comm(cells.other, "not ours")
    second = cells.kernel.send("order.append('second cell')")
    cells.click()
    for cell in (first, second):
        assert cells.kernel.reply(cell)["status"] == "ok"
    assert cells.kernel.run("print(order)").strip() == "['click', 'first cell', 'other', 'second cell']"


@pytest.mark.alone
def test_stop_ends_the_wait_immediately_and_the_kernel_continues(cells: Cells, waiting: str) -> None:
    cell = cells.start(waiting)
    stopped = time.monotonic()
    cells.kernel.manager.interrupt_kernel()
    reply = cells.kernel.reply(cell)
    assert time.monotonic() - stopped < 1
    assert reply["ename"] == ("CancelledError" if "await" in waiting else "KeyboardInterrupt")
    assert cells.kernel.run("print(future.cancelled(), future.done())").strip() == "False False"
    again = cells.start(waiting)
    cells.click()
    assert cells.kernel.reply(again)["status"] == "ok"


def test_busy_and_idle_are_published_for_the_click_while_the_cell_waits(cells: Cells, waiting: str) -> None:
    cell = cells.start(f"button.on_msg(lambda message: order.append('click'))\n{waiting}")
    click = cells.click()
    cells.kernel.until(lambda: cells.kernel.is_idle(click))
    assert [status["execution_state"] for status in cells.kernel.of(click, "status")] == ["busy", "idle"]
    assert not cells.kernel.is_idle(cell)
    cells.kernel.manager.interrupt_kernel()
    assert cells.kernel.reply(cell)["status"] == "error"


def test_a_handler_answers_the_click_and_its_output_is_in_a_cell(cells: Cells, waiting: str) -> None:
    cell = cells.start(waiting)
    click = cells.click("approved")
    assert cells.kernel.reply(cell)["status"] == "ok"
    cells.kernel.until(lambda: bool(cells.kernel.of(click, "comm_msg")))
    assert cells.kernel.of(click, "comm_msg")[0]["data"] == {"answer": "approved"}
    cells.kernel.run("")
    streams = [message for message in cells.kernel.published if message["content"].get("text") == "clicked\n"]
    assert all(message["parent_header"]["msg_type"] == "execute_request" for message in streams)
    assert streams


def test_the_output_of_a_cell_stays_with_the_cell_after_a_click(cells: Cells, waiting: str) -> None:
    cell = cells.start(f"{waiting}\nprint('after the click')")
    cells.click()
    cells.kernel.reply(cell)
    cells.kernel.until_printed(cell, "after the click")


def test_no_cell_hook_runs_during_a_cell(cells: Cells, waiting: str) -> None:
    cells.kernel.run("get_ipython().events.register('post_execute', hook := lambda: order.append('hook'))")
    cell = cells.start(f"{waiting}\nprint(order)")
    cells.click()
    cells.kernel.until_printed(cell, "['hook', 'click']")  # the hook after the registering cell
    cells.kernel.run("get_ipython().events.unregister('post_execute', hook)")


def test_a_failing_handler_does_not_end_the_wait_of_the_cell(cells: Cells, waiting: str) -> None:
    handler = "lambda message: clicked(message) if message['content']['data'] else 1 / 0"
    cell = cells.start(f"button.on_msg({handler})\n{waiting}")
    failing = cells.click(0)
    cells.kernel.until(lambda: cells.kernel.is_idle(failing))
    cells.click(1)
    assert cells.kernel.reply(cell)["status"] == "ok"


def test_waits_on_several_threads_share_the_gate(cells: Cells) -> None:
    cell = cells.start(
        """
threads = [threading.Thread(target=environment.wait, args=(future,)) for _ in range(3)]
for thread in threads: thread.start()
try:
    environment.wait(future, timeout=0.05)
except TimeoutError:
    print("the first wait is over")
environment.wait(future)
for thread in threads: thread.join(5)
print([thread.is_alive() for thread in threads])
"""
    )
    cells.kernel.until_printed(cell, "the first wait is over")
    cells.click()
    assert cells.kernel.reply(cell)["status"] == "ok"
    cells.kernel.until_printed(cell, "[False, False, False]")


def test_a_click_is_handled_between_cells(cells: Cells) -> None:
    click = cells.click()
    cells.kernel.until(lambda: cells.kernel.is_idle(click))
    assert cells.kernel.run("print(order)").strip() == "['click']"


def test_a_click_is_handled_while_a_cell_awaits_other_code(cells: Cells) -> None:
    cell = cells.start("while not order: await asyncio.sleep(0.01)\nprint(order)")
    cells.click()
    assert cells.kernel.reply(cell)["status"] == "ok"
    cells.kernel.until_printed(cell, "['click']")


def test_clicks_are_handled_in_a_blocking_cell_if_the_gate_has_a_thread(cells: Cells) -> None:
    cell = cells.start(
        "end = time.monotonic() + (60 if comm_gate().mechanism == 'thread' else 0.3)\n"
        "while not order and time.monotonic() < end: time.sleep(0.01)\n"
        "print(comm_gate().mechanism, order)"
    )
    cells.click()
    cells.kernel.until(lambda: "]" in cells.kernel.printed(cell))
    assert cells.kernel.printed(cell).split("\n")[-2] in ("thread ['click']", "main []")


def test_messages_of_an_unregistered_comm_wait_for_the_cell(cells: Cells) -> None:
    cells.kernel.run("comm_gate().unregister(button.comm_id)")
    cell = cells.start("time.sleep(0.3)\nprint(order)")
    click = cells.click()
    cells.kernel.until_printed(cell, "[]")
    cells.kernel.until(lambda: cells.kernel.is_idle(click))
    assert cells.kernel.run("print(order)").strip() == "['click']"


def test_the_callback_of_the_kernel_is_restored_when_no_comm_is_registered(kernel: LiveKernel) -> None:
    callback = "get_ipython().kernel.shell_stream._recv_callback"
    kernel.run("import comm, time; from agentnb.notebook.comm_gate import comm_gate, CommGate")
    kernel.run("gate = comm_gate(); [gate.unregister(known) for known in list(gate._registered)]; time.sleep(0.1)")
    without = kernel.run(f"print({callback})")
    kernel.run("gate.register('a'); gate.register('b'); time.sleep(0.1)")
    assert "CommGate" in kernel.run(f"print({callback})")
    kernel.run("gate.unregister('a'); gate.unregister('b'); gate.unregister('b'); time.sleep(0.1)")
    assert kernel.run(f"print({callback})") == without
    assert "CommGate" not in without


def test_a_real_kernel_has_the_gate(kernel: LiveKernel) -> None:
    kernel.run("from agentnb.notebook.environment import in_kernel; from agentnb.notebook.comm_gate import comm_gate")
    assert kernel.run("print(in_kernel())").strip() == "True"
    assert kernel.run("print(comm_gate().describe())").startswith("clicks are handled on ")


def test_a_reloaded_page_gets_the_widgets_while_a_cell_waits(cells: Cells, waiting: str) -> None:
    cells.kernel.run("import ipywidgets; shown = ipywidgets.IntSlider(41)")
    cell = cells.start(waiting)
    cells.kernel.open_comm("control", "jupyter.widget.control", metadata={"version": "1.0.0"})
    request = cells.kernel.comm("control", {"method": "request_states"})
    cells.kernel.until(lambda: bool(cells.kernel.of(request, "comm_msg")))
    states = cells.kernel.of(request, "comm_msg")[0]["data"]["states"].values()
    assert 41 in [state["state"].get("value") for state in states]
    assert not cells.kernel.is_idle(cell)
    cells.click()
    assert cells.kernel.reply(cell)["status"] == "ok"


@pytest.mark.kernel
def test_no_request_is_lost_in_ipykernel_7_0_to_7_3() -> None:
    """ipykernel 7.0 to 7.3: without the gate's look at the stream it was lost after 26 to 112 rounds."""
    with LiveKernel("strands", releases={"strands": "7.3.0"}) as kernel:
        kernel.run("import comm; from agentnb.notebook.comm_gate import comm_gate")
        kernel.run("button = comm.create_comm(target_name='button'); comm_gate().register(button.comm_id)")
        for _ in range(300):
            cell = kernel.send("print('printed')")
            kernel.until_printed(cell, "printed")  # its reply is being sent now, at the same time as the next request
            assert kernel.reply(kernel.send("pass"))["status"] == "ok"
            kernel.published.clear()


def test_a_kernel_without_the_attributes_falls_back_to_a_plain_wait() -> None:
    gate = CommGate(SimpleNamespace(shell_stream=None))
    assert gate.mechanism is Mechanism.NATIVE
    assert "differs from ipykernel" in gate.describe()
    gate.register("a")
    with pytest.raises(TimeoutError):
        gate.wait(Future(), timeout=0.01)


async def test_without_a_kernel_the_wait_is_a_plain_wait() -> None:
    environment = KernelEnvironment()
    future: Future[int] = Future()
    assert not in_kernel()
    assert comm_gate().mechanism is Mechanism.NATIVE
    with pytest.raises(TimeoutError):
        environment.wait(future, timeout=0.01)
    future.set_exception(ValueError("the outcome is the caller's business"))
    environment.wait(future)
    await environment.wait_async(future)


def test_importing_the_gate_loads_no_jupyter_package() -> None:
    program = "import sys, agentnb.notebook.comm_gate as g; g.comm_gate(); print({'IPython', 'zmq'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
