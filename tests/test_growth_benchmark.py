"""The benchmark of growth runs at a tiny size, and finds the exponent of a curve whose exponent is known."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "growth" / "measure.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("growth", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["growth"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_is_that_of_the_upper_half(power: float) -> None:
    sizes = [1, 2, 4, 8, 16, 32]
    seconds = [5.0, 5.0, 5.0, *(0.1 * size**power for size in sizes[3:])]
    assert load().exponent(sizes, seconds) == pytest.approx(power)


@pytest.mark.slow
def test_all_curves_are_measured_at_a_tiny_size(warm_run: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    warm_run(SCRIPT, "--tiny", "--rounds", "1", "--steps", "1", "--output", tmp_path / "out")
    curves = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["curves"]
    assert len(curves) == 9
    # of ranks a difference of two runs is measured, which a busy machine may make negative
    assert all(value > 0 for curve in curves[:-1] for value in curve["processor_s"])
    table = (tmp_path / "out.md").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("| ") for line in table) == 1 + len(curves)
    assert "</svg>" in (tmp_path / "out.svg").read_text(encoding="utf-8")
