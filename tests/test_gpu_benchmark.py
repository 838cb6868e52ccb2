"""The script for machines with a GPU runs as a whole on a CPU, so that a lent one is not spent on its slips."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu" / "engine.py"


@pytest.mark.slow
def test_it_measures_all_its_parts(tmp_path: Path) -> None:
    out = tmp_path / "engine.json"
    small = ["--device", "cpu", "--shapes", "tiny", "--batch", "1", "3", "--new-tokens", "8", "--copy-mb", "8"]
    overrides = ["num_steps=2", "engine.decode=fixed", "engine.dtype=bfloat16"]
    run = ["--recipe", "household-smoke", "--out", str(out), "--overrides", *overrides]
    subprocess.run([sys.executable, str(SCRIPT), *small, *run], check=True, cwd=SCRIPT.parents[2])
    result = json.loads(out.read_text())
    assert [(row["shape"], row["batch"]) for row in result["engine"]] == [("tiny", 1), ("tiny", 3)]
    assert all(row[name] > 0 for row in result["engine"] for name in ("fixed", "ragged", "bandwidth_limit"))
    assert len(result["run"]["success"]) == 2
    assert result["run"]["success_after"] is not None
    assert result["vllm"] == "vLLM is not installed here"
