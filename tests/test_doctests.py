"""The examples in docstrings."""

import asyncio
import doctest
import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "agentgym"
NEEDS = {"trainers": "torch", "server": "fastapi"}
"""Modules whose folder needs an extra."""


def module_names() -> list[str]:
    """Every module that has an example, found by its text: importing all to look would take seconds."""
    names = []
    for folder in (PACKAGE, *(path for path in PACKAGE.iterdir() if path.is_symlink())):
        for path in folder.rglob("*.py"):
            if ">>> " in path.read_text(encoding="utf-8"):
                names.append(".".join(("agentgym", *path.relative_to(PACKAGE).with_suffix("").parts)))
    # of benchmarks/simulator and benchmarks/render, which pytest has on its path
    names += ["simulator", "traces", "virtual_time", "mutations", "random_calls"]
    return sorted(set(names))


@pytest.mark.parametrize("name", module_names())
def test_examples(name: str) -> None:
    needed = NEEDS.get(name.split(".")[1] if "." in name else name)
    if needed is not None:
        pytest.importorskip(needed)
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    try:
        result = doctest.testmod(module, optionflags=flags, extraglobs={"np": np, "asyncio": asyncio})
    except KeyboardInterrupt as error:  # doctest lets it through, and it would end the whole test run
        pytest.fail(f"an example of {name} raises {type(error).__name__}, which doctest cannot expect: {error}")
    assert any(found.examples for found in doctest.DocTestFinder().find(module))  # else no one finds them
    assert result.failed == 0
