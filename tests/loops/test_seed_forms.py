"""Forms of the published designs that people write as they are documented."""

from agentnb import Agent, SessionLoop
from agentnb.loops.session_loop import MessageQueue
from agentnb.testing import ScriptedLLM


async def test_the_executor_of_an_agent_has_the_older_execute() -> None:
    assert await Agent(llm=ScriptedLLM(["hello"]), tools=[]).executor.execute("Hi") == "hello"


def test_the_queue_of_a_session_may_be_given_by_its_place() -> None:
    queue = MessageQueue()
    assert SessionLoop(ScriptedLLM(["hello"]), [], queue).queue is queue
