"""Numbers of reports, tables and figures, computed by hand from a tiny recorded run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from testkit.made_groups import turn

from agentgym.cli.plot import Axis
from agentgym.evals.runner import write_evaluation
from agentgym.report import curves, models, page
from agentgym.report.now import now_of
from agentgym.report.plot import plot
from agentgym.report.run_folder import RunFolder, open_run_folder
from agentgym.report.table import HELD_OUT, table
from agentgym.rollout.seeds import derive_seed
from agentgym.types import (
    FinishReason,
    Message,
    Segment,
    Status,
    Task,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def episode(task: str, kind: str, turns: Sequence[Turn], *, success: bool | None, **more: Any) -> Trajectory:
    made = Trajectory(
        task=Task(id=task, split="test", seed=0),
        env_id="Made-v0",
        task_type=kind,
        status=Status.COMPLETED,
        segments=(Segment(tuple(turns)),),
        seed=0,
        success=success,
    )
    return replace(made, **more)


def evaluation(folder: Path) -> RunFolder:
    """Four episodes of three tasks: `a` twice, solved once; `b` solved; `c` failed with its infrastructure."""
    error = Message("tool", "no", result=ToolResult("no", error_type="usage"))
    invalid = turn([1, 2, 3], [1] * 5)
    cut = replace(invalid.completion, finish_reason=FinishReason.LENGTH)
    played = [
        episode("a", "x", [turn([1, 2, 3], [1, 2], replies=(error,)), turn([1], [1] * 4, reward=1.0)], success=True),
        episode("a", "x", [replace(invalid, completion=cut, is_valid=False)], success=False),
        episode("b", "y", [turn([1, 2], [1]), turn([1], [1]), turn([1], [1], reward=0.5)], success=True),
        episode("c", "y", [], success=None, status=Status.TIMEOUT, error="slow"),
    ]
    groups = [
        TrajectoryGroup(ordinal=at, task=one.task, trajectories=(replace(one, seed=derive_seed(7, at, 0)),))
        for at, one in enumerate(played)
    ]
    tasks = [one.task for one in played]
    write_evaluation(groups, tasks, out_dir=folder, suite_or_env="Made-v0", policy="made", seed=7)
    return open_run_folder(folder)


def test_an_evaluation(tmp_path: Path) -> None:
    run = evaluation(tmp_path / "eval")
    # tasks of 1 and 2 in 2; their mean has the variance 1 / 16, as of 3 independent trials, of which there are 8 / 3
    t, n, rate = 12.7062, 8 / 3, 0.75
    centre = (rate + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * math.sqrt(rate * (1 - rate) / n + t * t / (4 * n * n))
    assert (run.summaries[""].success_low, run.summaries[""].success_high) == pytest.approx(
        (centre - half, centre + half)
    )
    made = models.models_of(run)
    assert made is not None
    assert made["totals"] == [
        {
            "suite": "Made-v0",
            "policy": "made",
            "success": "75%",  # the mean of the tasks' 1/2 and 1; c is left out
            "95 % interval": f"{centre - half:.1%} to {centre + half:.1%}",
            "return": "0.5",  # the mean of the tasks' 0.5 and 0.5
            "turns": "2.0",  # 2, 1 and 3
            "tokens sampled": "5",  # 6, 5 and 3
            "tokens read": "4",  # 4, 3 and 4
            "invalid turns": "0.33",
            "tool errors": "0.33",
            "truncated": "0.33",
            "failed": "1 of 4",
            "cost per episode": "–",
            "spent in all": "–",
        }
    ]
    (suite,) = made["suites"]
    assert suite["parts"] == [
        ("task type x", ["50% (0% to 100%, 2 episodes)"]),
        ("task type y", ["100% (21% to 100%, 1 episode)"]),
    ]
    assert [(row["task"], row["cells"][0]["told"]) for row in suite["tasks"]] == [
        ("a", "1 of 2"),
        ("b", "1 of 1"),
        ("c", "failed"),
    ]
    assert 'aria-label="turns of made: 1: 1; 2: 1; 3: 1"' in made["histograms"][0]["turns"]
    assert page._repeats(run) == [
        {"evaluation": "this", "measure": "pass@k", "values": [("1", "75.0%"), ("2", "100.0% of 1 task")]},
        {"evaluation": "this", "measure": "pass^k", "values": [("1", "75.0%"), ("2", "0.0% of 1 task")]},
    ]
    assert dict(page._facts(run)) == {
        "policy": "made", "environment": "Made-v0", "episodes": "4", "failed": "1", "mean return": "0.5",
        "mean turns": "2.0", "cost": "–",
    }  # fmt: skip
    assert now_of(run) == [
        ("state", "finished", False),
        ("episodes", "4", False),
        ("success", "75%", False),
        ("failed episodes", "1 of 4", True),
    ]


STEPS = 4
RL = {
    "success": 0.25, "return": 0.5, "num_turns": 3.0, "truncated_success_share": 0.1, "loss": -0.02, "entropy": 0.7,
    "clip_fraction": 0.05, "grad_norm": 1.5, "logprob_gap_max": 0.001, "logprob_gap_mean": 0.0001, "anchor_share": 0.4,
    "anchor_size": 2.5, "zero_advantage_share": 0.3, "credit/phantom_share": 0.2, "credit/gate_open_rate": 0.6,
    "void_alarm": 1.0, "num_dropped_groups": 2.0, "invalid_share": 0.15, "tokens_per_s": 99_600.0,
}  # fmt: skip
"""Numbers of the last step, in the order of the page."""
SHOWN = (
    "25%", "0.5", "3", "10%", "−0.02", "0.7", "5%", "1.5", "0.001", "0.0001", "40%", "2.5", "30%", "20%", "60%", "1",
    "2", "15%", "99.6k",
)  # fmt: skip


def training(folder: Path, seed: int = 0, scale: float = 1.0, **credit: object) -> Path:
    """A run of four steps; in step k every number is k quarters of its last value."""
    folder.mkdir(parents=True)
    config = {"recipe": "made", "seed": seed, "num_steps": STEPS, "env": {"id": "Made-v0"}, "credit": credit}
    (folder / "config.json").write_text(json.dumps(config))
    rows: list[dict[str, object]] = [{"phase": "eval", "step": 0, "success": 0.125, "success_low": 0.1}]
    for step in range(1, STEPS + 1):
        ended = {"status/completed": 6, "status/truncated_turns": 2, "sampled_tokens": 100 * (1 + seed)}
        spent = {"time/rollout_s": 30.0, "time/train_s": 10.0}
        numbers = {name: scale * value * step / STEPS for name, value in RL.items()}
        rows.append({"phase": "rl", "step": step, **numbers, **ended, **spent, "own_number": step})
    rows.append({"phase": "eval", "step": STEPS, "success": 0.5 * scale, "success_low": 0.3, "success_high": 0.9})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_curves_of_a_training_run(tmp_path: Path) -> None:
    """Every chart of the page ends at the last number, in the format of its kind."""
    run = open_run_folder(training(tmp_path / "run"))
    rl = run.metrics["rl"]
    success = curves.success_curve(rl, run.metrics["eval"])
    assert success is not None
    found = [success.last, *(chart.last for chart in curves.small_multiples(rl, curves.KNOWN))]
    assert [*RL][1:] == list(curves.KNOWN), "a new chart needs a number here"
    assert tuple(found) == SHOWN
    assert [(one.label, one.last) for one in curves.other_curves(rl)] == [
        ("own_number", "4"),
        ("sampled_tokens", "100"),
    ]
    statuses, times = curves.status_chart(rl), curves.time_chart(rl)
    assert statuses is not None and times is not None
    assert [(one.name, one.share, one.text) for one in statuses[1]] == [
        ("completed", 0.75, "24"),
        ("truncated_turns", 0.25, "8"),
    ]
    assert [(one.name, one.share, one.text) for one in times[1]] == [
        ("rollout", 0.75, "75%, 120.0 s"),
        ("train", 0.25, "25%, 40.0 s"),
    ]


def test_every_measure_of_a_table(tmp_path: Path) -> None:
    """Two methods of two seeds; their held-out success is 0.5 and 0.25, and 0.4 and 0.2."""
    runs = [
        training(tmp_path / f"{name}-{seed}", seed, scale, estimator=name)
        for name, scales in (("grpo", (1.0, 0.5)), ("gigpo", (0.8, 0.4)))
        for seed, scale in enumerate(scales)
    ]
    measures = (*HELD_OUT, "training", "entropy")
    made = table(runs, measures=measures, pair_by="seed")
    means = [{measure: cell.value for measure, cell in row.cells.items()} for row in made.rows]
    quarters = (1 + 2 + 3 + 4) / 16
    assert means[0] == pytest.approx(
        {"after": 0.375, "before": 0.125, "gain": 0.25, "training": 0.1875 * quarters, "entropy": 0.525 * quarters}
    )
    assert means[1] == pytest.approx(
        {"after": 0.3, "before": 0.125, "gain": 0.175, "training": 0.15 * quarters, "entropy": 0.42 * quarters}
    )
    paired = made.rows[1].differences["after"]  # -0.1 and -0.05, with t = 12.7062 of one degree of freedom
    half = 12.7062 * math.sqrt(0.05**2 / 2) / math.sqrt(2)
    assert (paired.value, paired.low, paired.high) == pytest.approx((-0.075, -0.075 - half, -0.075 + half), rel=1e-4)
    # not paired, by Welch: variances 1/32 and 1/50 of two seeds each
    plain = table(runs, measures=["after"]).rows[1].differences["after"]
    of_a, of_b = 0.03125 / 2, 0.02 / 2
    degrees = (of_a + of_b) ** 2 / (of_a**2 + of_b**2)
    assert plain.value == pytest.approx(-0.075)
    assert plain.low is not None and 4.3027 < (plain.value - plain.low) / math.sqrt(of_a + of_b) < 12.7062
    assert 1 < degrees < 2, "the quantile lies between those of one and of two degrees of freedom"


AXES = {"steps": (1, 1), "rollouts": (8, 8), "tokens": (100, 200), "minutes": (2 / 3, 2 / 3)}
"""Width of a step on each axis, in runs of 100 and of 200 tokens a step."""


def test_all_axes_have_an_answer() -> None:
    assert list(AXES) == list(get_args(Axis))


@pytest.mark.parametrize(("axis", "per_step"), AXES.items())
def test_every_axis_of_a_figure(tmp_path: Path, axis: Any, per_step: tuple[float, float]) -> None:
    pytest.importorskip("matplotlib")
    runs = [training(tmp_path / str(seed), seed, 1.0) for seed in range(2)]
    for run, width in zip(runs, per_step, strict=True):
        (line,) = plot([run], tmp_path / "figure.svg", axis=axis)
        assert line.xs == pytest.approx(np.arange(1, STEPS + 1) * width)
        assert line.mean == pytest.approx(0.25 * np.arange(1, STEPS + 1) / STEPS)
        (held_out,) = plot([run], tmp_path / "figure.svg", axis=axis, held_out=True)
        assert held_out.xs == pytest.approx(np.array([0, STEPS * width])) and list(held_out.mean) == [0.125, 0.5]
