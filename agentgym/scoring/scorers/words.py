"""Scorers of text against references: exact match, F1, cover exact match, and a pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.errors import UsageError
from agentgym.plugins import Options
from agentgym.scoring.component import scorer
from agentgym.scoring.text import score


@scorer("em", paper="SQuAD: 100,000+ Questions for Machine Comprehension of Text")
def em(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the answer equals a reference after normalisation of both."""
    return score(answer, _given(references, "em"), "em")


@scorer("f1", paper="SQuAD: 100,000+ Questions for Machine Comprehension of Text")
def f1(answer: str, references: Sequence[str]) -> float:
    """Return the best F1 score of words over the references."""
    return score(answer, _given(references, "f1"), "f1")


@scorer("cover_em", paper="Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning")
def cover_em(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the answer contains a reference."""
    return score(answer, _given(references, "cover_em"), "cover_em")


def _given(references: Sequence[str], name: str) -> Sequence[str]:
    """Return the references, and raise an error if there are none.

    Raises:
        UsageError: there are no references, so that every answer would be wrong.
    """
    if not references:
        raise UsageError(f"scorer {name}: the task has no answers to compare with (its data has no 'answers')")
    return references


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexOptions(Options):
    """Settings of the scorer ``regex``."""

    kind: str = "regex"
    pattern: str = ""
    """Regular expression in Python's syntax. The first group of its last match, or the whole match, is compared with
    the references. Without references, a match is enough."""
    ignore_case: bool = True

    def check_together(self) -> None:
        self.check(is_ok=bool(self.pattern), message="pattern is missing")
        try:
            re.compile(self.pattern)
        except re.error as error:
            self.check(is_ok=False, message=f"pattern {self.pattern!r} is no regular expression: {error}")


@scorer("regex", options=RegexOptions)
def regex(answer: str, references: Sequence[str], pattern: str, *, ignore_case: bool) -> float:
    """Return 1.0 if a pattern matches the answer and the matched text is a reference."""
    flags = re.IGNORECASE if ignore_case else re.NOFLAG
    found = list(re.finditer(pattern, answer, flags))
    if not found or not references:
        return float(bool(found))
    last = found[-1]
    return score(last[1] if last.re.groups else last[0], references, "em")
