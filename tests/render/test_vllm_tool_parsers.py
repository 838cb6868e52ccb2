"""Our tool-call formats read what vLLM's tool parsers read; ``make test-vllm`` runs this with vLLM's environment."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "parity"))

PYTHON = os.environ.get("AGENTGYM_VLLM_PYTHON", "")
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not PYTHON, reason="needs vLLM's environment: make test-vllm")]


def test_every_difference_is_explained() -> None:
    tool_parsers = importlib.import_module("tool_parsers")
    results = tool_parsers.compare(num_cases=12, seed=5)
    assert [row["cases"] for row in results["rows"]] == [12] * len(tool_parsers.ROWS)
    assert tool_parsers.unexplained(results) == []
    assert sum(row["equal"] for row in results["rows"]) > 0.8 * 12 * len(tool_parsers.ROWS)
