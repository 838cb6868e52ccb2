"""The scripts in benchmarks/strategies run at a tiny size, keep their runs, and compare at equal tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = (
    "model.hidden_size=32", "model.num_layers=1", "model.vocab_size=512", "sft.num_demos=60", "sft.num_epochs=1",
    "groups_per_step=2", "group.group_size=4", "num_steps=2", "eval.num_episodes=4",
)  # fmt: skip


@pytest.mark.slow
def test_two_arms_are_compared_at_equal_tokens(warm_run: Callable[..., str], tmp_path: Path) -> None:
    def compare(*arms: str) -> list[dict[str, object]]:
        sizes = ["--seeds", "0", "--steps", "2", "--every", "1", "--episodes", "4", "--output", tmp_path / "out"]
        warm_run("benchmarks/strategies/compare.py", "--arms", *arms, *sizes, "--", *TINY)
        runs: list[dict[str, object]] = json.loads((tmp_path / "out.json").read_text())
        return runs

    first = compare("plain")
    both = compare("plain", "scaling_inter", "distill")
    assert both[0] == first[0], "a run that is there is kept"
    assert [run["arm"] for run in both] == ["plain", "scaling_inter", "distill"]
    budget = min(run["tokens"][-1] for run in both)  # type: ignore[index]
    said = (tmp_path / "out.md").read_text()
    assert budget > 0 and f"{budget:,.0f} sampled tokens each" in said and "| scaling_inter |" in said


@pytest.mark.slow
def test_chains_with_skills_are_compared_with_errands_without(warm_run: Callable[..., str], tmp_path: Path) -> None:
    sizes = ["--seeds", "0", "--steps", "1", "--every", "1", "--episodes", "2", "--output", tmp_path / "out"]
    model = ["model.hidden_size=32", "model.num_layers=1", "model.vocab_size=400", "model.max_context_tokens=256"]
    demos = ["model.num_text_episodes=20", "sft.num_demos=12", "groups_per_step=1", "group.group_size=2"]
    warm_run("benchmarks/strategies/skills.py", "--arms", "bonus", "household", *sizes, "--", *model, *demos)
    runs = json.loads((tmp_path / "out.json").read_text())
    assert [run["arm"] for run in runs] == ["bonus", "household"]
    assert all(run["points"][0]["tokens"] == 0 < run["points"][1]["tokens"] for run in runs)
    budget = min(run["points"][-1]["tokens"] for run in runs)
    said = (tmp_path / "out.md").read_text()
    assert f"{budget:,.0f} sampled tokens each" in said and "| household |" in said
