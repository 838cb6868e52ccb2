"""Users who talk with the agent: what a user is, and one who reads a scenario out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from agentgym.envs.domains.task import Scenario

STOP: Final = "###STOP###"
TRANSFER: Final = "###TRANSFER###"
OUT_OF_SCOPE: Final = "###OUT-OF-SCOPE###"
END_MARKS: Final = (STOP, TRANSFER, OUT_OF_SCOPE)
"""What tau2's users say to end a conversation: content, handed to a person, at a loss."""

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
    """Someone with a wish. A user holds no state of its own: what it is in, it gives and takes as a plain value."""

    is_blocking: bool
    """True if an answer takes long enough to need a thread in rollouts."""

    def begin(self) -> tuple[Any, str]:
        """The first state, and what the user says first."""

    def reply(self, state: Any, heard: str) -> tuple[Any, str]:
        """The next state and the answer to a message; the answer holds one of :data:`END_MARKS` if it is the last.

        Raises:
            EnvError: the user cannot answer, which is not the agent's doing.
        """

    def key(self, state: Any) -> Any:
        """Return what of a state bears on what comes, in values that :func:`~agentgym.canonical.canonical` takes."""


def spoken(text: str) -> str:
    """Return what of a sampled message is said aloud: all but the thinking.

    Example:
        >>> spoken("<think>Who is it?</think> Your name, please.")
        'Your name, please.'
    """
    return _THINKING.sub("", text).strip()


def is_end(text: str) -> bool:
    """True if a user's message is the last."""
    return any(mark in text for mark in END_MARKS)


def is_yes(text: str) -> bool:
    """True if a user's message agrees to what was proposed.

    Example:
        >>> is_yes("Yes, please. I do not need a receipt."), is_yes("I am not sure."), is_yes("Yes, but not the lamp.")
        (True, False, False)
    """
    said = text.lower().replace("\u2019", "'")
    if _BEGINS_WITH_YES.match(said):
        return not _BUT.search(said)
    return bool(_YES.search(said)) and not _NO.search(said)


def is_proposal(text: str) -> bool:
    """True if a message asks for a yes or no."""
    return bool(_QUESTION.search(text.lower()))


def asks_for_more(text: str) -> bool:
    """True if a message asks whether there is anything else, or says goodbye."""
    return bool(_ANYTHING_ELSE.search(text.lower()))


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress of reading a scenario out."""

    has_said_known: bool = False
    has_said_rest: bool = False


class ScenarioUser:
    """Reads a scenario out and says yes to everything: no benchmark, but a user who needs no model.

    First comes why the user calls, then, when asked, what is known, then the instructions as they stand. A question for
    a yes is answered by yes; one for anything else ends the conversation.

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
        return Reading(), self._scenario.reason_for_call

    def reply(self, state: Reading, heard: str) -> tuple[Reading, str]:
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
        return [state.has_said_known, state.has_said_rest]
