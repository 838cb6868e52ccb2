"""The curves of a resumed run in each log: one point for each step, as in a run that was never stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.reporting.metrics import MetricsLog

pytest.importorskip("tensorboard")


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    # files of one second are read in the order of their names, so that ten comes before nine
    return sorted((one.step, one.value) for one in found.Scalars(tag)) if tag in found.Tags()["scalars"] else []


def begun(run_dir: Path, project: str = "") -> None:
    """A run whose checkpoint is that after RL step 4, and that is killed after step 7."""
    with MetricsLog(run_dir, project) as log:
        for step in range(1, 21):
            log.log("sft", step, {"loss": step / 8})
        log.log("eval", 0, {"success": 0.25})
        for step in range(1, 8):
            if step == 5:
                log.log("eval", 4, {"success": 0.5})
            log.log("rl", step, {"loss": step / 16})


@pytest.mark.parametrize("num_stops", [1, 2])
def test_each_step_has_one_point(tmp_path: Path, num_stops: int) -> None:
    begun(tmp_path)
    for _ in range(num_stops):
        with MetricsLog(tmp_path) as log:
            log.forget_after("rl", 4)
            log.log("eval", 4, {"success": 0.5})
            for step in range(5, 15):
                log.log("rl", step, {"loss": step / 16})
    folder = tmp_path / "tensorboard"
    assert points(folder, "rl/loss") == [(step, step / 16) for step in range(1, 15)]
    assert points(folder, "sft/loss") == [(step, step / 8) for step in range(1, 21)], "the steps of another phase stay"
    assert points(folder, "eval/success") == [(0, 0.25), (4, 0.5)]
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl") if row["phase"] == "rl"] == [
        *range(1, 15)
    ]
    assert not (folder / "partial").exists()


def test_a_warm_start_that_is_resumed_forgets_what_follows(tmp_path: Path) -> None:
    begun(tmp_path)
    with MetricsLog(tmp_path) as log:
        log.forget_after("sft", 12)
    folder = tmp_path / "tensorboard"
    assert [step for step, _ in points(folder, "sft/loss")] == [*range(1, 13)]
    assert not points(folder, "rl/loss") and not points(folder, "eval/success")


def test_a_file_that_a_kill_cut_is_read_up_to_there(tmp_path: Path) -> None:
    begun(tmp_path)
    for path in (tmp_path / "tensorboard").iterdir():
        path.write_bytes(path.read_bytes()[:-7])  # of the row of step 7
    with MetricsLog(tmp_path) as log:
        log.forget_after("rl", 4)
    assert [step for step, _ in points(tmp_path / "tensorboard", "rl/loss")] == [1, 2, 3, 4]


def test_weights_and_biases_is_given_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = Mock(Error=type("Error", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    begun(tmp_path, "mine")
    with MetricsLog(tmp_path, "mine") as log:
        log.forget_after("rl", 4)
        log.log("eval", 4, {"success": 0.5})
        for step in range(5, 11):
            log.log("rl", step, {"loss": step / 16})
    sent = [call.args[0] for call in wandb.init.return_value.log.call_args_list]
    assert [row["rl/step"] for row in sent if "rl/step" in row] == [*range(1, 11)]
    assert [row["eval/step"] for row in sent if "eval/step" in row] == [0, 4]
    axes = {call.args[0]: call.kwargs["step_metric"] for call in wandb.init.return_value.define_metric.call_args_list}
    for row in sent:  # each number is drawn over the step of its own phase, which its row has
        assert {axes[f"{name.partition('/')[0]}/*"] for name in row} <= {*row}
