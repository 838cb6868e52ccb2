"""What a customer may want: one request of a task, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentgym.envs.domains.task import GoldAction

Consent = Sequence[Sequence[str]]
"""Groups of texts; a proposal is agreed to if it holds one text of every group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing that a customer wants, what they know of it, and when they say yes.

    Exactly one of three ends it well: a change that the customer agreed to (``proposal``), a refusal that is right
    (``denial`` without a ``proposal``), or being told something (``answers``). A transfer ends the conversation.
    """

    kind: str
    wish: str
    """What the customer says first."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the customer answers when asked, by what is asked for."""
    consents: Sequence[Consent] = ()
    """The proposals that the customer agrees to."""
    ids: Sequence[str] = ()
    """The ids of orders and payment methods that may come up in a proposal; others make the customer say no."""
    answers: Sequence[str] = ()
    """What the customer wants to be told."""
    after_denial: str = ""
    """What the customer says when refused for the first time, where they have a second wish."""
    takes_refusal: bool = False
    """The customer cannot know that a refusal is wrong, and takes it."""
    denial: str = ""
    """The gold policy's words, where the first wish must be refused."""
    proposal: str = ""
    """The gold policy's words before the change."""
    actions: Sequence[GoldAction] = ()
    """The gold calls, those that look things up first."""
    is_transfer: bool = False

    def as_data(self) -> dict[str, Any]:
        """The request as a task's ``script`` holds it."""
        return asdict(self)


def request_of_data(data: Mapping[str, Any]) -> Request:
    """The request that :meth:`Request.as_data` gave, also after a detour through JSON."""
    actions = tuple(GoldAction(one["name"], one["arguments"]) for one in data["actions"])
    return Request(**{**data, "actions": actions})
