"""The measurement of the environment server runs, at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_load_is_measured(tmp_path: Path) -> None:
    script = [sys.executable, "benchmarks/server/load.py", "--output", str(tmp_path / "load")]
    command = [*script, "--sessions", "6", "--steps", "3", "--abandoned", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))
    assert found["steps"] == 18 and found["steps_per_s"] > 0 and found["reaped_within_s"] > 0
    assert "| steps_per_s |" in (tmp_path / "load.md").read_text(encoding="utf-8")
