"""The measurement of the tests' own seconds runs, at a tiny size."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_it_writes_the_seconds_of_each_file(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/suite/measure.py", "--output", str(tmp_path / "times")]
    done = subprocess.run(
        [*command, "--part", "tiny=tests/test_errors.py -p no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "times.json").read_text(encoding="utf-8"))
    (row,) = result["files"]
    assert row["file"] == "tests/test_errors.py" and row["num_tests"] > 1 and row["processor_s"] >= 0
    assert "| tiny | 1 |" in (tmp_path / "times.md").read_text(encoding="utf-8")


def test_it_measures_what_make_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORKERS", "MAKEFLAGS"):  # make passes on what its command line sets
        monkeypatch.delenv(name, raising=False)
    make_part = runpy.run_path(str(ROOT / "benchmarks" / "suite" / "measure.py"))["make_part"]
    fast, slow = make_part("fast"), make_part("slow")
    assert fast.startswith("fast=-n 2 ") and "not slow" in fast
    files = [word for word in slow.split() if word.startswith("tests/")]
    assert slow.startswith("slow=-n 2 ") and files and all((ROOT / file).is_file() for file in files)
