"""What a run's folder holds so that a reviewer can run it again, wherever it was started."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit import counting_runs

from agentgym.installation import DISTRIBUTION
from agentgym.rollout import journal

ESTIMATOR = """
import numpy as np
from offsets import OFFSET
from agentgym.credit.component import estimator
from agentgym.credit.statistics import returns_to_go
from agentgym.credit.table import TurnAdvantages

@estimator("shifted", paper="ours", granularity="turn")
def shifted(table, gamma):
    returns = returns_to_go(table, gamma)
    return TurnAdvantages(advantage=returns - returns.mean() + OFFSET, return_to_go=returns)
"""
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def study(folder: Path, state: str) -> str:
    """Write a study into a folder that is a checkout, a changed one, or none; return its commit."""
    folder.mkdir()
    (folder / "mine.py").write_text(ESTIMATOR)
    (folder / "offsets.py").write_text("OFFSET = 0.0\n")
    (folder / "notes").mkdir()
    if state == "none":
        return ""
    git(folder, "init", "-q")
    if state == "empty":
        return ""
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "A study")
    (folder / "untracked.txt").write_text("no change of a tracked file")
    if state == "changed":
        (folder / "offsets.py").write_text("OFFSET = 0.5\n")
    return git(folder, "rev-parse", "--short=12", "HEAD")


def trained(agentgym: Any, folder: Path, run_dir: Path) -> tuple[dict[str, Any], list[str]]:
    """Train by the command, from the folder; return the journal's line and the words of the command."""
    model = counting_runs.warm_model()
    words = [
        "train", "tiny", f"env.id={counting_runs.ENV_FILE}:Counting-v0", f"model.path={model}", "sft.num_demos=0",
        "credit.estimator=mine.py:shifted", "num_steps=1", "eval.num_episodes=1", "groups_per_step=1", "num_threads=2",
        'credit.shapers=[{"kind": "invalid_call"}]', "--run-dir", str(run_dir),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "3"}
    done = agentgym(*words, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    (line,) = journal.read(run_dir)
    return line, words


@pytest.mark.parametrize("state", ["none", "clean", "changed"])
def test_a_run_holds_what_it_was_made_of(state: str, tmp_path: Path, warm_agentgym: Any) -> None:
    commit = study(tmp_path / "study", state)
    run_dir = tmp_path / "run"
    line, words = trained(warm_agentgym, tmp_path / "study", run_dir)
    assert line["repository"] == {"none": "", "clean": commit, "changed": f"{commit} with changes"}[state]
    assert shlex.split(line["command"]) == ["agentgym", *words], "it can be pasted into a shell"
    config = json.loads((run_dir / "config.json").read_text())
    texts = [path.read_text() for path in (run_dir / "own_files").rglob("*.py")]
    for own in (tmp_path / "study" / "mine.py", tmp_path / "study" / "offsets.py", counting_runs.ENV_FILE):
        assert own.read_text() in texts, f"{own.name} as it was"
    assert {Path(name).name for name in config["own_files"]} == {"mine.py", "offsets.py", "counting_env.py"}
    for package in ("numpy", "torch", "transformers", DISTRIBUTION, "pytest"):
        assert line["installed"][package] == importlib.metadata.version(package)
    assert line["packages"]["torch"] == importlib.metadata.version("torch")
    assert line["threads"] == line["threads"] | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "3", "torch": 2}
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    assert line["blas"]["numpy"] == f"{blas['name']} {blas['version']}" and line["blas"]["torch"]
    assert line["python"] in sys.version and re.fullmatch(r".+, \d+ cores", line["processor"])


def test_a_commit_that_git_does_not_tell_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(tmp_path / "empty", "empty")
    monkeypatch.chdir(tmp_path / "empty" / "notes")
    assert journal.made_with()["repository"].startswith("unknown (")
    commit = study(tmp_path / "study", "clean")
    monkeypatch.chdir(tmp_path / "study" / "notes")
    assert journal.made_with()["repository"] == commit, "the working directory may be below the checkout's top"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "unknown (" in journal.made_with()["repository"], "git is not installed"
    monkeypatch.chdir(tmp_path)
    assert journal.made_with()["repository"] == ""


def test_passwords_of_addresses_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/agentgym", "eval", "x", "--policy", "openai:http://me:secret@host/v1"])
    assert journal.made_with()["command"] == "agentgym eval x --policy openai:http://host/v1"
