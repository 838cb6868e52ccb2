"""Sweeps, tables and figures from Python: what scripts hand in, and what they get back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit import counting_runs

import agentgym as typed
from agentgym.api.changes import plain_changes
from agentgym.api.sweep import SweepResult
from agentgym.errors import AgentGymError, ConfigError, UsageError
from agentgym.rollout.record import read_json_object
from agentgym.trainers.losses.options import KlOptions

agentgym: Any = typed
"""Without its types, since scripts have none."""
SMALL = {
    "env.id": f"{counting_runs.ENV_FILE}:Counting-v0", "sft.num_demos": np.int64(64), "sft.batch_size": 8,
    "sft.num_epochs": 1, "eval.num_episodes": 4, "groups_per_step": 2, "group.group_size": 4, "num_steps": 1,
}  # fmt: skip


@pytest.mark.slow
def test_a_sweep_its_table_and_its_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "sweep"
    axes = {"credit.estimator": ("grpo", "gigpo"), "optimizer.lr": np.array([1e-3, 3e-3])}
    made = agentgym.sweep("tiny", axes, seeds=(seed for seed in range(2)), changes=SMALL, sweep_dir=folder)
    assert isinstance(made, SweepResult) and len(made.runs) == 8 and not made.failed
    assert agentgym.resume_sweep(folder).runs == made.runs, "nothing is left to do"
    saved = read_json_object(folder / "config.json")["sweep"]
    assert (saved["axes"]["optimizer.lr"], saved["seeds"]) == ([1e-3, 3e-3], [0, 1])
    by_estimator = agentgym.table(folder, measures="training", group_by="credit.estimator", pair_by="seed")
    assert [(row.label, row.seeds, row.num_runs) for row in by_estimator.rows] == [
        ("estimator=grpo", ("0", "1"), 4),
        ("estimator=gigpo", ("0", "1"), 4),
    ]
    lines = agentgym.plot(folder, tmp_path / "figure.svg", group_by="credit.estimator")
    assert [(line.label, line.num_runs) for line in lines] == [("estimator=grpo", 4), ("estimator=gigpo", 4)]
    assert len(agentgym.table([folder]).rows) == len(agentgym.plot([folder], tmp_path / "all.svg")) == 4


RATES = {"optimizer.lr": [1e-3, 1e-4]}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: agentgym.sweep("tiny", {"credit.estimator": "grpo"}), "credit.estimator is 'grpo', expected a list"),
        (lambda: agentgym.sweep("tiny", {"credit.estimator": ["grpo", print]}), "name components and environments of"),
        (lambda: agentgym.sweep("tiny", RATES, seeds=3), "seeds is 3, expected a list of values"),
        (lambda: agentgym.sweep("tiny", RATES, seeds=[0, 0]), "seeds has 0 twice"),
        (lambda: agentgym.sweep("tiny", RATES, seeds=[0.5]), "seeds=0.5 is not a whole number"),
        (lambda: agentgym.sweep("tiny", RATES | {"seeds": [1]}), "in Python seeds=range"),
        (lambda: agentgym.sweep("tiny", RATES, changes={"optimizer.lr": 1}), "optimizer.lr is set for all runs"),
        (
            lambda: agentgym.sweep("tiny", {"optimizer": [{"lr": 1}, {"lr": 2}]}, changes={"optimizer.lr": 1}),
            "the values of optimizer would replace it",
        ),
        (lambda: agentgym.sweep("tiny", ["optimizer.lr"]), "axes must be a dictionary of paths and values"),
        (lambda: agentgym.sweep("tiny", {("a", "b"): [1, 2]}), "axes has the key"),
        (lambda: agentgym.sweep("tiny", RATES, jobs=-1), "jobs=-1 is not a number of runs"),
        (lambda: agentgym.sweep("tiny", RATES, jobs="2"), "jobs='2' is not a number of runs"),
        (lambda: agentgym.sweep("tiny", {}), "nothing varies"),
        (lambda: agentgym.sweep("none", RATES), "unknown recipe 'none'"),
        (lambda: agentgym.resume_sweep("nowhere"), "nowhere is not the folder of a sweep"),
        (lambda: agentgym.train("tiny", {3: 1}), "changes has the key 3"),
        (lambda: agentgym.train("tiny", {"env.kwargs": {"size": object()}}), "env.kwargs.size is <object"),
        (lambda: agentgym.table("nowhere"), "no folder 'nowhere'"),
        (lambda: agentgym.table([]), "name at least one folder"),
        (lambda: agentgym.table("nowhere", pair_by="seeds"), "unknown pairing 'seeds'"),
        (lambda: agentgym.plot("nowhere", "x.svg", axis="step"), "unknown axis 'step'"),
        (lambda: agentgym.plot("nowhere", "x.svg", smooth=0), "smooth=0 is not a number of steps"),
        (lambda: agentgym.plot("nowhere", "x.gif"), "must end in"),
    ],
)
def test_bad_arguments_are_one_line_and_leave_nothing(
    call: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentGymError) as found:
        call()
    assert isinstance(found.value, UsageError | ConfigError)
    assert said in str(found.value) and "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())


def test_values_of_scripts_are_plain() -> None:
    given = {
        "optimizer.lr": np.float32(0.5),
        "num_steps": np.int64(3),
        "model.path": Path("a/model"),
        "sft.files": np.array(["a", "b"]),
        "env.kwargs": {"sizes": (np.int8(1), 2), 3: None},
        "loss.regularisers": [KlOptions(coef=0.1)],
    }
    made = plain_changes("changes", given)
    assert made.pop("loss.regularisers")[0]["coef"] == 0.1
    assert made == {
        "optimizer.lr": 0.5,
        "num_steps": 3,
        "model.path": "a/model",
        "sft.files": ["a", "b"],
        "env.kwargs": {"sizes": [1, 2], "3": None},
    }
    assert type(made["optimizer.lr"]) is float and type(made["env.kwargs"]["sizes"][0]) is int
