"""What a message of an agent asks for or says, by keywords."""

from __future__ import annotations

import re
from typing import Final

from agentgym.envs.domains.users import asks_for_more

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
"""What may be asked for."""
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
    """A message as it is compared: small letters, straight apostrophes, no commas.

    Example:
        >>> plain("I can\u2019t, sorry: $1,200")
        "i can't sorry: $1200"
    """
    return text.lower().replace("\u2019", "'").replace(",", "")


def asked_for(heard: str) -> tuple[str, ...]:
    """What a plain message asks for; sentences that ask for nothing, or for anything else, do not count.

    Example:
        >>> asked_for("could you tell me your email and the order number?")
        ('email', 'order')
    """
    questions = [one for one in _SENTENCE_END.split(heard) if _ASKS.search(one) and not asks_for_more(one)]
    return tuple(slot for slot, pattern in _PATTERNS.items() if any(map(pattern.search, questions)))


def refuses(heard: str) -> bool:
    """True if a plain message says that something is not possible."""
    return bool(_REFUSES.search(heard))


def is_about_to(heard: str) -> bool:
    """True if a plain message announces something that is not done yet.

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
    """True if a plain message names something: as words of their own, not as part of others.

    Example:
        >>> holds("the new size is xl", "L"), holds("the new size is l.", "L")
        (False, True)
    """
    return re.search(rf"(?<!\w){re.escape(plain(text))}(?!\w)", heard) is not None
