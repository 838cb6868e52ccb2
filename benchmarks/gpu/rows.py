"""The results of a check of ``check.py``: rows with a value and its limit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One check: its value must be at most the limit."""

    name: str
    value: float
    limit: float
    note: str = ""
    is_skipped: bool = False
    """A requirement of the check is missing here; the note names it."""

    @property
    def passed(self) -> bool:
        """False for a value that is no number, too."""
        return self.is_skipped or self.value <= self.limit

    @property
    def verdict(self) -> str:
        """PASS, FAIL or SKIP."""
        return "SKIP" if self.is_skipped else "PASS" if self.passed else "FAIL"

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON, which knows neither NaN nor infinity: None stands for both."""
        numbers = {name: value for name, value in asdict(self).items() if isinstance(value, float)}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**asdict(self), **finite, "passed": self.passed}


def skipped(name: str, note: str) -> Row:
    """Return the row of a check that cannot be made here."""
    return Row(name, float("nan"), 0.0, note, is_skipped=True)
