"""Runs that are given more steps, and a disk that is full at a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit.counting_runs import config, weights

from agentgym.errors import ConfigError, RunStoppedError, UsageError
from agentgym.trainers import checkpoint
from agentgym.trainers.config.overrides import apply_overrides, load_config
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.distributed import tensor_folder
from agentgym.trainers.run import tokenizer as run_tokenizer
from agentgym.trainers.run.folder import extension_notes
from agentgym.trainers.train import train

SHORT = replace(config(num_steps=2), sft=SftConfig(num_demos=32, batch_size=8), checkpoint_every=1)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "short"
    train(SHORT, run_dir)
    return run_dir


def test_a_run_is_extended_as_if_it_had_been_begun_so(
    short_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = replace(SHORT, num_steps=3)
    train(longer, tmp_path / "whole")
    monkeypatch.delattr(run_tokenizer, "collect_texts")  # the run keeps its tokenizer, whatever the environment says
    capsys.readouterr()
    result = train(longer, short_run, resume=True)
    assert "the learning rate goes from" not in capsys.readouterr().err  # its schedule is constant
    assert result.steps == 3 and load_config(short_run / "config.json").num_steps == 3
    assert weights(short_run) == weights(tmp_path / "whole")
    assert {path.name for path in (short_run / "eval").iterdir()} == {"before", "step-000002", "after"}
    with pytest.raises(ConfigError, match="num_steps=3, which can only grow, got 2"):
        train(SHORT, short_run, resume=True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optimizer.schedule=cosine"], "the learning rate goes from 0.000186 to 0.00055 at step 6"),
        (["optimizer.schedule=linear"], "the learning rate goes from 0.00028 to 0.00055 at step 6"),
        (['sft.mix={"weight": 0.5, "schedule": "linear"}'], "the weight of sft.mix goes from 0.1 to 0.25 at step 6"),
        (["optimizer.warmup_steps=7"], ""),
    ],
)
def test_what_follows_the_length_of_a_run_is_named_where_it_jumps(overrides: list[str], said: str) -> None:
    longer = apply_overrides(SHORT, ["num_steps=10", "optimizer.lr=1e-3", "optimizer.final_lr_share=0.1", *overrides])
    notes = extension_notes(longer, 5, 5)
    assert [said in note and "num_steps was 5 and is 10" in note for note in notes] == [True] * bool(said)
    assert not extension_notes(longer, 10, 5)


def test_a_folder_with_another_tokenizer_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(UsageError, match="holds 'tokenizer', which a run writes; choose another folder"):
        train(SHORT, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["tokenizer"]


def test_a_full_disk_leaves_the_last_checkpoint_whole(short_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def contents() -> dict[str, bytes]:
        folder = short_run / "checkpoints"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = contents()
    assert before

    def save_tree(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tensor_folder, "OUTLINE", "/dev/full")  # where every write fails for want of room
            tensor_folder.save_tree(*arguments)

    monkeypatch.setattr(checkpoint, "save_tree", save_tree)
    with pytest.raises(RunStoppedError, match=r"No space left.*see to the disk and resume the run"):
        train(replace(SHORT, num_steps=9), short_run, resume=True)
    assert contents() == before
