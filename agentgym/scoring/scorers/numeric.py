"""A scorer of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.errors import UsageError
from agentgym.plugins import Options
from agentgym.scoring.component import scorer
from agentgym.scoring.numbers import is_near, read_number
from agentgym.settings import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericOptions(Options):
    """Settings of the scorer ``numeric``."""

    kind: str = "numeric"
    tolerance: NonNegative = 1e-9
    """Largest allowed difference, relative to the reference."""
    absolute: NonNegative = 0.0
    """Largest allowed absolute difference."""


@scorer("numeric", options=NumericOptions)
def numeric(answer: str, references: Sequence[str], tolerance: float, absolute: float) -> float:
    """Return 1.0 if the last number of the answer is close enough to that of a reference.

    Raises:
        UsageError: no reference contains a number.
    """
    wanted = [number for reference in references if (number := read_number(reference)) is not None]
    if not wanted:
        raise UsageError(
            f"scorer numeric: the task's answers contain no number: {', '.join(references)[:100] or 'none'}"
        )
    given = read_number(answer)
    if given is None:
        return 0.0
    return float(any(is_near(given, one, tolerance=tolerance, absolute=absolute) for one in wanted))
