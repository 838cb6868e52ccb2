"""``agentgym/Tau2Retail-v0``: tau2-bench's retail tasks, from its own files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from agentgym.envs.domains.task import GoldAction
from agentgym.envs.domains.tau2 import Tau2Data, Tau2Env, read_domain
from agentgym.envs.retail.env import random_calls
from agentgym.envs.retail.tools import RetailTools
from agentgym.types import Message

DATA_VARIABLE = "AGENTGYM_TAU2_DATA"


class Tau2RetailTools(RetailTools):
    """The retail tools with tau2's exact behaviour, rounding included."""

    is_as_in_tau2 = True


class Tau2RetailEnv(Tau2Env):
    """tau2-bench's retail domain: its policy, database and tasks, graded as tau2 grades the database.

    Databases are compared as in tau2. Instead of asking a language model to judge ``nl_assertions``, the grade searches
    the agent's messages for the texts of ``communicate_info``. The benchmark's user is a language model: name one with
    ``user``. The scripted user, which recites its scenario and agrees to everything, is only for trying things out.

    Args:
        data_dir: folder with tau2's ``db.json``, ``tasks.json``, ``policy.md`` and ``split_tasks.json``; by default
            what the environment variable ``AGENTGYM_TAU2_DATA`` names.
        kwargs: those of :class:`~agentgym.envs.domains.env.DomainEnv`.

    Raises:
        UsageError: there is no such folder, or a file is missing.
        CorruptDataError: a file has another format.
    """

    toolkit_class = Tau2RetailTools
    domain = "retail"
    data_variable = DATA_VARIABLE
    data_below = ""

    def read(self, folder: str | Path) -> Tau2Data:
        return load_tau2(folder)

    def random_calls(self) -> Iterable[GoldAction]:
        """Return calls about the user, if the gold actions identify the user."""
        owner = next(filter(None, map(self.toolkit.owner_of, self.case.task.actions)), None)
        return () if owner is None else random_calls(self.toolkit.db, owner)

    def oracle(self) -> Message:
        """Return the gold actions, after identifying the user: the gold of 46 of the 114 tasks omits that."""
        made = self.conversation.made
        left = [action for place, action in enumerate(self.case.task.actions) if place not in made]
        owner = next(filter(None, map(self.toolkit.owner_of, left)), None)
        is_in_gold = any(action.name in self.toolkit.identifies for action in left)
        if self.conversation.who or owner is None or is_in_gold:
            return super().oracle()
        email = self.toolkit.need("users", owner, "user")["email"]
        return self.message_of(GoldAction("find_user_id_by_email", {"email": email}))


# -------------- reads a folder in tau2-bench's format: ``db.json``, ``tasks.json``, ``policy.md``, ``split_tasks.json``

TABLES: Final = ("products", "users", "orders")
_AMOUNTS: Final = frozenset({"price", "balance", "amount"})


def load_tau2(folder: str | Path) -> Tau2Data:
    """Read a folder such as ``data/tau2/domains/retail`` of a checkout of sierra-research/tau2-bench.

    Raises:
        UsageError: a file is missing.
        CorruptDataError: a file has another format.
    """
    return read_domain(Path(folder).expanduser().resolve(), "retail", TABLES, _with_amounts)


def _with_amounts(value: object, name: str = "") -> Any:
    """Return the value with whole amounts of money as floats, so that adding and subtracting restores the text."""
    if isinstance(value, dict):
        return {key: _with_amounts(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_amounts(item) for item in value]
    return float(value) if name in _AMOUNTS and isinstance(value, int) else value
