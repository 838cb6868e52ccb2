"""Users who talk with the agent: the protocol, and a user who reads a scenario out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from agentgym.envs.domains.task import Scenario

STOP: Final = "###STOP###"
TRANSFER: Final = "###TRANSFER###"
OUT_OF_SCOPE: Final = "###OUT-OF-SCOPE###"
END_MARKS: Final = (STOP, TRANSFER, OUT_OF_SCOPE)
"""Marks with which tau2's users end a conversation: satisfied, transferred to a person, or out of scope."""

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_YES_WORDS = r"(yes|yeah|yep|yup|sure|go ahead|please do|i confirm|confirmed|that is correct|that's correct)\b"
_BEGINS_WITH_YES = re.compile(rf"\W*{_YES_WORDS}")
_YES = re.compile(rf"\b{_YES_WORDS}")
_BUT = re.compile(r"\b(but|except|wait|instead|not yet)\b")
_NO = re.compile(r"\b(no|nope|not|don't|do not|wait|instead)\b")
_QUESTION = re.compile(
    r"yes\s*/\s*no|\b(confirm|proceed|go ahead|shall i|should i|would you like me to|do you want me to|say yes|"
    r"reply (with )?['\"]?yes|is (this|that|it) (correct|right|ok|okay|all right)|does (this|that) (sound|look))\b"
)
_ANYTHING_ELSE = re.compile(r"\b(anything|something) else\b|\bfurther (help|assistance|questions?)\b|\bgoodbye\b")


class User(Protocol):
    """A user with a request. It holds no state: methods take and return the state as a plain value."""

    is_blocking: bool
    """True if an answer takes long enough to need a thread in rollouts."""

    def begin(self) -> tuple[Any, str]:
        """Return the first state and the user's first message."""

    def reply(self, state: Any, heard: str) -> tuple[Any, str]:
        """Return the next state and the answer to a message. The last answer contains one of :data:`END_MARKS`.

        Raises:
            EnvError: the user cannot answer, which is not the agent's fault.
        """

    def key(self, state: Any) -> Any:
        """Return the part of a state that affects later answers, for :func:`~agentgym.canonical.canonical`."""


def spoken(text: str) -> str:
    """Return a sampled message without its thinking.

    Example:
        >>> spoken("<think>Who is it?</think> Your name, please.")
        'Your name, please.'
    """
    return _THINKING.sub("", text).strip()


def is_end(text: str) -> bool:
    """Return True if a user's message is the last one."""
    return any(mark in text for mark in END_MARKS)


def is_yes(text: str) -> bool:
    """Return True if a user's message agrees to a proposal.

    Example:
        >>> is_yes("Yes, please. I do not need a receipt."), is_yes("I am not sure."), is_yes("Yes, but not the lamp.")
        (True, False, False)
    """
    said = text.lower().replace("\u2019", "'")
    if _BEGINS_WITH_YES.match(said):
        return not _BUT.search(said)
    return bool(_YES.search(said)) and not _NO.search(said)


def is_proposal(text: str) -> bool:
    """Return True if a message asks for a yes or no."""
    return bool(_QUESTION.search(text.lower()))


def asks_for_more(text: str) -> bool:
    """Return True if a message asks for further requests or says goodbye."""
    return bool(_ANYTHING_ELSE.search(text.lower()))


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress of reading a scenario out."""

    has_said_known: bool = False
    has_said_rest: bool = False


class ScenarioUser:
    """A user who reads a scenario out and agrees to everything. It needs no model, and is not part of a benchmark.

    The user first states the reason for the call, then, when asked, the known facts, then the instructions. It answers
    a request for confirmation with yes. A question about further requests ends the conversation.

    Example:
        >>> user = ScenarioUser(Scenario(reason_for_call="You want to cancel #W1.", known_info="You are Mia Li."))
        >>> state, said = user.begin()
        >>> state, said = user.reply(state, "Who are you?")
        >>> said, user.reply(state, "I will cancel #W1. Do you confirm (yes/no)?")[1]
        ('You are Mia Li.', 'Yes.')
    """

    is_blocking = False

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def begin(self) -> tuple[Reading, str]:
        """Return the first state and the reason for the call."""
        return Reading(), self._scenario.reason_for_call

    def reply(self, state: Reading, heard: str) -> tuple[Reading, str]:
        """Return the next state and the next part of the scenario, or a yes."""
        if asks_for_more(heard):
            return state, f"No, that is all. {STOP}"
        if is_proposal(heard):
            return state, "Yes."
        known = " ".join(filter(None, (self._scenario.known_info, self._scenario.unknown_info)))
        if known and not state.has_said_known:
            return replace(state, has_said_known=True), known
        if self._scenario.task_instructions and not state.has_said_rest:
            return replace(state, has_said_rest=True), self._scenario.task_instructions
        return state, " ".join(filter(None, (self._scenario.reason_for_call, known)))

    def key(self, state: Reading) -> list[bool]:
        """Return the parts of the scenario that have been read out."""
        return [state.has_said_known, state.has_said_rest]
