"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from testkit.checkpoints import read_checkpoint
from testkit.counting_runs import config, trained_ordinals, weights
from testkit.killed_runs import resume, start
from testkit.tiny_models import tiny_model
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from agentgym.credit.state import CreditState
from agentgym.errors import RunStoppedError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.record import read_json_lines
from agentgym.trainers import checkpoint
from agentgym.trainers.checkpoint import CheckpointWriter, load_latest_checkpoint
from agentgym.trainers.config.overrides import save_config
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.distributed import tensor_folder
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.tensor_folder import held_in_memory, load_tree, save_tree
from agentgym.trainers.loop import writes_in_background
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.activity import Activity
from agentgym.trainers.train import train
from agentgym.trainers.train_state import TrainState

IN_TIME_S = 60
"""Far longer than a tiny checkpoint takes."""


def small_state(step: int = 1) -> TrainState:
    settings = load_recipe("tiny")
    model = tiny_model(seed=0, vocab_size=64)
    return TrainState(
        phase="rl",
        step=step,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        columns={"env": ColumnMaker(settings, model, cast("ChatRenderer", None))},
        credit={"env": CreditState()},
        activity=Activity(settings.loss),
    )


class HeldWrite:
    """A disk that is so slow that a checkpoint is under way until :attr:`go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        monkeypatch.setattr(checkpoint, "save_tree", self._save)

    def _save(self, *arguments: Any) -> None:
        save_tree(*arguments)
        self.begun.set()
        assert self.go.wait(IN_TIME_S)


def test_training_goes_on_and_the_next_checkpoint_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, said = HeldWrite(monkeypatch), list[str]()

    def say(line: str) -> None:
        said.append(line)
        slow.go.set()

    state = small_state()
    before = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    with CheckpointWriter(tmp_path, Ranks(), in_background=True, say=say) as checkpoints:
        checkpoints.save(state)
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.zero_()
        state.num_trajectories = 7
        checkpoints.check()  # returns at once
        assert slow.begun.wait(IN_TIME_S) and load_latest_checkpoint(tmp_path) is None, "not there until it is whole"
        state.step = 2
        checkpoints.save(state)
    assert said[0] == "waiting until the checkpoint rl-000001 is written"
    saved = read_checkpoint(tmp_path, 1)
    assert saved["num_trajectories"] == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in saved["model"].items())
    assert not any(tensor.any() for tensor in read_checkpoint(tmp_path, 2)["model"].values())


def copy_what_is_there(source: str, target: str) -> None:
    """Copy a file, unless the run has renamed it since its folder was listed."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def test_a_run_with_checkpoints_in_the_background_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is resumed from what a crash in the middle of a checkpoint leaves."""
    train(config(checkpoint_every=1, num_steps=3), tmp_path / "blocking")
    left = tmp_path / "left"
    in_background = config(checkpoint_every=1, num_steps=3, checkpoint_write="background")

    def crash(folder: Path, *arguments: Any) -> None:
        save_tree(folder, *arguments)
        if folder.name == "rl-000002.partial":  # a copy of the folder is what kill -9 would leave
            shutil.copytree(folder.parents[1], left, copy_function=copy_what_is_there)

    monkeypatch.setattr(checkpoint, "save_tree", crash)
    train(in_background, tmp_path / "background")
    monkeypatch.undo()
    assert weights(tmp_path / "background") == weights(tmp_path / "blocking")
    assert sorted(path.name for path in (left / "checkpoints").iterdir()) == [
        "rl-000000", "rl-000001", "rl-000002.partial",
    ]  # fmt: skip
    found = load_latest_checkpoint(left)
    assert found is not None and found.step == 1
    save_config(in_background, left / "config.json")
    resume(left)
    assert weights(left) == weights(tmp_path / "blocking")
    assert trained_ordinals(left) == trained_ordinals(tmp_path / "blocking")
    assert not list(left.rglob("*partial*"))


@pytest.mark.slow
def test_kill_9_and_resume_end_in_the_same_weights(tmp_path: Path, warm_python: str) -> None:
    train(config(checkpoint_every=1), tmp_path / "blocking")
    killed = tmp_path / "killed"
    killed.mkdir()
    save_config(config(checkpoint_every=1, checkpoint_write="background"), killed / "config.json")
    process = start(warm_python, killed)
    metrics = killed / "metrics.jsonl"

    def has_made_three_steps() -> bool:
        rows = read_json_lines(metrics) if metrics.is_file() else []
        return any((row["phase"], row["step"]) == ("rl", 3) for row in rows)

    while not has_made_three_steps():
        assert process.is_running(), "the run ended before it could be killed"
        time.sleep(0.002)
    process.kill()
    assert not (killed / "model").exists()
    resume(killed)
    assert weights(killed) == weights(tmp_path / "blocking")
    assert trained_ordinals(killed) == trained_ordinals(tmp_path / "blocking")


def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def save(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tensor_folder, "OUTLINE", "/dev/full")  # where every write fails for want of room
            save_tree(*arguments)

    return save


def test_a_disk_that_is_full_at_a_tensor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("unexpected pos 704 vs 598")  # what torch says then

    monkeypatch.setattr(FileSystemWriter, "write_data", fail)
    with pytest.raises(RunStoppedError, match="could not be written: RuntimeError: unexpected pos 704 vs 598; see to"):
        save_tree(tmp_path, {"weights": torch.ones(2)}, {}, Ranks())
    assert not list(tmp_path.iterdir())
    (tmp_path / f"probe-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(RunStoppedError, match="could not be written: No space left on device; see to the disk"):
        save_tree(tmp_path, {"weights": torch.ones(2)}, {}, Ranks())


def test_a_full_disk_stops_the_run_at_its_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "save_tree", full_disk(monkeypatch))
    with CheckpointWriter(tmp_path, Ranks(), in_background=True) as checkpoints:
        checkpoints.save(small_state())
        with pytest.raises(RunStoppedError, match=r"No space left.*see to the disk and resume the run"):
            while True:
                checkpoints.check()
    assert not list((tmp_path / "checkpoints").iterdir())


def test_the_end_reports_a_full_disk_and_an_earlier_error_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "save_tree", full_disk(monkeypatch))
    with (
        pytest.raises(RunStoppedError, match="No space left"),
        CheckpointWriter(tmp_path, Ranks(), in_background=True) as checkpoints,
    ):
        checkpoints.save(small_state())
    said: list[str] = []
    with (
        pytest.raises(KeyError),
        CheckpointWriter(tmp_path, Ranks(), in_background=True, say=said.append) as checkpoints,
    ):
        checkpoints.save(small_state())
        raise KeyError
    assert "the checkpoint under way failed, too: " in said[-1]


def test_what_is_held_shares_memory_as_the_state_does_and_with_it_none() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    tree = {"a": weight, "tied": weight, "group": [{"lr": 0.1, "params": [0]}]}
    held = held_in_memory(tree)
    with torch.no_grad():
        weight.zero_()
    tree["group"][0]["lr"] = 0.2  # type: ignore[index]
    assert held["a"].tolist() == [1.0] * 3 and held["a"].data_ptr() == held["tied"].data_ptr()  # type: ignore[attr-defined]
    assert held["group"] == [{"lr": 0.1, "params": [0]}]


def test_where_checkpoints_are_written_in_the_background() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [writes_in_background(config(), device) for device in (cpu, gpu)] == [False, True]
    assert writes_in_background(config(checkpoint_write="background"), cpu)
    assert not writes_in_background(config(checkpoint_write="blocking"), gpu)


@pytest.mark.parametrize("reads", [False, True])
def test_ctrl_c_at_the_disk_is_no_fault_of_the_disk(
    reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    tree = {"weights": torch.ones(2)}
    if reads:
        save_tree(tmp_path, tree, {}, Ranks())
    kind, method = (FileSystemReader, "read_data") if reads else (FileSystemWriter, "write_data")
    monkeypatch.setattr(kind, method, interrupt)
    with pytest.raises(KeyboardInterrupt):
        if reads:
            load_tree(tmp_path, tree, {}, Ranks())
        else:
            save_tree(tmp_path, tree, {}, Ranks())
