"""``agentgym/Retail-v0``: the support agent of a shop, which is drawn from a seed with its customers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentgym.env.tasks import SeededTasks
from agentgym.envs.domains.env import DomainEnv
from agentgym.envs.domains.task import Case, GoldAction
from agentgym.envs.domains.users import User
from agentgym.envs.retail.actions import PHRASES, random_calls
from agentgym.envs.retail.customer import Customer
from agentgym.envs.retail.generator import Difficulty, case_of_seed, difficulty_of_data
from agentgym.envs.retail.oracle import next_message
from agentgym.envs.retail.tools import RetailTools
from agentgym.errors import UsageError
from agentgym.types import Message, Task


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
        """Refuse whatever comes, hand everybody over, agree to everything, and say all that might be asked."""
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
