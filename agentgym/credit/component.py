"""What the catalogue says about a component, whatever its family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from agentgym.credit.options import Options

Granularity = Literal["trajectory", "turn", "token"]
"""The smallest unit within which all advantages are equal."""

NO_COLUMNS: Callable[[Any], tuple[str, ...]] = lambda options: ()  # noqa: E731


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Settings that several estimators share, as flat keys of the configuration."""

    norm: str = "mean_std_norm"
    gamma: float = 0.95
    step_weight: float = 1.0
    statistics_unit: str = "turn"
    invalid_penalty: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One row of ``agentgym list --credit``, and how to run it."""

    name: str
    family: Literal["shaper", "estimator", "modulator", "selection"]
    source: str
    """Title of the paper."""
    golden_test: str
    """Test that holds it against the worked example, ``file::test`` below ``tests/credit``."""
    run: Callable[..., Any]
    options: type[Options] | None = None
    """Its settings; None for none beside the shared ones."""
    is_experimental: bool = False
    """Reconstructed from an abstract or notes, not from the authors' code."""
    columns: Callable[[Any], tuple[str, ...]] = NO_COLUMNS
    """Optional columns of the table it reads under given settings."""
    granularity: Granularity = "trajectory"
    compares_groups: bool = False
    """Estimators: whether the members of a group are compared, so that a group needs two."""
    keeps_parts: bool = False
    """Estimators: whether reward parts stay apart, so that a shaper must not merge its own into the reward."""
    is_after: bool = False
    """Selections: whether it looks at advantages and so comes after the estimator."""

    @property
    def status(self) -> Literal["verified", "experimental"]:
        """``experimental`` for a reconstruction."""
        return "experimental" if self.is_experimental else "verified"
