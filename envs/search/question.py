"""A question with its answers and the pages that hold them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with the answers that only the environment knows.

    Example:
        >>> Question("Who wrote Red Mirror?", ("Mira Tolan",), ("Red Mirror",), ("Red Mirror",)).answers
        ('Mira Tolan',)
    """

    text: str
    answers: tuple[str, ...]
    """All right answers, the usual one first."""
    gold: tuple[str, ...]
    """Ids of the documents that together hold the answer, in the order of reading."""
    queries: tuple[str, ...]
    """A query for each gold document, from facts of the question and the earlier documents."""
