"""Benchmark scripts that no other test runs: each works at a tiny size and writes its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


Run = Callable[..., str]
"""Runs a script under benchmarks/ (the fixture ``run``)."""


@pytest.fixture
def run(warm_run: Run) -> Run:
    return lambda script, *words: warm_run(
        BENCHMARKS / script, *words, children=not script.startswith(("gui", "seeing"))
    )


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_scoring_of_answers(run: Run, tmp_path: Path) -> None:
    run("credit/scoring.py", "--rounds", "1", "--turns", "2", "--output", tmp_path / "out.json")
    for sizes in read(tmp_path / "out.json")["results"].values():
        (measured,) = sizes.values()
        assert measured["batched_s"] > 0 and measured["packed_s"] > 0 and measured["largest_difference"] < 1e-3


@pytest.mark.slow
def test_speed_of_the_household(run: Run, tmp_path: Path) -> None:
    run("household_speed/bench.py", "--tasks", "4", "--rounds", "1", "--output", tmp_path / "out.json")
    found = read(tmp_path / "out.json")
    assert found["household"]["steps_per_s"] > found["household_large"]["steps_per_s"] / 100 > 0
    assert found["gold_lengths_test"]["min"] > 1


@pytest.mark.slow
def test_speed_of_the_shop(run: Run, tmp_path: Path) -> None:
    run("webshop_speed/bench.py", "--num-products", "100", "--tasks", "4", "--output", tmp_path / "out.json")
    found = read(tmp_path / "out.json")
    assert found["making"][0]["memory_mb"] >= 0
    assert all(shop["cpu"]["steps_per_s_again"] > 0 for shop in found["shops"])


@pytest.mark.slow
def test_table_of_environments(run: Run, tmp_path: Path) -> None:
    sizes = ["--tasks", "2", "--group-size", "2", "--min-cpu-s", "0.01"]
    outputs = ["--out", tmp_path / "out.json", "--markdown", tmp_path / "out.md"]
    run("environments/table.py", "--suites", "household-valid", *sizes, *outputs)
    assert "household-valid" in (tmp_path / "out.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_estimators_side_by_side(run: Run, tmp_path: Path) -> None:
    small = ["--recipe", "household-smoke", "--seeds", "0", "--estimators", "grpo", "gigpo"]
    folders = ["--runs", tmp_path / "runs", "--out", tmp_path]
    run("household/compare.py", *small, *folders, "num_steps=1", "sft.num_demos=32", "eval.num_episodes=4")
    found = read(tmp_path / "results.json")
    assert {row["estimator"] for row in found["rows"]} == {"grpo", "gigpo"}


@pytest.mark.slow
def test_kuhn_poker_by_self_play(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folders = ["--seeds", "0", "--every", "1", "--average-from", "1", "--runs", tmp_path / "runs", "--out", tmp_path]
    run(
        "self_play/kuhn.py",
        "run",
        *folders,
        "num_steps=2",
        "groups_per_step=2",
        "sft.num_demos=32",
        "eval.num_episodes=4",
    )
    run("self_play/kuhn.py", "report", *folders)
    assert any(tmp_path.glob("*.json"))


@pytest.mark.slow
def test_schedules_beside_each_other_and_simulated(run: Run, tmp_path: Path) -> None:
    train(apply_overrides(load_recipe("household-smoke"), ["num_steps=0", "sft.num_demos=32"]), tmp_path / "start")
    shared = ["--seeds", "0", "--runs", tmp_path / "runs", "--out", tmp_path]
    sizes = ["--steps", "2", "--lock-step-steps", "2", "--groups-per-step", "1", "--group-size", "2"]
    model = ["--start", tmp_path / "start" / "model", "--eval-episodes", "0", "--median-s", "0.001"]
    run("asynchronous/compare.py", *shared, *sizes, *model)
    rows = read(tmp_path / "results.json")["rows"]
    assert len({row["name"] for row in rows}) > 3
    run("asynchronous/simulate.py", *shared)
    assert read(tmp_path / "simulated.json")


def test_recall_of_retrievers(run: Run, tmp_path: Path) -> None:
    titles = [f"Title {number}" for number in range(8)]
    texts = ["the capital of a country", "a river in the north", "an old bridge", "a painter of ships"]
    pages = {title: [f"{title} is about {texts[number % 4]}."] for number, title in enumerate(titles)}
    question = {"question": "Which old bridge is Title 2 about?", "supporting_facts": [["Title 2", 0]]}
    (tmp_path / "hotpotqa_train.json").write_text(json.dumps([question]))
    (tmp_path / "hotpotqa_train_corpus.json").write_text(json.dumps(pages))
    for name in ("2wikimultihopqa", "musique_train"):
        rows = [{"title": f"{name} {number}", "text": "something else"} for number in range(4)]
        (tmp_path / f"{name}_corpus.json").write_text(json.dumps(rows))
    run("search/recall.py", tmp_path, "--backends", "fts5", "--output", tmp_path / "recall")
    assert '"recall_at_5": 1.0' in (tmp_path / "recall.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_families_side_by_side(run: Run, tmp_path: Path) -> None:
    """Two steps: the second trains the first one's groups again."""
    arms = ["grpo", "riskpo", "copo", "grpo+ares", "reg-grpo", "grpo+dph"]
    worlds = ["--worlds", "easy", "--arms", *arms, "--seeds", "0", "--runs", tmp_path / "runs"]
    tiny = ["sft.num_demos=64", "groups_per_step=3", "group.group_size=2", "eval.num_episodes=2"]
    run("credit/compare.py", "run", *worlds, "--steps", "2", "--change", *tiny)
    run("credit/compare.py", "report", *worlds, "--out", tmp_path, "--name", "tiny")
    assert [row["arm"] for row in read(tmp_path / "tiny.json")["rows"]] == arms


@pytest.mark.slow
def test_credit_side_by_side(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    worlds = ["--worlds", "maze", "--arms", "grpo", "gigpo", "--seeds", "0", "--runs", tmp_path / "runs"]
    tiny = ["sft.num_demos=32", "groups_per_step=1", "group.group_size=2", "eval.num_episodes=2"]
    run("credit/compare.py", "run", *worlds, "--steps", "1", "--change", *tiny)
    run("credit/compare.py", "report", *worlds, "--out", tmp_path, "--name", "tiny")
    found = read(tmp_path / "tiny.json")["rows"]
    assert [row["arm"] for row in found] == ["grpo", "gigpo"]
    assert "| gigpo |" in (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert "</svg>" in (tmp_path / "tiny-maze.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_cost_of_a_second_role(run: Run, tmp_path: Path) -> None:
    tiny = ["num_steps=0", "sft.num_demos=64", "model.num_layers=1", "eval.num_episodes=1"]
    train(apply_overrides(load_recipe("kuhn"), tiny), tmp_path / "run")
    changes = [f"model.path={tmp_path / 'run' / 'model'}", "num_steps=2", "sft.num_demos=4", "groups_per_step=2"]
    run("roles/cost.py", "--rounds", "1", "--change", *changes, "--output", tmp_path / "out.json")
    found = read(tmp_path / "out.json")
    assert found["two_over_one"]["memory_mib"] > 0.5 and found["two_over_one"]["step_s"] > 0


@pytest.mark.slow
def test_learning_to_see_beside_a_blind_control(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folders = ["--seeds", "0", "--runs", tmp_path / "runs", "--out", tmp_path]
    tiny = ["num_steps=1", "sft.num_demos=32", "groups_per_step=1", "group.group_size=2", "eval.num_episodes=2"]
    run("seeing/learning.py", "run", *folders, "--change", *tiny)
    run("seeing/learning.py", "report", *folders)
    found = read(tmp_path / "learning.json")["rows"]
    assert [row["arm"] for row in found] == ["seeing", "blind"] and all(row["processor_s"] > 0 for row in found)
    assert "| blind |" in (tmp_path / "learning.md").read_text(encoding="utf-8")
    assert "</svg>" in (tmp_path / "learning.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_cost_of_images_for_runs_of_text(run: Run, tmp_path: Path) -> None:
    tiny = ["sft.num_demos=8", "num_steps=1", "groups_per_step=1", "eval.num_episodes=1"]
    folders = ["--before", ROOT, "--output", tmp_path / "out.json"]
    run("seeing/text_cost.py", *folders, "--rounds", "1", "--change", *tiny)
    found = read(tmp_path / "out.json")
    assert found["now_over_before"]["start_s"] > 0.1 and found["arms"]["before"]["whole_s"] > 0


def test_the_playing_process_of_the_plan(run: Run, tmp_path: Path) -> None:
    run("plan/plan.py", "--measure", "--out", tmp_path)
    found = read(tmp_path / "measured.json")
    assert found["playing_cpu_s"] > 0 and found["num_turns"] > 12


@pytest.mark.slow
def test_compiled_layers(run: Run, tmp_path: Path) -> None:
    tiny = ["--models", "0.7M", "--rounds", "1", "--backend", "aot_eager"]  # inductor's compiler takes half a minute
    run("train_step/options.py", "compile", *tiny, "--output", tmp_path / "out.json")
    (row,) = read(tmp_path / "out.json")["rows"]
    assert row["eager_cpu_s"] > 0 and row["compiling_cpu_s"] > 0


@pytest.mark.gui
def test_learning_on_miniwob(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folders = ["--seeds", "0", "--runs", tmp_path / "runs", "--out", tmp_path]
    tiny = ["num_steps=1", "sft.num_demos=16", "groups_per_step=1", "group.group_size=2", "eval.num_episodes=2"]
    run("gui/miniwob_learning.py", "run", *tiny, *folders)
    run("gui/miniwob_learning.py", "report", *folders)
    assert read(tmp_path / "miniwob-learning.json")
    assert "</svg>" in (tmp_path / "miniwob-learning.svg").read_text(encoding="utf-8")


@pytest.mark.gui
def test_speed_of_miniwob(run: Run, tmp_path: Path) -> None:
    sizes = ["--episodes", "4", "--relaunches", "2", "--parallel", "2", "--rounds", "1"]
    run("gui/miniwob_speed.py", *sizes, "--out", tmp_path / "speed.json")
    assert read(tmp_path / "speed.json")


@pytest.mark.gui
def test_policies_of_miniwob_and_their_replay(run: Run, tmp_path: Path) -> None:
    run("gui/miniwob_solvers.py", "--tasks", "click-test", "--seeds", "2", "--out", tmp_path / "solvers.json")
    assert "click-test" in (tmp_path / "solvers.json").read_text(encoding="utf-8")
    run("gui/miniwob_replay.py", "--episodes", "2", "--envs", "1", "--out", tmp_path / "replay.json")
    assert read(tmp_path / "replay.json")


@pytest.mark.slow
def test_success_of_a_planner_against_its_lookups(run: Run, tmp_path: Path) -> None:
    tiny = ("num_steps=1", "sft.num_demos=64", "eval.num_episodes=4", "groups_per_step=1", "group.group_size=2")
    script, runs = "roles/pareto.py", ("--runs", tmp_path / "runs")
    run(script, "run", "--costs", "0", "0.1", *runs, "--change", *tiny)
    run(script, "report", *runs, "--out", tmp_path)
    rows = read(tmp_path / "pareto.json")["rows"]
    assert [row["cost"] for row in rows] == [0.0, 0.1]
    assert all(row["lookups_before"] >= 0 for row in rows) and (tmp_path / "pareto.svg").is_file()
