"""A gold policy for the generated shop: asks who writes, asks what is open, proposes, waits for the yes, then acts."""

from __future__ import annotations

from typing import Final

from agentgym.envs.domains.env import DomainEnv
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.retail.customer import Customer, Mind
from agentgym.envs.retail.request import Request
from agentgym.types import Message

_ASKS: Final = {
    "order": "What is the order number?",
    "reason": "What is the reason?",
    "item": "Which items is it about?",
    "options": "Which options would you like?",
    "payment": "Which payment method should be used?",
    "address": "What is the new address?",
}


def next_message(env: DomainEnv, customer: Customer) -> Message:
    """The next action of the gold policy."""
    now = env.conversation
    mind: Mind = now.user
    if now.is_transferred:
        return _said("You are being transferred to a person. Please hold on.")
    if not now.who:
        if not mind.has_told_who:
            return _said("I am glad to help. Could you tell me your email, or your name and zip code?")
        return env.message_of(env.case.task.actions[0])
    return _for_request(env, customer.requests[mind.request], mind)


def _for_request(env: DomainEnv, request: Request, mind: Mind) -> Message:
    open_slots = [slot for slot in request.facts if slot not in mind.revealed]
    if open_slots:
        return _said(" ".join(_ASKS[slot] for slot in open_slots))
    left = [action for action in request.actions if not _is_made(env, action)]
    writes = [action for action in left if action.name in env.toolkit.writes]
    looking_up = [action for action in left if action not in writes]
    if looking_up:
        return env.message_of(looking_up[0])
    if mind.has_agreed:
        return env.message_of(writes[0]) if writes else _said("It is done. Is there anything else I can help with?")
    if request.denial and not mind.is_refused:
        return _said(request.denial)
    if request.consents and request.proposal:
        return _said(f"{request.proposal} Do you confirm (yes/no)?")
    return _said(request.proposal or request.denial)


def _is_made(env: DomainEnv, action: GoldAction) -> bool:
    """True if a gold call was made; requests that share a call look it up once."""
    return any(env.case.task.actions[place] == action for place in env.conversation.made)


def _said(text: str) -> Message:
    return Message("assistant", text)
