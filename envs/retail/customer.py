"""The scripted customer: has requests, answers questions about them, and agrees only to what they want."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from agentgym.envs.domains.users import STOP, asks_for_more, is_proposal
from agentgym.envs.retail.request import Consent, Request, request_of_data

_IDENTITY: Final = ("identity", "email", "name", "zip")

_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "hello": ("Hi! {}", "Hello. {}", "Good morning. {}", "Hey there! {}", "{}"),
    "next": ("Thank you. There is something else. {}", "Thanks! One more thing. {}", "Great. I also have this. {}"),
    "yes": ("Yes, please go ahead.", "Yes.", "Yes, that is right.", "Yes, please do that."),
    "no": ("No. What I want is this: {}", "No, that is something else. {}", "No, please listen. {}"),
    "still": ("My request is still open. {}", "I am still waiting for this. {}", "Let me say it again. {}"),
    "wait": ("All right, I am waiting.", "Yes, I will wait.", "Yes, thank you."),
    "why": ("Why is that?", "What is the reason?", "Can you tell me why?"),
    "insist": ("Are you sure? Please look again. {}", "I think it should be possible. {}", "Please check again. {}"),
    "unknown": ("I am afraid I do not know that.", "Sorry, I have no idea.", "That I cannot tell you."),
    "no email": ("I do not remember the email.", "I no longer know which email I used."),
    "bye": (f"No, that is all. Thank you! {STOP}", f"That was all, thanks. {STOP}", f"Nothing else. Bye! {STOP}"),
}
"""Alternative wordings; the seed chooses among them."""


@dataclass(frozen=True, slots=True)
class Mind:
    """A customer's memory of the conversation."""

    request: int = 0
    """Index of the current request."""
    revealed: frozenset[str] = frozenset()
    """Facts of the current request that the customer has told."""
    has_told_who: bool = False
    has_agreed: bool = False
    """True if the customer agreed to a proposal for the current request."""
    is_refused: bool = False
    """True if the agent has refused the current request once."""


class Customer:
    """A customer who writes one request after the other.

    They answer questions. They agree to a proposal that contains all they care about and names no other order or
    payment method, and decline any other. They accept a refusal that the policy demands, after asking why if no reason
    was given. They insist once on what the policy allows, and then give up. When every request is settled they say
    :data:`STOP`. The agent's messages settle a request. The customer does not see whether an agreed change was
    made; the grade checks that.

    Args:
        script: ``persona``, ``tells_all`` and ``requests`` of a generated task.
        seed: chooses the wordings.
    """

    is_blocking = False

    def __init__(self, script: Mapping[str, Any], seed: int) -> None:
        self.requests: tuple[Request, ...] = tuple(map(request_of_data, script["requests"]))
        self.persona: Mapping[str, str] = script["persona"]
        self._tells_all, self._seed = bool(script["tells_all"]), seed

    def begin(self) -> tuple[Mind, str]:
        """Return the initial memory and the first message."""
        return self._open(Mind(), "hello")

    def reply(self, state: Mind, heard: str) -> tuple[Mind, str]:
        """Return the new memory and the answer to a message of the agent."""
        request, text = self.requests[state.request], plain(heard)
        if _asks_yes(text, request):
            return self._judge(state, request, text)
        if state.has_agreed and asks_for_more(text) and not refuses(text):
            return self._go_on(state)
        asked = asked_for(text)
        is_who = any(slot in _IDENTITY for slot in asked)
        if refuses(text) and not state.has_agreed and not is_who and (request.denial or not asked):
            return self._take_refusal(state, request, text)
        if (is_who or any(slot in request.facts for slot in asked)) and not self._is_answered(request, text):
            return self._tell(state, request, asked)
        if state.has_agreed and is_about_to(text):
            return state, self._say("wait")
        if state.has_agreed or self._is_answered(request, text):
            return self._go_on(state)
        if asked and not asks_for_more(text):
            return state, self._say("unknown")
        return state, self._say("still", request.wish)

    def key(self, state: Mind) -> Any:
        """Return the part of the memory that belongs to the state key."""
        told = sorted(state.revealed)
        return [state.request, told, state.has_told_who, state.has_agreed, state.is_refused]

    # --------------------------------------------------------------------------------------------------- private

    def _judge(self, mind: Mind, request: Request, text: str) -> tuple[Mind, str]:
        """Answer a proposal with yes or no."""
        if any(_agrees(consent, text) for consent in request.consents) and not _strays(request, text):
            return replace(mind, has_agreed=True), self._say("yes")
        if refuses(text):
            return self._take_refusal(mind, request, text)
        if mind.is_refused and request.after_denial:
            return mind, self._say("no", request.after_denial)
        told = " ".join(
            dict.fromkeys([request.wish, *(one for one in request.facts.values() if one not in request.wish)])
        )
        return replace(mind, revealed=frozenset(request.facts)), self._say("no", told)

    def _tell(self, mind: Mind, request: Request, asked: Sequence[str]) -> tuple[Mind, str]:
        """Answer the questions of a message."""
        known = [slot for slot in asked if slot in request.facts]
        facts = [self._fact(mind, request, slot) for slot in known]
        is_who = any(slot in _IDENTITY for slot in asked)
        said = [self._who(asked)] if is_who else []
        told = replace(mind, revealed=mind.revealed | frozenset(known), has_told_who=mind.has_told_who or is_who)
        return told, " ".join([*said, *dict.fromkeys(facts)])

    def _fact(self, mind: Mind, request: Request, slot: str) -> str:
        if mind.is_refused and request.after_denial and slot == "payment":
            return request.after_denial
        return request.facts[slot]

    def _who(self, asked: Sequence[str]) -> str:
        """Return the customer's email if they know it; name and zip code if asked for those or without an email."""
        name = f"I am {self.persona['first_name']} {self.persona['last_name']}, zip code {self.persona['zip']}."
        email = self.persona.get("email")
        if email is None:
            return f"{self._say('no email')} {name}" if "email" in asked else name
        return f"My email is {email}." + (f" {name}" if "name" in asked or "zip" in asked else "")

    def _take_refusal(self, mind: Mind, request: Request, text: str) -> tuple[Mind, str]:
        if mind.is_refused:
            is_open = request.after_denial and request.proposal and not asks_for_more(text)
            return (mind, self._say("still", request.after_denial)) if is_open else self._go_on(mind)
        refused = replace(mind, is_refused=True)
        if request.after_denial:
            return refused, request.after_denial
        if not (request.denial or request.takes_refusal):
            return refused, self._say("insist", request.wish)
        if self._is_answered(request, text) or not request.answers:
            return self._go_on(mind)
        return refused, self._say("why")

    def _is_answered(self, request: Request, text: str) -> bool:
        return bool(request.answers) and all(plain(answer) in text for answer in request.answers)

    def _go_on(self, mind: Mind) -> tuple[Mind, str]:
        """Start the next request, or end the conversation."""
        if mind.request + 1 == len(self.requests):
            return mind, self._say("bye")
        return self._open(Mind(request=mind.request + 1, has_told_who=mind.has_told_who), "next")

    def _open(self, mind: Mind, words: str) -> tuple[Mind, str]:
        request = self.requests[mind.request]
        told = {slot: fact for slot, fact in request.facts.items() if self._tells_all or fact in request.wish}
        said = [request.wish, *(fact for fact in told.values() if fact not in request.wish)]
        opened = replace(mind, revealed=frozenset(told))
        return opened, self._say(words, " ".join(dict.fromkeys(said)), mind.request)

    def _say(self, words: str, told: str = "", number: int = 0) -> str:
        chosen = random.Random(f"{self._seed} {words} {number}").choice(_WORDS[words])
        return chosen.format(told)


def _asks_yes(text: str, request: Request) -> bool:
    """Return True if a plain message proposes something: it asks for a yes to an order or a change, not to a name."""
    if not is_proposal(text):
        return False
    is_about = any(_agrees(consent, text) for consent in request.consents) or bool(ids_in(text))
    return is_about or not asked_for(text)


def _agrees(consent: Consent, text: str) -> bool:
    return all(any(holds(text, one) for one in group) for group in consent)


def _strays(request: Request, text: str) -> bool:
    """Return True if a plain message names an order or payment method that the request is not about."""
    return bool(ids_in(text) - {plain(one).removeprefix("#") for one in request.ids})


# ----------------------------------------------------------------------- the meaning of an agent's message, by keywords

_SLOTS: Final = {
    "email": r"\be-?mails?\b",
    "name": r"\bnames?\b",
    "zip": r"\b(zip|postal|post)\b",
    "identity": r"\b(identity|identify|authenticate|verify|who you are|who are you|whom am i|who am i)\b",
    "order": r"\border (id|number|no)\b|\b(which|what) (orders?|one)\b|\bnumber of (the|your) order\b",
    "reason": r"\breasons?\b|\bwhy\b",
    "item": r"\b(which|what) (items?|products?|articles?)\b|\ball (the )?items\b",
    "options": r"\b(options?|variants?|colou?rs?|sizes?|prefer|replacement|new items?|would you like (instead|it))\b",
    "payment": r"\b(payment|refund(ed)? (to|go)|(receive|like) the refund|pay (with|by|from)|method|difference)\b",
    "address": r"\b(new|full|correct|which|what) address\b|\baddress (would|should|do|is)\b",
}
"""Patterns of what an agent may ask for, by its name."""
_PATTERNS: Final = {slot: re.compile(pattern) for slot, pattern in _SLOTS.items()}
_ASKS: Final = re.compile(r"\?|\b(please|provide|tell me|let me know|give me|could you|may i|i need|share)\b")
_SENTENCE_END: Final = re.compile(r"(?<=[.?!])\s+|\n")
_REFUSES: Final = re.compile(
    r"\b(cannot|can't|can not|unable|not able|not possible|impossible|not allowed|not permitted|won't be able|refuse|"
    r"declin\w+|not a reason|no valid reason|against (our|the) policy|not eligible|unfortunately|not available|"
    r"unavailable)\b"
)
_BEGINS: Final = re.compile(
    r"\b(i will|i'll|let me|one moment|a moment|please (hold|wait)|i am going to|i'm going to|now)\b"
)
_IS_DONE: Final = re.compile(r"\b(has been|have been|is done|done|was|were|i have|i've|completed?|successful(ly)?)\b")
_IDS: Final = re.compile(r"#?\bw\d{7}\b|\b(?:gift_card|credit_card|paypal)_\d+\b")


def plain(text: str) -> str:
    """Normalise a message for comparison: lower case, straight apostrophes, no commas.

    Example:
        >>> plain("I can\u2019t, sorry: $1,200")
        "i can't sorry: $1200"
    """
    return text.lower().replace("\u2019", "'").replace(",", "")


def asked_for(heard: str) -> tuple[str, ...]:
    """Return the questions in a plain message; sentences that ask for nothing, or for anything else, do not count.

    Example:
        >>> asked_for("could you tell me your email and the order number?")
        ('email', 'order')
    """
    questions = [one for one in _SENTENCE_END.split(heard) if _ASKS.search(one) and not asks_for_more(one)]
    return tuple(slot for slot, pattern in _PATTERNS.items() if any(map(pattern.search, questions)))


def refuses(heard: str) -> bool:
    """Return True if a plain message says that something is not possible."""
    return bool(_REFUSES.search(heard))


def is_about_to(heard: str) -> bool:
    """Return True if a plain message announces something that is not done yet.

    Example:
        >>> is_about_to("thank you, i will cancel it now."), is_about_to("it has been cancelled now.")
        (True, False)
    """
    return bool(_BEGINS.search(heard)) and not _IS_DONE.search(heard) and not asks_for_more(heard)


def ids_in(heard: str) -> frozenset[str]:
    """Ids of orders and payment methods in a plain message, without the sign of orders.

    Example:
        >>> sorted(ids_in("order #w1234567 to paypal_77"))
        ['paypal_77', 'w1234567']
    """
    return frozenset(found.removeprefix("#") for found in _IDS.findall(heard))


def holds(heard: str, text: str) -> bool:
    """Return True if a plain message contains a text as whole words.

    Example:
        >>> holds("the new size is xl", "L"), holds("the new size is l.", "L")
        (False, True)
    """
    return re.search(rf"(?<!\w){re.escape(plain(text))}(?!\w)", heard) is not None
