"""The measurement of OpenEnv's server runs, at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="needs the package openenv-core (the extra openenv)")
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "server" / "openenv_load.py"


def test_its_load_is_measured() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "4", "3", "0.1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 12 and found["steps_per_s"] > 0 and found["silent_reaped"] == 0
