"""``agentgym/Tau2Airline-v0``: tau2-bench's airline tasks, from its own files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from agentgym.envs.airline.tools import AirlineTools
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.domains.tau2 import Tau2Data, Tau2Env, read_domain

TABLES: Final = ("flights", "users", "reservations")


class Tau2AirlineEnv(Tau2Env):
    """tau2-bench's airline domain: its policy, database, tasks and grading.

    The final database must equal the one after the gold actions, and the agent must have told the texts of
    ``communicate_info``; tau2's reward for this domain consists of these two conditions. Users state who they are, so
    no tool identifies them. A change without the user's yes is a violation. The benchmark's user is a language model,
    which the argument ``user`` sets. The default scripted user reads its scenario out and agrees to everything, which
    is meant for trials only.

    Args:
        data_dir: folder with tau2's ``db.json``, ``tasks.json``, ``policy.md`` and ``split_tasks.json``; by default
            ``airline`` in what the environment variable ``AGENTGYM_TAU2_DOMAINS`` names.
        kwargs: those of :class:`~agentgym.envs.domains.env.DomainEnv`.

    Raises:
        UsageError: there is no such folder, or a file is missing.
        CorruptDataError: a file has another format.
    """

    toolkit_class = AirlineTools
    domain = data_below = "airline"

    def read(self, folder: str | Path) -> Tau2Data:
        return load_airline(folder)

    def random_calls(self) -> Iterable[GoldAction]:
        """Return calls about the user, if the gold actions reveal who that is."""
        yield GoldAction("list_all_airports", {})
        owner = next(filter(None, map(self._owner, self.case.task.actions)), None)
        if owner is None:
            return
        yield GoldAction("get_user_details", {"user_id": owner})
        for reservation_id in self.toolkit.need("users", owner, "user")["reservations"]:
            yield GoldAction("get_reservation_details", {"reservation_id": reservation_id})
            yield GoldAction("cancel_reservation", {"reservation_id": reservation_id})

    def _owner(self, action: GoldAction) -> str | None:
        """Return the user whose data a gold action touches."""
        if "user_id" in action.arguments:
            return str(action.arguments["user_id"])
        reservation = self.toolkit.db.find("reservations", str(action.arguments.get("reservation_id")))
        return None if reservation is None else str(reservation["user_id"])


def load_airline(folder: str | Path) -> Tau2Data:
    """Read a folder such as ``data/tau2/domains/airline`` of a checkout of sierra-research/tau2-bench.

    Raises:
        UsageError: a file is missing.
        CorruptDataError: a file has another format.
    """
    return read_domain(Path(folder).expanduser().resolve(), "airline", TABLES, _with_amounts)


def _with_amounts(table: dict[str, Any]) -> dict[str, Any]:
    """Return users with float amounts on cards and certificates, so that a payment and its refund restore the same
    value; other tables as they are.
    """
    return {
        key: row if "payment_methods" not in row else {**row, "payment_methods": _in_floats(row["payment_methods"])}
        for key, row in table.items()
    }


def _in_floats(methods: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: one | ({"amount": float(one["amount"])} if "amount" in one else {}) for name, one in methods.items()}
