"""Scores of episodes by named scorers, which may replace the environment's own success.

A scoring is a list of scorers with weights::

    scorers = [{kind = "numeric", tolerance = 0.01}, {kind = "regex", pattern = "ANSWER: .*", weight = 0.5}]
    success_at = 1.0

An episode's score is the weighted mean, from 0 to 1. It is a success if the score is at least ``success_at``.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from agentgym.errors import AgentGymError, ConfigError, InfrastructureError, UsageError
from agentgym.plugins import Component, Options, kind, read_options
from agentgym.scoring.answer import final_answer
from agentgym.scoring.component import SCORERS
from agentgym.settings import PositiveFraction, Settings, check_ranges, checked
from agentgym.types import Task, Trajectory

_ROUNDING = 1e-9
"""Tolerance of rounding, since a weighted mean of ones may be slightly below 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring(Settings):
    """The scorers of episodes as plain data. Without scorers the environment defines success.

    Example:
        >>> Scoring.read({"kind": "numeric", "tolerance": 0.01}).scorers[0]["kind"]
        'numeric'
    """

    scorers: tuple[Mapping[str, object], ...] = ()
    """Scorers, each as ``{"kind": NAME, "weight": 1.0, ...}`` with its own settings."""
    success_at: PositiveFraction = 1.0
    """Smallest score of a success."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @classmethod
    def read(cls, values: Mapping[str, object]) -> Scoring:
        """Parse a user's settings: ``scorers`` and ``success_at``, or the keys of one scorer and ``success_at``.

        Raises:
            ConfigError: a key or value is wrong; the message names the first one.
        """
        given = dict(values)
        if "kind" in given:
            others = {name: given.pop(name) for name in [*given] if name != "success_at"}
            given["scorers"] = [others]
        if given and not given.get("scorers"):
            raise ConfigError("scorer: name one by scorer.kind=NAME (agentgym list --scorers)")
        scoring = checked(cls, given, "scorer")
        for one in scoring.scorers:
            _Scorer.read(one)
        return scoring

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Check that tasks have answers if one of our scorers compares with them, before anything is played.

        Raises:
            UsageError: no task has answers.
        """
        named = [SCORERS[str(kind(values))] for values in self.scorers]
        comparing = [one.name for one in named if one.module.startswith("agentgym.") and one.reads("references")]
        if comparing and not any(task.answers for task in tasks):
            raise UsageError(
                f"scorer {comparing[0]}: the tasks have no answers to compare with (their data has no 'answers')"
            )

    async def check_ready(self) -> None:
        """Check that the scorers can work, before anything is played: that the endpoint of a judge answers, say.

        Raises:
            UsageError: one cannot.
        """
        for one in map(_Scorer.read, self.scorers):
            await one.component.check_ready(one.options)

    @property
    def label(self) -> str:
        """Names of the scorers."""
        return ", ".join(str(kind(values)) for values in self.scorers)


BY_ENV = Scoring()
"""The scoring without scorers: the environment defines success."""


@dataclass(frozen=True, slots=True)
class _Scorer:
    component: Component
    options: Options | None
    weight: float

    @classmethod
    def read(cls, values: Mapping[str, object]) -> _Scorer:
        own = dict(values)
        reference, weight = own.pop("kind", None), own.pop("weight", 1.0)
        if not isinstance(reference, str):
            raise ConfigError("scorer: expected its name under the key 'kind'")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ConfigError(f"scorer {reference}: weight is a number above 0, got {weight!r}")
        component = SCORERS[reference]
        if component.options is None:
            if own:
                raise ConfigError(f"scorer {reference} has no settings; got {', '.join(own)}")
            return cls(component, None, float(weight))
        return cls(component, read_options(SCORERS, reference, own, "scorer"), float(weight))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The scores of an episode."""

    score: float
    """Weighted mean of the scores, from 0 to 1."""
    success: bool
    by_scorer: Mapping[str, float]


@dataclass(slots=True)
class Grader:
    """A scorer of episodes, which holds the resources of its scorers.

    Args:
        folder: folder of the evaluation.
    """

    scoring: Scoring
    folder: Path
    _kept: dict[str, object] = field(default_factory=dict)

    async def close(self) -> None:
        """Free the resources of the scorers."""
        for value in self._kept.values():
            closing = value.close() if hasattr(value, "close") else None
            if inspect.isawaitable(closing):
                await closing

    async def scored(self, trajectory: Trajectory) -> Scored:
        """Score one episode.

        Raises:
            InfrastructureError: a scorer failed, so that the episode's score is not known.
            ConfigError: a scorer returned a value that is not a number from 0 to 1.
        """
        scorers = [_Scorer.read(values) for values in self.scoring.scorers]
        offered = {
            "answer": final_answer(trajectory),
            "references": trajectory.task.answers,
            "task": trajectory.task,
            "trajectory": trajectory,
            "folder": self.folder,
            "kept": self._kept,
        }
        values = [await _called(one, offered) for one in scorers]
        total = sum(one.weight for one in scorers)
        score = sum(one.weight * value for one, value in zip(scorers, values, strict=True)) / total
        names = _own_names([one.component.name for one in scorers])
        return Scored(
            score=score,
            success=score >= self.scoring.success_at - _ROUNDING,
            by_scorer=dict(zip(names, values, strict=True)),
        )

    async def scored_all(self, trajectories: Sequence[Trajectory]) -> list[Scored | InfrastructureError]:
        """Score many episodes concurrently. The result holds an error for each episode that could not be scored."""
        return list(await asyncio.gather(*(self._tried(trajectory) for trajectory in trajectories)))

    async def _tried(self, trajectory: Trajectory) -> Scored | InfrastructureError:
        try:
            return await self.scored(trajectory)
        except InfrastructureError as error:
            return error


async def _called(scorer: _Scorer, offered: Mapping[str, Any]) -> float:
    component = scorer.component
    try:
        value: Any = component.call(**component.arguments(offered, scorer.options))
        if inspect.isawaitable(value):
            value = await value
    except AgentGymError:
        raise
    except Exception as error:
        raise ConfigError(f"scorer {component.name} failed on task {offered['task'].id}: {error!r}") from error
    if not isinstance(value, Real) or not 0 <= float(value) <= 1:  # also true for NaN
        raise ConfigError(f"scorer {component.name} returned {value!r}; a score is a number from 0 to 1")
    return float(value)


def _own_names(names: Sequence[str]) -> list[str]:
    """Append numbers to names that occur several times."""
    return [f"{name}-{names[:at].count(name) + 1}" if names[:at].count(name) else name for at, name in enumerate(names)]
