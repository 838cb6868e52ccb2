"""Recorded episodes as conversations: what is written is what happened, and demonstrations are read from it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agentgym
from agentgym.cli.main import app
from agentgym.evals.episodes import read_groups
from agentgym.types import Message, ToolCall

HOUSE = "agentgym/Household-v0"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "oracle"
    agentgym.evaluate(HOUSE, "oracle", episodes=4, run_dir=folder)
    return folder


def exported(run_dir: Path, path: Path) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["export", str(run_dir), "-o", str(path), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def called(action: Message) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, dict(call.arguments)) for call in action.calls if isinstance(call, ToolCall)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_demonstrations_are_read_from_it(run_dir: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("torch")
    from agentgym.trainers.sft.files import read_files

    path = tmp_path / f"chats{suffix}"
    assert exported(run_dir, path)["num_episodes"] == 4
    read = read_files([str(path)])
    groups = read_groups(run_dir)
    assert len(read) == len(groups) == 4
    for conversation, group in zip(read, groups, strict=True):
        (one,) = group.trajectories
        assert [message.text for message in conversation.first] == [m.text for m in one.observation]
        acted = [exchange.said for exchange in conversation.exchanges]
        assert [called(action) for action in acted] == [called(turn.action) for turn in one.turns]
        replies = [message.text for exchange in conversation.exchanges for message in exchange.replies]
        assert replies == [message.text for turn in one.turns for message in turn.replies]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_export_that_fails_keeps_the_file_of_the_one_before(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"chats{suffix}"
    exported(run_dir, path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        done = CliRunner().invoke(app, ["export", str(run_dir), "-o", str(path)])
    assert done.exit_code != 0
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_rewards_are_columns(run_dir: Path, tmp_path: Path) -> None:
    exported(run_dir, tmp_path / "a.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["success"] for row in rows] == [True] * 4 and {row["env_id"] for row in rows} == {HOUSE}
    assert all(row["reward"] == pytest.approx(sum(part["value"] for part in row["reward_parts"])) for row in rows)
    assert rows[0]["tools"][0]["function"]["name"]


def test_bad_requests_are_one_line(run_dir: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ([str(run_dir), "-o", "a.csv"], "must end in one of"),
        ([str(tmp_path / "gone"), "-o", "a.jsonl"], "no folder"),
        ([str(run_dir), "-o", "a.jsonl", "--evaluation", "after"], "after"),
    ):
        done = CliRunner().invoke(app, ["export", *arguments])
        assert done.exit_code == 2 and words in done.output
