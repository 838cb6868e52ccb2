"""A user played by a language model with its own tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from agentgym.canonical import read_json
from agentgym.envs.domains.model_user import GREETING, GUIDELINES, ModelUser, UserModel
from agentgym.envs.domains.task import Scenario
from agentgym.envs.domains.users import spoken
from agentgym.errors import EnvError
from agentgym.types import ToolSpec

if TYPE_CHECKING:
    import httpx

UserCalls = Callable[[str, Mapping[str, object]], str]
"""A function that runs a call of the user's tools and returns the result or the error as text."""

MAX_CALLS: Final = 30
"""Most calls that the model may make before it sends a message."""

Turns = tuple[str, ...]
"""All messages so far as JSON, from the model's point of view, including calls and results."""


class ModelUserWithTools(ModelUser):
    """A user played by a model that may call tools before it answers.

    Args:
        scenario, options, seed, http: as for :class:`~agentgym.envs.domains.model_user.ModelUser`.
        tools: tools of the user.
        run: runs a call.

    Raises:
        EnvError: raised by ``begin`` and ``reply`` if the server cannot be reached, rejects the request, returns no
            text, or the model makes more than :data:`MAX_CALLS` calls without a message.
        EnvTimeoutError: the server does not answer in time.
    """

    guidelines: ClassVar[str] = GUIDELINES["acts"]

    def __init__(
        self,
        scenario: Scenario,
        options: UserModel,
        seed: int,
        http: httpx.Client,
        *,
        tools: Sequence[ToolSpec],
        run: UserCalls,
    ) -> None:
        super().__init__(scenario, options, seed, http)
        self._run = run
        self._tools = [
            {
                "type": "function",
                "function": {"name": one.name, "description": one.description, "parameters": dict(one.parameters)},
            }
            for one in tools
        ]

    def begin(self) -> tuple[Turns, str]:  # type: ignore[override]  # a state of its own
        """Return the first state and the user's first message."""
        return self.reply((), GREETING)

    def reply(self, state: Turns, heard: str) -> tuple[Turns, str]:  # type: ignore[override]
        """Run the model's calls, then return the next state and the user's answer to a message."""
        turns = [json.loads(one) for one in state] + [{"role": "user", "content": heard}]
        for _ in range(MAX_CALLS + 1):
            asked = [{"role": "system", "content": self._system}, *turns]
            message = self._ask(asked, self._seed + len(turns), tools=self._tools)
            calls = message.get("tool_calls") or []
            if not calls:
                content = message.get("content")
                said = spoken(content) if isinstance(content, str) else ""
                if not said:
                    raise EnvError(f"the user's model {self._options.model} at {self._options.url} said nothing")
                turns.append({"role": "assistant", "content": said})
                return tuple(json.dumps(one) for one in turns), said
            turns += self._answered(calls)
        raise EnvError(f"the user's model {self._options.model} made {MAX_CALLS} calls without a word")

    def key(self, state: Turns) -> Any:  # type: ignore[override]
        """Return the conversation, which determines the user's next message."""
        return state

    def _answered(self, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the message with the calls and one message per result."""
        made: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": list(calls)}]
        for call in calls:
            try:
                name, text = str(call["function"]["name"]), call["function"].get("arguments") or "{}"
                given: Any = read_json(text) if isinstance(text, str) else text
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                said = f"Error: could not read the call ({type(error).__name__})"
            else:
                said = self._run(name, given) if isinstance(given, dict) else "Error: arguments are a JSON object"
            made.append({"role": "tool", "tool_call_id": str(call.get("id", "")), "content": said})
        return made
