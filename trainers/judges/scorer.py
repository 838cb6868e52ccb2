"""A judge as a scorer of evaluations (``scorer.kind=judge``)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from agentgym.plugins import Options
from agentgym.trainers.engines.openai.http import OpenAIClient
from agentgym.trainers.judges.config import JudgeConfig
from agentgym.trainers.judges.judge import Judge
from agentgym.types import Trajectory

VERDICTS = "judge.jsonl"


async def judged(trajectory: Trajectory, folder: Path, kept: dict[str, object], options: Options) -> float:
    """Score a whole episode with a judge and a rubric; the score is the mean of the votes.

    Raises:
        EngineError: the judge returned no valid verdict, so the episode's score is unknown.
    """
    name = f"judge {options}"
    judge = kept.get(name)
    if not isinstance(judge, Judge):
        judge = kept[name] = Judge(_config(options), folder / VERDICTS)
    return await judge.score(trajectory)


async def check_judge(options: Options) -> None:
    """Check that the endpoint of a judge answers and knows its model.

    Raises:
        UsageError: it does not.
    """
    client = OpenAIClient(_config(options).endpoint, 1)
    try:
        await client.check()
    finally:
        await client.close()


def _config(options: Options) -> JudgeConfig:
    given = {one.name: getattr(options, one.name) for one in fields(options) if one.name != "kind"}
    return JudgeConfig(**{name: value for name, value in given.items() if value != ""})
