"""Sweeps end to end: shared warm starts, seeds, kills, and the table and figure of their runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from testkit import counting_runs
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.report.table import table
from agentgym.rollout.record import read_json_object

SMALL = (
    f"env.id={counting_runs.ENV_FILE}:Counting-v0", "sft.num_demos=64", "sft.batch_size=8", "sft.num_epochs=1",
    "eval.num_episodes=4", "groups_per_step=2", "group.group_size=4", "num_steps=2", "checkpoint_every=1",
)  # fmt: skip


def sweep(*words: object) -> Any:
    return CliRunner().invoke(app, ["sweep", *map(str, words)])


@pytest.mark.slow
def test_a_sweep_shares_its_warm_starts_and_ends_with_its_results(
    tmp_path: Path, warm_commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(warm_commands / "python"))  # which starts the runs
    folder = tmp_path / "sweep"
    done = sweep("tiny", *SMALL, "credit.estimator=grpo,gigpo", "seeds=0..1", "--run-dir", folder)
    assert done.exit_code == 0, done.output
    assert "4 runs from 2 warm starts" in done.stderr and "has finished, 6 of 6" in done.stderr
    assert f"table: agentgym table {folder} --pair-by seed -o table.tex" in done.stdout
    starts = sorted((folder / "starts").iterdir())
    assert [start.name.split("-")[1] for start in starts] == ["seed0", "seed1"]
    arms = [folder / "runs" / f"estimator-{name}-seed0" for name in ("grpo", "gigpo")]
    assert {(arm / read_json_object(arm / "branch.json")["run"]).resolve() for arm in arms} == {starts[0].resolve()}
    made = table([folder], pair_by="seed")
    assert [(row.label, row.seeds) for row in made.rows] == [
        ("estimator=grpo", ("0", "1")),
        ("estimator=gigpo", ("0", "1")),
    ]
    figure = CliRunner().invoke(app, ["plot", str(folder), "-o", str(tmp_path / "f.svg"), "--group-by", "estimator"])
    assert figure.exit_code == 0 and "estimator=gigpo, 2 seeds" in figure.stdout, figure.output
    # a second call finds nothing to do
    again = sweep("--resume", folder)
    assert again.exit_code == 0 and "6 of 6 runs have finished already" in again.stderr


@pytest.mark.slow
def test_a_killed_sweep_goes_on(tmp_path: Path, warm_commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sweep"
    words = ["sweep", "tiny", *SMALL, "seeds=0,1", "num_steps=40", "--run-dir", str(folder), "--jobs", "1"]
    words.remove("num_steps=2")
    process = subprocess.Popen(
        [sys.executable, "-m", "agentgym", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    first = folder / "runs" / "run-seed0" / "metrics.jsonl"
    while not (first.is_file() and '"rl"' in first.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)  # as Ctrl-C does: the run saves its last step
    assert process.wait() == 130
    begun = read_json_object(folder / "runs" / "run-seed0" / "config.json")
    assert begun["num_steps"] == 40 and not (folder / "runs" / "run-seed0" / "result.json").exists()
    assert list((folder / "runs" / "run-seed0" / "checkpoints").glob("rl-0*"))
    # only now: a command in the warm Python outlives a signal to the program in front of it
    monkeypatch.setattr(sys, "executable", str(warm_commands / "python"))
    done = sweep("--resume", folder)
    assert done.exit_code == 0, done.output
    assert all((folder / "runs" / f"run-seed{seed}" / "result.json").is_file() for seed in (0, 1))


def test_a_dry_run_lists_the_runs(tmp_path: Path) -> None:
    done = sweep("tiny", *SMALL, "credit.estimator=grpo,gigpo", "sft.noise=0,0.5", "seeds=3", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["runs"] == [
        f"estimator-{name}_noise-{noise}-seed3" for name in ("grpo", "gigpo") for noise in ("0", "0.5")
    ]
    starts = found["starts"]  # noise changes the warm start, the estimator does not
    assert starts["estimator-grpo_noise-0-seed3"] == starts["estimator-gigpo_noise-0-seed3"]
    assert len({*starts.values()}) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["tiny", "seeds=0,0"], "seeds has 0 twice; two runs of one seed are not two seeds"),
        (["tiny", "seeds=x"], "seeds='x' is not a whole number"),
        (["tiny", "seeds=4..0"], "a range counts up"),
        (["tiny", "optimizer.lr=1e-3"], "nothing varies"),
        (["tiny", "optimizer.lr=1e-3,,1e-4"], "a value between two commas is empty"),
        (["tiny", "optimizer.lr=1e-3,1e-4", "optimizer.lr=1"], "optimizer.lr is given twice"),
        (["tiny", "optimizer.rate=1,2"], "unknown key 'optimizer.rate'"),
        (["tiny", "optimizer.lr=1e-3,x"], "lr-x-seed0: optimizer.lr"),
        (["tiny", "optimizer.lr=1e-3,-1"], "lr-1-seed0: optimizer: lr must be above 0"),
        (["none", "seeds=0,1"], "unknown recipe 'none'"),
        (["seeds=0,1"], "name a recipe first"),
        (["tiny", "seeds=0,1", "--seed"], "unknown option '--seed'"),
        (["--resume", "nowhere"], "nowhere is not the folder of a sweep"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = sweep(*words)
    assert done.exit_code == 2
    assert error in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize("word", ["seed=0,1", "seed=0..4", "credit.estimator=grpo,gigpo"])
def test_several_values_for_one_run_name_the_sweep(word: str) -> None:
    done = CliRunner().invoke(app, ["train", "tiny", "env.id=agentgym/Maze-v0", word])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"agentgym sweep tiny env.id=agentgym/Maze-v0 {word}" in done.stderr


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    done = sweep("tiny", *SMALL, "sft.batch_size=8", "seeds=0,1", "model.path=nowhere", "--run-dir", folder)
    assert done.exit_code == 2  # batch_size is given twice
    done = sweep("tiny", *SMALL, "seeds=0,1", "model.path=./nowhere", "--run-dir", folder, "--jobs", "1")
    assert done.exit_code == 1
    assert "run-seed0 and 1 more failed:" in done.stderr and "nowhere" in done.stderr
    assert f"agentgym sweep --resume {folder}" in done.stderr
