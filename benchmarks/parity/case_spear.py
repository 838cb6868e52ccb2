"""SPEAR's bonus for tool calls compared with its authors' reward."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from credit_inputs import random_table, with_outcomes_only
from released import Case, Release, gap, load

from agentgym.credit.shapers.tool_use import ToolBonusOptions, tool_bonus
from agentgym.credit.statistics import per_trajectory, trajectories

AUTHORS = Release("TencentYoutuResearch/SPEAR", "7e84315")
FILE = "verl/recipe/spear/reward.py"
REWARD = "default_compute_score_enforce_toolcall_posneg_decay"


@cache
def reward(folder: Path, name: str) -> Any:
    return load(folder / FILE, name, namespace={"np": np, "default_compute_score": lambda *_, **facts: facts["score"]})


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare shaped returns at steps before, at and after the end of the curriculum."""
    table = with_outcomes_only(random_table(rng, max_turns=14))
    table = table.with_columns(num_calls=rng.integers(0, 3, len(table)))
    step, fade = int(rng.choice([0, 1, 50, 99, 100, 150])), 100
    view = trajectories(table)
    theirs = []
    for first, last in zip(view.first, view.last, strict=True):
        assert table.num_calls is not None
        calls = table.num_calls[first : last + 1]
        said = [{"role": "assistant", "tool_calls": ["call"] * n if n else None} for n in calls]
        scope = reward(folder, REWARD)
        scope["default_compute_score"] = lambda *_, at=last, **__: float(table.reward[at])
        theirs.append(
            scope[REWARD](
                "",
                "",
                "",
                "",
                "",
                tools=[],
                messages=said,
                global_steps=step,
                use_toolcall_reward="cosine",
                max_toolcall_steps=fade,
            )
        )
    shaped = tool_bonus(table, step, ToolBonusOptions(fade_steps=fade, bonus=0.1, max_bonus=1.0)).table
    return gap(per_trajectory(shaped, shaped.reward), theirs)


CASES = (Case(component="tool_bonus", variant="as released", release=AUTHORS, file=FILE, largest_gap=largest_gap),)
