"""Scorers by name: functions that rate an episode from 0 to 1.

A scorer is registered under a name and takes the parameters it needs::

    @scorer("same_length")
    def same_length(answer: str, references: Sequence[str]) -> float:
        return float(any(len(answer) == len(reference) for reference in references))

``agentgym eval ENV scorer.kind=file.py:same_length`` and ``scorers`` in a suite's file name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgym.plugins import Component, F, Registry, checked_options

SCORERS = Registry[Component](
    "scorer", "agentgym.scoring.scorers", ("answer", "references", "task", "trajectory", "folder", "kept")
)


def scorer(name: str, **facts: Any) -> Callable[[F], F]:
    """Register a function or coroutine function that returns the score of an episode, from 0 to 1.

    It may take ``answer`` (the text of :func:`~agentgym.scoring.answer.final_answer`), ``references`` (the task's
    answers, possibly none), ``task``, ``trajectory``, ``folder`` (of the evaluation, for caches), ``kept`` (a
    dictionary that lives as long as the evaluation), and the keys of its options.

    Args:
        name: name of the scorer in ``scorer.kind``.
        facts: fields of :class:`~agentgym.plugins.Component`.

    Example:
        >>> @scorer("anything")
        ... def anything(answer: str) -> float:
        ...     '''Accept every answer that is not empty.'''
        ...     return float(bool(answer.strip()))
        >>> SCORERS["anything"].call("4")
        1.0
    """

    def register(function: F) -> F:
        known = dict(facts)
        options = checked_options("scorer", name, function, known.pop("options", None))
        SCORERS.add(Component(name=name, family="scorer", function=function, options=options, **known))
        return function

    return register
