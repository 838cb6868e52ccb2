"""Load single functions from a checkout of released code, without installing or importing the rest of it.

Releases import Ray, vLLM and whole trainers at the top of the file that holds twenty lines of formula. So a named
function or class is cut out of the file by its syntax tree and run in a namespace that the caller fills.
"""

from __future__ import annotations

import ast
import subprocess
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Release:
    """Released code that a component is compared with."""

    repository: str
    """``owner/name`` on GitHub."""
    commit: str
    """The commit that results were measured at."""

    def folder(self, root: Path) -> Path:
        """Return this release's checkout below ``root``: ``root/owner+name``."""
        return root / self.repository.replace("/", "+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Comparison of one component with the released code on random inputs."""

    component: str
    """Name in ``agentgym list --credit``."""
    release: Release
    file: str
    """File of the release that holds the code."""
    largest_gap: Callable[[Path, np.random.Generator], float]
    """Draw one random input, run both on it, and return the largest absolute difference of their outputs.

    The first argument is the checkout's folder. The input should reach the edge cases too: ties, constant groups,
    groups of one, episodes of one turn.
    """
    variant: str = ""
    """Settings, where one component has several cases."""
    explained: str = ""
    """Reason for a deliberate difference; empty if the two must be equal."""


def load(path: Path, *names: str, namespace: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Cut functions, classes and assignments out of a file and run them in one namespace.

    Args:
        path: file of the release.
        names: top-level names, or ``Class.method`` for a method as a plain function.
        namespace: what the code needs (``np``, ``torch``, stubs of its helpers).

    Returns:
        the namespace after running the code; ``Class.method`` is found under ``method``.

    Raises:
        LookupError: the file holds no such name.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {name: node for name, node in _definitions(tree)}
    if missing := [name for name in names if name not in found]:
        raise LookupError(f"{path} has no {', '.join(missing)}; is the checkout at the commit that the case names?")
    scope: dict[str, Any] = dict(namespace or {})
    for name in names:
        node = found[name]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = []  # decorators register the function or put it on another machine
        for part in ast.walk(node):
            _drop_annotations(part)
        module = ast.Module(body=[node], type_ignores=[])
        exec(compile(ast.fix_missing_locations(module), str(path), "exec"), scope)
    return scope


def run_lines(path: Path, start: str, stop: str, scope: dict[str, Any], *, within: str = "") -> dict[str, Any]:
    """Run some lines from the middle of a function, for formulas that have no function of their own.

    Args:
        path: file of the release.
        start: beginning of the first line to run, without indentation.
        stop: beginning of the first line after ``start`` not to run.
        scope: the variables that the lines read; what they assign is added.
        within: beginning of an earlier line to look for first, such as ``def compute_loss``.

    Raises:
        LookupError: the file holds no such lines.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    at = _find(lines, within, 0, path) if within else 0
    first = _find(lines, start, at, path)
    last = _find(lines, stop, first + 1, path)
    exec(compile(textwrap.dedent("\n".join(lines[first:last])), str(path), "exec"), scope)
    return scope


def _find(lines: list[str], beginning: str, at: int, path: Path) -> int:
    for number in range(at, len(lines)):
        if lines[number].strip().startswith(beginning):
            return number
    raise LookupError(f"{path} has no line {beginning!r}; is the checkout at the commit that the case names?")


def commit_of(folder: Path) -> str:
    """Return the short commit of a checkout, or what its file ``COMMIT`` says if it was unpacked without git.

    It is ``unknown`` if there is neither.
    """
    if (folder / "COMMIT").is_file():
        return (folder / "COMMIT").read_text(encoding="utf-8").strip()[:7]
    command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def gap(ours: Any, theirs: Any) -> float:
    """Return the largest absolute difference of two arrays; infinite where shapes differ or one alone is finite."""
    one, other = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if one.shape != other.shape:
        return float("inf")
    if not one.size:
        return 0.0
    both_nan = np.isnan(one) & np.isnan(other)
    equal = both_nan | (one == other)  # also equal infinities
    with np.errstate(invalid="ignore"):
        difference = np.where(equal, 0.0, np.abs(one - other))
    return float(np.where(np.isnan(difference), np.inf, difference).max())


def _definitions(tree: ast.Module) -> list[tuple[str, ast.stmt]]:
    found: list[tuple[str, ast.stmt]] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append((node.name, node))
        if isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
            found += [(f"{node.name}.{part.name}", part) for part in methods]
        if isinstance(node, ast.Assign):
            found += [(target.id, node) for target in node.targets if isinstance(target, ast.Name)]
    return found


def _drop_annotations(node: ast.AST) -> None:
    """Remove annotations, since they name classes that the namespace lacks."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node.returns = None
    if isinstance(node, ast.arg):
        node.annotation = None
