"""Actions that make sense in a domain, for random policies and for completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from agentgym.envs.domains.database import Database
from agentgym.envs.domains.task import GoldAction
from agentgym.errors import ToolError

if TYPE_CHECKING:
    from agentgym.envs.domains.env import DomainEnv

PHRASES: Final = ("How can I help you?", "Do you confirm (yes/no)?", "Is there anything else I can help with?")


def possible_calls(env: DomainEnv, calls: Iterable[GoldAction]) -> tuple[str, ...]:
    """Those of some calls that the tools do not refuse now, as lines that ``parse_action`` reads, sorted."""
    return tuple(sorted({env.message_of(action).text for action in calls if _is_possible(env, action)}))


def _is_possible(env: DomainEnv, action: GoldAction) -> bool:
    """Tried on a database of its own."""
    trial = env.toolkit_class(Database(env.case.tables, env.toolkit.db.dump()))
    try:
        trial.call(action)
    except ToolError:
        return False
    return True
