"""Columns of the credit table that the trainer computes, because episodes do not record them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from agentgym.credit.columns import FROM_GROUPS, OF_MODEL, OF_SHAPERS
from agentgym.credit.compose import CreditConfig
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError, unknown_name
from agentgym.settings import Count, Natural, Settings, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsConfig(Settings):
    """Settings of the columns that the trainer computes for credit, because episodes do not record them."""

    answer_template: str = "<think>\nNow there's enough information to answer\n</think>\n<answer>\n{answer}\n</answer>"
    """Text with which the assistant gives a reference answer (information gain). The default is the paper's. Write it
    in the format of your agent's answers, for instance ``submit: {answer}``."""
    scoring: Literal["batched", "packed"] = "packed"
    """Layout in which references are scored: one row per context, or one row per window with an attention mask."""
    max_drift_tasks: Natural = 10_000
    """Number of tasks whose last response is kept to measure the policy's drift (SPO), in memory and in checkpoints."""
    tokens_per_microbatch: Count = 8192
    """Number of padded tokens in a forward pass."""

    def __post_init__(self) -> None:
        check_ranges(self, "columns.")
        if self.answer_template.count("{answer}") != 1:
            raise ConfigError(f"columns.answer_template must hold {{answer}} once, got {self.answer_template!r}")


def needed_columns(credit: CreditConfig) -> frozenset[str]:
    """Return every column that the components read, including optional ones.

    Example:
        >>> sorted(needed_columns(CreditConfig(estimator="spo")))
        ['drift', 'group_keys']
    """
    names = {*credit.columns(), *(name for part, _ in credit.components() for name in part.optional_columns)}
    if "answer_logprobs" in names:
        names.add("answer_lengths")
    return frozenset(names)


def check_columns(credit: CreditConfig, made: Sequence[str] = OF_MODEL, *, branches: bool = False) -> None:
    """Check that the trainer has all columns that the components of credit read.

    Args:
        credit: the components of credit and their settings.
        made: columns that the trainer computes, in addition to those that episodes record.
        branches: True if episodes branch; otherwise credit for branches has no effect.

    Raises:
        ConfigError: a column is missing; the message names it and the reason.
    """
    names = credit.columns()
    if "branch_turn" in names and not branches:
        kinds = " and ".join(c.name for c, options in credit.components() if "branch_turn" in c.columns(options))
        raise ConfigError(f"credit by {kinds} changes nothing where episodes do not branch: set strategy.branching")
    missing = [name for name in names if name not in (*FROM_GROUPS, *made)]
    filled = [name for name in missing if name in OF_SHAPERS]
    for name in filled:
        if credit.shaper(OF_SHAPERS[name]) is None:
            raise ConfigError(f"credit reads {name}, which the shaper {OF_SHAPERS[name]} fills: add that shaper")
    missing = [name for name in missing if name not in filled]
    known = {field.name for field in fields(TurnTable)}
    if unknown := [name for name in missing if name not in known]:
        raise unknown_name("column", unknown[0], known, "of agentgym.credit.table.TurnTable")
    if missing:
        raise ConfigError(
            f"credit needs columns that need a model of agentgym's own trainer: {', '.join(missing)}; agentgym train "
            "makes them, and the component works on plain arrays (docs/credit.md)"
        )
