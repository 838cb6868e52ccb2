"""Spaces for messages, and reward sums."""

from agentgym import Message, Task, ToolEnv, tool
from agentgym.env.spaces import ActionSpace, MessageSpace
from agentgym.types import ToolCall


class Door(ToolEnv):
    def start(self, task: Task) -> str:
        return "A door."

    @tool
    def knock(self, times: int) -> str:
        """Knock."""
        return "knock " * times


def test_samples_are_members() -> None:
    env = Door()
    env.action_space.seed(0)
    env.observation_space.seed(0)
    actions = [env.action_space.sample() for _ in range(5)]
    assert all(action in env.action_space for action in actions)
    assert all(isinstance(action, Message) and isinstance(action.calls[0], ToolCall) for action in actions)
    assert env.observation_space.sample() in env.observation_space
    assert isinstance(ActionSpace(()).sample(), str)


def test_membership() -> None:
    assert "knock: 1" in ActionSpace(())
    assert Message("user", "x") not in ActionSpace(())
    assert (Message("user", "x"),) in MessageSpace()
    assert () in MessageSpace()
    assert "x" not in MessageSpace()
    assert ("x",) not in MessageSpace()


def test_the_same_seed_samples_the_same() -> None:
    one, other = Door().action_space, Door().action_space
    one.seed(3)
    other.seed(3)
    assert [one.sample() for _ in range(5)] == [other.sample() for _ in range(5)]


def test_equality_is_of_tools() -> None:
    assert MessageSpace() == MessageSpace()
    assert Door().action_space == Door().action_space
    assert Door().action_space != ActionSpace(())
    assert MessageSpace() != ActionSpace(())
