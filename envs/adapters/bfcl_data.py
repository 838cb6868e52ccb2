"""BFCL's multi-turn data and API classes, as its package ``bfcl-eval`` carries them.

Source: "The Berkeley Function Calling Leaderboard (BFCL): From Tool Use to Agentic Evaluation of Large Language
Models"; ShishirPatil/gorilla, Apache-2.0. Of the package only the data, the API classes and the checker's pure
functions are used, which need none of its dependencies but mpmath.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import MissingExtraError
from agentgym.types import ToolCall, ToolSpec

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 && pip install mpmath"

_JSON_TYPES: Mapping[str, str] = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One multi-turn task of BFCL.

    The data also name functions under ``excluded_function``, for 18 tasks of each category. BFCL's own code never reads
    that key and offers them, so they are offered here.
    """

    id: str
    requests: Sequence[str]
    """The user's message of each turn; empty if the turn only adds functions."""
    answers: Sequence[Sequence[str]]
    """The gold calls of each turn, as Python."""
    classes: Sequence[str]
    config: Mapping[str, Any]
    """Initial state of each class."""
    added: Mapping[int, Sequence[str]]
    """Functions that are offered only from a turn on."""

    @property
    def has_long_context(self) -> bool:
        """True if the task belongs to the category ``long_context``."""
        return "long_context" in self.id


@functools.cache
def problems(category: str) -> Mapping[str, Problem]:
    """The tasks of a category by id."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    answers = {entry["id"]: entry["ground_truth"] for entry in read_data(f"possible_answer/{name}")}
    return {entry["id"]: _problem(entry, answers[entry["id"]]) for entry in read_data(name)}


@functools.cache
def functions_of(class_name: str) -> Mapping[str, ToolSpec]:
    """The functions of an API class as tools, by name."""
    constants: Any = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    docs = read_data(f"multi_turn_func_doc/{constants.MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]}")
    return {doc["name"]: ToolSpec(doc["name"], doc["description"], schema_of(doc["parameters"])) for doc in docs}


def begin(problem: Problem) -> dict[str, Any]:
    """Return new instances of a task's classes, by class name."""
    constants: Any = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    made = {}
    for name in problem.classes:
        instance = getattr(importlib.import_module(constants.CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in constants.STATELESS_CLASSES:
            config = copy.deepcopy(problem.config.get(name, {}))
            instance._load_scenario(config, long_context=problem.has_long_context)
        made[name] = instance
    return made


def call_of(text: str, instances: Mapping[str, Any]) -> ToolCall:
    """Parse a gold call into a tool call with named arguments.

    Example:
        >>> class Files:
        ...     def move(self, source, destination): ...
        >>> call_of("move('a', destination='b')", {"Files": Files()})
        ToolCall(name='move', arguments={'source': 'a', 'destination': 'b'}, id='')
    """
    node = ast.parse(text.strip(), mode="eval").body
    assert isinstance(node, ast.Call)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    method = next(getattr(instance, name) for instance in instances.values() if hasattr(instance, name))
    given = [ast.literal_eval(value) for value in node.args]
    arguments = dict(zip(inspect.signature(method).parameters, given, strict=False))
    return ToolCall(name, {**arguments, **{item.arg or "": ast.literal_eval(item.value) for item in node.keywords}})


def _problem(entry: Mapping[str, Any], answers: Sequence[Sequence[str]]) -> Problem:
    return Problem(
        id=entry["id"],
        requests=tuple("\n".join(message["content"] for message in turn) for turn in entry["question"]),
        answers=tuple(tuple(turn) for turn in answers),
        classes=tuple(entry["involved_classes"]),
        config=entry["initial_config"],
        added={int(turn): tuple(names) for turn, names in entry.get("missed_function", {}).items()},
    )


def read_data(name: str) -> list[dict[str, Any]]:
    """Return the rows of a data file in BFCL's package."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise MissingExtraError("agentgym/BFCL-v0", "bfcl", INSTALL)
    text = (Path(spec.origin).parent / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def schema_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert BFCL's schema to JSON schema by replacing its type names."""
    schema = {key: value for key, value in given.items() if key not in ("type", "properties", "items")}
    kind = given.get("type", "string")
    schema["type"] = _JSON_TYPES.get(kind, kind)
    if "properties" in given:
        schema["properties"] = {name: schema_of(value) for name, value in given["properties"].items()}
    elif schema["type"] == "object":
        schema["properties"] = {}
    if "items" in given:
        schema["items"] = schema_of(given["items"])
    return schema
