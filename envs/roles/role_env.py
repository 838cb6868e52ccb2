"""A role's part in a team's turn: an episode of one turn, whose action the caller carries out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentgym.call_syntax import format_call, parse_calls
from agentgym.env.env import Env
from agentgym.env.tool_env import ToolEnv
from agentgym.tool import tool
from agentgym.types import Message, Task, ToolCall, ToolSpec


class RoleEnv(Env):
    """Shows an order and stores the reply in ``action``.

    Args:
        order: text that the role reads.
        offered: the tools it may call.
        gold: returns the action of a gold policy.

    Example:
        >>> env = RoleEnv("Add 2 and 3.", [], lambda: Message("assistant", "5"))
        >>> observation, info = env.reset(seed=0)
        >>> env.step(env.oracle())[2], env.action.text
        (True, '5')
    """

    max_turns = 1

    def __init__(self, order: str, offered: Sequence[ToolSpec], gold: Callable[[], Message]) -> None:
        self._order, self._offered, self._gold = order, tuple(offered), gold
        self.action = Message("assistant", "")
        super().__init__()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools that may be called."""
        return tuple(spec.name for spec in self._offered)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._offered

    def start(self, task: Task) -> str:
        return self._order

    def respond(self, action: Message) -> str:
        self.action = action
        self.finish()
        return "Done."

    def parse_action(self, text: str) -> Message:
        return Message("assistant", text, parse_calls(text, self.tools))

    def oracle(self) -> Message:
        return self._gold()


class VerifierEnv(ToolEnv):
    """Asks whether the known facts suffice; without a call of ``verdict`` they do not.

    Args:
        order: text that the verifier reads.
        gold: returns the verdict of a gold policy.

    Example:
        >>> env = VerifierEnv("2 + 3 is 5. Is this enough?", lambda: True)
        >>> observation, info = env.reset(seed=0)
        >>> env.step(env.oracle())[2], env.is_enough
        (True, True)
    """

    max_turns = 1

    def __init__(self, order: str, gold: Callable[[], bool]) -> None:
        self._order, self._gold = order, gold
        self.is_enough = False
        super().__init__()

    def start(self, task: Task) -> str:
        return self._order

    @tool
    def verdict(self, is_enough: bool) -> str:
        """Say whether what is known is enough to answer.

        Args:
            is_enough: True if it is, False if the work has to go on.
        """
        self.is_enough = is_enough
        self.finish()
        return "Done."

    def oracle(self) -> Message:
        call = ToolCall("verdict", {"is_enough": self._gold()}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))
