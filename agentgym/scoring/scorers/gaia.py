"""A scorer with GAIA's rules."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.errors import UsageError
from agentgym.scoring.component import scorer
from agentgym.scoring.gaia import is_gaia_answer


@scorer("gaia", paper="GAIA: a benchmark for General AI Assistants")
def gaia(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if GAIA's leaderboard accepts the answer for a reference: a number, a list or a text.

    Raises:
        UsageError: the task has no answer.
    """
    if not references:
        raise UsageError("scorer gaia: the task has no answers to compare with (its data has no 'answers')")
    return float(any(is_gaia_answer(answer, reference) for reference in references))
