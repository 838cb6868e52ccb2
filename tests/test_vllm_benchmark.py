"""The embedded engine beside vLLM, at a tiny size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

PYTHON = os.environ.get("AGENTGYM_VLLM_PYTHON", "")


@pytest.mark.vllm
@pytest.mark.skipif(not PYTHON, reason="needs AGENTGYM_VLLM_PYTHON")
def test_engine_and_vllm_sample_the_same_number_of_tokens(tmp_path: Path, warm_run: Callable[..., str]) -> None:
    sizes = ["--models", "0.8M", "--batch-sizes", "2", "--rounds", "1", "--new-tokens", "4"]
    output = tmp_path / "results.json"
    warm_run("benchmarks/torch_engine/beside_vllm.py", *sizes, "--output", output)
    results = json.loads(output.read_text(encoding="utf-8"))
    (row,) = results["models"]["0.8M"]
    assert row["batch_size"] == 2 and row["engine_tokens_per_s"] > 0 and row["vllm_tokens_per_s"] > 0
    assert results["vllm"]
