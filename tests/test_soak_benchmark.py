"""The soak runs at a tiny size, and sees what grows."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "soak"


@pytest.fixture
def soak() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("soak")
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [("memory_mib", 0.1, True), ("memory_mib", 1.0, False), ("descriptors", 1, False), ("files", 2, False)],
)
def test_what_grows_is_seen(soak: Any, name: str, step: float, expected: bool) -> None:
    first = soak.Point(done=0, memory_mib=60.0, descriptors=6, threads=2, processes=0, files=3)
    assert soak.is_flat([first] * 20)
    grown = [replace(first, **{name: getattr(first, name) + number * step}) for number in range(20)]
    assert soak.is_flat(grown) == expected


def soaked(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a path for its results, to which it adds `.json` and `.md`."""
    command = [sys.executable, str(FOLDER / "soak.py"), *arguments, "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    small = ("--parts", "episodes", "sandboxes", "--episodes", "400", "--cycles", "20", "--backends", "process")
    done = soaked(tmp_path / "soak", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "soak.md").read_text(encoding="utf-8")
    assert "| cycles of a `process` sandbox | 20 |" in page and "| 400 |" in page


@pytest.mark.slow
def test_commands_are_watched_from_outside(tmp_path: Path) -> None:
    small = ("--parts", "training", "serving", "--steps", "300", "--kinds", "lora", "--sessions", "160")
    done = soaked(tmp_path / "soak", *small)
    assert "Traceback" not in done.stderr, done.stderr  # so few steps may leave caches that still grow
    parts = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))["parts"]
    assert [len(part["points"]) for part in parts] == [20, 20]
    for part in parts:
        last = part["points"][-1]
        assert last["done"] >= 20 and last["memory_mib"] > 50 and last["threads"] > 0 and last["cpu_ms"] > 0, part
    assert parts[0]["points"][-1]["disk_kib"] > 0


def test_a_training_run_that_fails_ends_the_soak(soak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = importlib.import_module("commands")
    monkeypatch.setitem(commands.KINDS, "sync", ("no.such.setting=1",))
    with pytest.raises(SystemExit, match="ended with 2"):
        list(soak.training("sync", 20, tmp_path))
