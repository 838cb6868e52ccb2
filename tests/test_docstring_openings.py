"""Docstrings open with the noun or the verb, not with a clause that puts it last."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = (
    "agentgym",
    "envs",
    "tools",
    "sandboxes",
    "trainers",
    "benchmarks",
    "examples",
    "docs/site",
    "tests/shared/testkit",
)
CLAUSE = re.compile(r"(What|Who|Whose|Whether|Where|How|Which|Why)\b")
SHOWN = ("agentgym/check/sandbox",)
"""Docstrings there are what a check says that a sandbox promises."""


def _modules() -> list[Path]:
    paths = {path.resolve() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return sorted(path for path in paths if not str(path.relative_to(ROOT)).startswith(SHOWN))


def openings(source: str) -> list[str]:
    """Return the docstrings of modules, classes and functions that open with a clause."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    found = [docstring for node in nodes if (docstring := ast.get_docstring(node))]
    return [docstring for docstring in found if CLAUSE.match(docstring)]


def test_no_docstring_opens_with_a_clause() -> None:
    modules = _modules()
    assert len(modules) > 400
    found = [f"{path.relative_to(ROOT)}: {said[:80]}" for path in modules for said in openings(path.read_text())]
    assert not found, "\n".join(found)


def test_a_clause_is_found() -> None:
    assert openings('def f():\n    """What it gives."""\n') == ["What it gives."]
    assert openings('def f():\n    """Return what it gives."""\n') == []
