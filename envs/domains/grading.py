"""What an episode was worth: the database as the gold actions leave it, and the user told what was to be told.

The rules are tau2's (``evaluator_env.py`` and ``evaluator_communicate.py`` of sierra-research/tau2-bench): gold actions
are replayed on a fresh database, errors among them ignored, and the hashes compared; a text counts as told if a message
to the user contains it, in lower case and without commas. tau2 further asks a language model about ``nl_assertions``,
which is not done here; ``communicate_info`` says the same in texts to look for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from agentgym.envs.domains.database import Database
from agentgym.envs.domains.task import Case
from agentgym.envs.domains.toolkit import Toolkit


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The two halves of a success."""

    is_database_right: bool
    untold: tuple[str, ...]
    """What the user was to be told and was not."""

    @property
    def is_right(self) -> bool:
        return self.is_database_right and not self.untold


def grade(case: Case, toolkit: Toolkit, told: Collection[str]) -> Grade:
    """Compare what an episode left behind with what its gold actions leave behind.

    Args:
        case: what the episode began with.
        toolkit: the tools over the database of the episode.
        told: those of the task's ``communicate_info`` that were told.
    """
    gold = type(toolkit)(Database(case.tables))
    gold.replay(case.task.actions)
    return Grade(
        is_database_right=toolkit.db.hash() == gold.db.hash(),
        untold=tuple(text for text in case.task.communicate_info if text not in told),
    )


def is_told(info: str, said: str) -> bool:
    """True if a message to the user says something that was to be told.

    Example:
        >>> is_told("1126.04", "You will get $1,126.04 back."), is_told("Mastercard", "You paid by visa.")
        (True, False)
    """
    return info.lower() in said.lower().replace(",", "")
