"""The scripts of examples/ run, and the one that trains learns."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_one_that_can_be_read() -> None:
    assert len((FOLDER / "train_grpo.py").read_text(encoding="utf-8").splitlines()) < 300


@pytest.mark.slow
def test_grpo_on_one_page_learns() -> None:
    torch.set_num_threads(1)
    before, after = asyncio.run(load("train_grpo").train(num_steps=30, num_eval=200, seed=0))
    assert after > before + 0.08
