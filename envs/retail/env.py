"""``agentgym/Retail-v0``: the support agent of a shop, which is drawn from a seed with its customers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from agentgym.env.tasks import SeededTasks
from agentgym.envs.domains.database import Database
from agentgym.envs.domains.env import DomainEnv
from agentgym.envs.domains.task import Case, GoldAction
from agentgym.envs.domains.users import User
from agentgym.envs.retail.customer import Customer, Mind
from agentgym.envs.retail.generator import Difficulty, case_of_seed, difficulty_of_data
from agentgym.envs.retail.request import Request
from agentgym.envs.retail.tools import RetailTools
from agentgym.errors import UsageError
from agentgym.types import Message, Task

# -------------------------------------------------- actions of a random policy in the shop: phrases, and possible calls

PHRASES: Final = (
    "Could you tell me your email, or your name and zip code?",
    "What is the order number, and what is the reason?",
    "Which items is it about, which options would you like, and which payment method should be used?",
    "What is the new address?",
    "I am sorry, that is not possible.",
    "Is there anything else I can help with?",
)


def random_calls(database: Database, user_id: str) -> Iterator[GoldAction]:
    """Yield calls about a customer: every look-up, and every possible cancellation."""
    user = dict(database.rows("users"))[user_id]
    yield GoldAction("get_user_details", {"user_id": user_id})
    for order_id in user["orders"]:
        yield GoldAction("get_order_details", {"order_id": order_id})
        yield GoldAction("cancel_pending_order", {"order_id": order_id, "reason": "no longer needed"})
    yield GoldAction("list_all_product_types", {})


# ------------------- ``agentgym/Retail-v0``: the support agent of a shop, which is drawn from a seed with its customers


class RetailEnv(DomainEnv):
    """Support the customers of a shop: cancel, modify, return, exchange, answer, refuse; by tools, under a policy.

    The shop, its customer and one to three requests are drawn from the task's seed. The database has tau2's schema and
    the tools are those of its retail domain, so what is learned here can be tried on tau2's own tasks.

    Args:
        num_requests: requests of a task, 1 to 3; by default drawn.
        forbidden: share of requests whose first wish the policy forbids, or that only a person can settle.
        conditional: share of requests with a second wish for when the first cannot be had.
        num_products: products of the shop, 12 to 24.
        num_users: users of the shop, 1 to 100.
        kwargs: those of :class:`~agentgym.envs.domains.env.DomainEnv`: ``user``, ``violation_cost``, ``max_turns``.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = RetailEnv(num_requests=1)
        >>> observation, info = env.reset(seed=0)
        >>> is_over = False
        >>> while not is_over:
        ...     _, reward, is_over, _, info = env.step(env.oracle())
        >>> reward, info["violations"]
        (1.0, ())
    """

    toolkit_class = RetailTools
    phrases = PHRASES

    def __init__(
        self,
        *,
        num_requests: int | None = None,
        forbidden: float = 0.25,
        conditional: float = 0.25,
        num_products: int = 14,
        num_users: int = 6,
        **kwargs: Any,
    ) -> None:
        self._difficulty = Difficulty(
            num_requests=num_requests,
            forbidden=forbidden,
            conditional=conditional,
            num_products=num_products,
            num_users=num_users,
        )
        super().__init__(**kwargs)

    def case_of(self, task: Task) -> Case:
        return case_of_seed(task.seed, difficulty_of_data({**self._difficulty.as_data(), **task.data}))

    def scripted_user(self, case: Case, seed: int) -> User:
        return Customer(case.task.script, seed)

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 to train on, 1,000 to validate, 1,000 to test, each with a shop of its own."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._difficulty.as_data())

    def oracle(self) -> Message:
        if not isinstance(self._user, Customer):
            raise UsageError(f"{self.env_id}: the oracle needs the scripted user, not a model")
        return next_message(self, self._user)

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return policies that refuse everything, transfer everybody, agree to everything, or recite everything."""
        refusal = Message("assistant", "I am sorry, order is already processed, delivered or pending: not possible.")
        transfer = self.message_of(GoldAction("transfer_to_human_agents", {"summary": "all"}))
        counts = Message("assistant", ", ".join(f"{count} variants" for count in range(12)))
        done = Message("assistant", "It is done. Is there anything else I can help with?")
        return {
            "refuse everything": [refusal] * 8,
            "transfer at once": [transfer, done],
            "claim that it is done": [Message("assistant", "Do you confirm (yes/no)?"), done] * 4,
            "say all that might be asked": [counts, refusal] * 4,
        }

    def random_calls(self) -> Iterable[GoldAction]:
        user_id, _ = next(self.toolkit.db.rows("users"))  # the customer is the first
        return random_calls(self.toolkit.db, user_id)


# ----- A gold policy for the generated shop: asks who writes, asks what is open, proposes, waits for the yes, then acts

_ASKS: Final = {
    "order": "What is the order number?",
    "reason": "What is the reason?",
    "item": "Which items is it about?",
    "options": "Which options would you like?",
    "payment": "Which payment method should be used?",
    "address": "What is the new address?",
}


def next_message(env: DomainEnv, customer: Customer) -> Message:
    """Return the next action of the gold policy."""
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
    """Return True if a gold call was made; requests that share a call look it up once."""
    return any(env.case.task.actions[place] == action for place in env.conversation.made)


def _said(text: str) -> Message:
    return Message("assistant", text)
