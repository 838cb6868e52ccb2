"""A judge as a scorer of evaluations (``scorer.kind=judge``)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from agentgym.plugins import Options
from agentgym.trainers.judges.config import JudgeConfig
from agentgym.trainers.judges.judge import Judge
from agentgym.types import Trajectory

VERDICTS = "judge.jsonl"


async def judged(trajectory: Trajectory, folder: Path, kept: dict[str, object], options: Options) -> float:
    """A judge's score of the whole episode, by a rubric; the mean of its votes.

    Raises:
        EngineError: the judge gave no verdict, so the episode's score is not known.
    """
    name = f"judge {options}"
    judge = kept.get(name)
    if not isinstance(judge, Judge):
        judge = kept[name] = Judge(_config(options), folder / VERDICTS)
    return await judge.score(trajectory)


def _config(options: Options) -> JudgeConfig:
    given = {one.name: getattr(options, one.name) for one in fields(options) if one.name != "kind"}
    return JudgeConfig(**{name: value for name, value in given.items() if value != ""})
