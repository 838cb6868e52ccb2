"""The process that runs reasoning-gym for one environment; see :mod:`agentgym.envs.adapters.reasoning_gym`.

Requests: ``names``, ``problem`` (data set, settings, seed), ``score`` (the same and an answer). Some generators seed
numpy's global generator. Some verifiers pass the answer to ``eval``, or to sympy's parser, which calls ``eval``. An
answer could then be a program that finds the correct one, so here they accept only literals and arithmetic.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
from types import BuiltinFunctionType
from typing import Any

from agentgym.envs.adapters.worker_main import serve

_EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
"""Modules whose verifiers evaluate answers as Python code."""
_PARSING = ("games.countdown", "games.puzzle24")
"""Modules that import sympy's parser by name. (Others call ``sympy.parse_expr``.)"""

_HARMLESS = frozenset({"abs", "max", "min", "pow", "round", "sum", "divmod"})
_BUILTINS = frozenset(name for name, value in vars(builtins).items() if isinstance(value, BuiltinFunctionType | type))
_NO_ARITHMETIC = re.compile(r"""__|['"\[\]{}:;=\\]|\.\s*[A-Za-z_]""")
_WORD = re.compile(r"[^\W\d]\w*")
_NUM_PROBLEMS = 4


class Library:
    """reasoning-gym with verifiers that execute no code in answers."""

    def __init__(self) -> None:
        self._gym: Any = importlib.import_module("reasoning_gym")
        self._datasets: dict[str, Any] = importlib.import_module("reasoning_gym.factory").DATASETS
        for name in _EVALUATING:
            vars(importlib.import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
        sympy: Any = importlib.import_module("sympy")
        sympy.parse_expr = _arithmetic_alone(sympy.parse_expr)
        for name in _PARSING:
            vars(importlib.import_module(f"reasoning_gym.{name}"))["parse_expr"] = sympy.parse_expr
        self._posed = functools.lru_cache(_NUM_PROBLEMS)(self._pose)

    def names(self) -> dict[str, Any]:
        """Return the names of all data sets."""
        return {"names": sorted(self._datasets)}

    def problem(self, dataset: str, config: dict[str, Any], seed: int) -> dict[str, Any]:
        """Return a problem and its answer."""
        if dataset not in self._datasets:
            return {"known": sorted(self._datasets)}
        try:
            _, entry = self._posed(dataset, repr(config), seed)
        except (TypeError, AssertionError, ValueError) as error:
            return {"refused": f"{type(error).__name__}: {error}"}
        answer = entry["answer"]
        return {
            "question": entry["question"],
            "answer": None if answer is None else str(answer),
            "config": config,
            "seed": seed,
        }

    def score(self, dataset: str, config: dict[str, Any], seed: int, answer: str | None) -> dict[str, Any]:
        """Score an answer with the data set's verifier."""
        made, entry = self._posed(dataset, repr(config), seed)
        return {"score": float(made.score_answer(answer, entry))}

    def _pose(self, dataset: str, config: str, seed: int) -> tuple[Any, dict[str, Any]]:
        made = self._gym.create_dataset(dataset, **{**ast.literal_eval(config), "seed": seed, "size": 1})
        return made, made[0]


def _arithmetic_alone(parse: Any) -> Any:
    """Return a version of sympy's parser that accepts numbers, symbols and sympy's functions, but no attributes or
    builtins.
    """

    @functools.wraps(parse)
    def parse_expr(text: Any, *args: Any, **kwargs: Any) -> Any:
        words = set(_WORD.findall(text)) if isinstance(text, str) else set()
        if isinstance(text, str) and (_NO_ARITHMETIC.search(text) or words & _BUILTINS - _HARMLESS):
            raise ValueError("an expression holds numbers, symbols and functions of mathematics alone")
        return parse(text, *args, **kwargs)

    return parse_expr


if __name__ == "__main__":
    serve(Library)
