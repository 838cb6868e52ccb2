"""``agentgym/BFCLSingle-v0``: the single-turn tasks of the Berkeley Function Calling Leaderboard, version 4, by AST."""

from __future__ import annotations

import functools
import importlib
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentgym.call_syntax import format_call, parse_words
from agentgym.canonical import canonical
from agentgym.env.env import Env
from agentgym.envs.adapters.bfcl_data import INSTALL, read_data, schema_of
from agentgym.errors import ResetNeededError, UsageError, require_extra, require_known
from agentgym.types import Message, Observation, Task, ToolCall, ToolSpec

CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
"""Categories with Python functions. Those with ``relevance`` in their name require no call, or any call."""
_MODEL_CONFIG = "bfcl_eval.constants.model_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleProblem:
    """One task: a request, functions, and the correct calls."""

    id: str
    category: str
    observation: Observation
    functions: Sequence[Mapping[str, Any]]
    """Functions in the format of the data, for the checker."""
    answers: Sequence[Mapping[str, Any]]
    """Accepted values of each argument, by function name, for each call; empty if no call is correct."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The functions as tools. Dots in names are replaced by underscores, as BFCL does for models that do not
        support dots.
        """
        return tuple(ToolSpec(_name(f["name"]), f["description"], schema_of(f["parameters"])) for f in self.functions)


class BFCLSingleEnv(Env):
    """Answer one request with the correct calls, or with none if no function fits.

    BFCL's own ``ast_checker`` grades: names, arguments and types must match, and values must be among the accepted
    ones. If no function fits (``irrelevance``), any message without a call is correct. A call that cannot be read is no
    such message, although BFCL counts it as one. In ``live_relevance``, any call is correct. The outcome is 1.0 or 0.0,
    and an episode is one message.

    Args:
        category: one of :data:`CATEGORIES`, or several.
        num_train: number of tasks of each category, from the start, for training, at most half; the others are the
            split test. The leaderboard uses all: ``num_train=0``.

    Raises:
        MissingExtraError: bfcl-eval is not installed.
    """

    takes_words: ClassVar[bool] = True
    max_turns = 1

    def __init__(
        self,
        *,
        category: str | Sequence[str] = "simple_python",
        num_train: int = 100,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        require_extra("agentgym/BFCLSingle-v0", "bfcl", "bfcl_eval", "mpmath", command=INSTALL)
        names = (category,) if isinstance(category, str) else tuple(category)
        for name in names:
            require_known("category of BFCL", name, CATEGORIES)
        if not names or num_train < 0:
            raise UsageError("category must name at least one, and num_train be at least 0")
        self._problems = {one.id: one for name in names for one in single_problems(name)}
        self._categories, self._num_train = names, num_train
        self._problem: SingleProblem | None = None
        self._verdict: bool | None = None
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        name = str(task.data.get("problem"))
        if name not in self._problems:
            raise UsageError(f"no task {name!r} in {', '.join(self._categories)}; take tasks from tasks(split)")
        self._problem, self._verdict = self._problems[name], None
        return self._problem.observation

    def respond(self, action: Message) -> str:
        problem = self._current()
        tools = {tool.name: tool for tool in problem.tools}
        calls = [call for call in action.calls if isinstance(call, ToolCall) and call.name in tools]
        if len(calls) < len(action.calls) or not all(_fits(call, tools[call.name]) for call in calls):
            self.refuse()  # a call is malformed, names no function, or has wrong arguments
        tries = not action.calls and bool(calls_in(action.text, problem))
        if tries:
            self.refuse()
        self._verdict = len(calls) == len(action.calls) and not tries and is_right_answer(problem, calls)
        self.finish(float(self._verdict))
        return "That is right." if self._verdict else "That is not right."

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Functions of the current task; before the first reset, those of the first task."""
        problem = self._problem or next(iter(self._problems.values()))
        return problem.tools

    @property
    def task_type(self) -> str:
        """Category of the task."""
        return self._current().category

    def tasks(self, split: str) -> Sequence[Task]:
        require_known("split of BFCL", split, ("train", "test"))
        chosen: list[str] = []
        for category in self._categories:
            names = [one.id for one in self._problems.values() if one.category == category]
            num_train = min(self._num_train, len(names) // 2)
            chosen += names[:num_train] if split == "train" else names[num_train:]
        return [Task(id=name, split=split, seed=0, data={"problem": name}) for name in chosen]

    def state_key(self) -> str:
        return canonical([self._current().id, self._verdict])

    def dump_state(self) -> bool | None:
        return self._verdict

    def load_state(self, state: bool | None) -> None:
        self._problem, self._verdict = self._problems[self.task.data["problem"]], state

    def oracle(self) -> Message:
        """Return calls with the first accepted values, any call if any is correct, or a message without calls."""
        problem = self._current()
        if problem.category.endswith("irrelevance"):
            return Message("assistant", "No function here can do that.")
        required = {tool.name: tool.parameters.get("required", ()) for tool in problem.tools}
        wanted = [(_name(name), arguments) for answer in problem.answers for name, arguments in answer.items()]
        calls = tuple(
            ToolCall(name, _first_right(arguments, required.get(name, ())), str(at))
            for at, (name, arguments) in enumerate(wanted)
        ) or (ToolCall(problem.tools[0].name, {}, "0"),)
        return Message("assistant", "\n".join(format_call(call, problem.tools) for call in calls), calls)

    def parse_action(self, text: str) -> Message:
        return parse_words(text, self.tools)

    # --------------------------------------------------------------------------------------------------- private

    def _current(self) -> SingleProblem:
        if self._problem is None:
            raise ResetNeededError(f"{self.env_id}: no task before reset()")
        return self._problem


def is_right_answer(problem: SingleProblem, calls: Sequence[ToolCall]) -> bool:
    """Return True if BFCL counts the calls as correct."""
    if problem.category.endswith("irrelevance"):
        return not calls
    if problem.category == "live_relevance":
        return bool(calls)
    output = [{call.name: dict(call.arguments)} for call in calls]
    checker, language = _checker()
    found = checker(list(problem.functions), output, list(problem.answers), language, problem.category, "agentgym")
    return bool(found["valid"])


_MARKUP = re.compile(
    r"<\|?(?:tool_call|function|invoke|python_tag|tool_code|action)\w*[=\s|>]|\[TOOL_CALLS?\]|functools\["
)


def calls_in(text: str, problem: SingleProblem) -> list[str]:
    """Return the beginnings of calls that stand in a text, where a policy's calls were not read as calls.

    Example:
        >>> functions = [{"name": "w"}]
        >>> asked = SingleProblem(id="0", category="irrelevance", observation=(), functions=functions, answers=())
        >>> calls_in('[w(city="Oslo")', asked), calls_in("w knows nothing of prices", asked)
        (['[w('], [])
    """
    names = "|".join(re.escape(name) for f in problem.functions for name in {f["name"], _name(f["name"])})
    written = rf"""^[\s\[`]*(?:{names})\s*\(|["'](?:name|function|tool)["']\s*:\s*["'](?:{names})["']"""
    return [found[0] for pattern in (_MARKUP, re.compile(written, re.MULTILINE)) for found in pattern.finditer(text)]


@functools.cache
def single_problems(category: str) -> tuple[SingleProblem, ...]:
    """Return the tasks of a category."""
    name = f"BFCL_v4_{category}.json"
    has_answers = "relevance" not in category
    answers = {row["id"]: row["ground_truth"] for row in read_data(f"possible_answer/{name}")} if has_answers else {}
    return tuple(
        SingleProblem(
            id=row["id"],
            category=category,
            observation=tuple(Message(said["role"], said["content"]) for said in row["question"][0]),
            functions=row["function"],
            answers=answers.get(row["id"], ()),
        )
        for row in read_data(name)
    )


@functools.cache
def _checker() -> tuple[Any, Any]:
    """Return BFCL's checker and its constant for Python.

    The checker's module imports the table of models, and with it the clients of a dozen providers, only to know whether
    a model writes underscores for dots. During the import, a fake table that says yes for all models replaces it.
    """
    table = types.ModuleType(_MODEL_CONFIG)
    table.__dict__["MODEL_CONFIG_MAPPING"] = _EveryModel()
    before = sys.modules.get(_MODEL_CONFIG)
    sys.modules[_MODEL_CONFIG] = before or table
    try:
        module: Any = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
        enums: Any = importlib.import_module("bfcl_eval.constants.enums")
    finally:
        if before is None:
            del sys.modules[_MODEL_CONFIG]
    return module.ast_checker, enums.Language.PYTHON


class _EveryModel(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return types.SimpleNamespace(underscore_to_dot=True)


def _fits(call: ToolCall, tool: ToolSpec) -> bool:
    """Return True if a call has all required arguments and no unknown ones."""
    known, required = set(tool.parameters.get("properties", {})), set(tool.parameters.get("required", ()))
    return required <= set(call.arguments) <= known


def _name(name: str) -> str:
    return re.sub(r"\.", "_", name)


def _first_right(arguments: Mapping[str, Sequence[Any]], required: Sequence[str]) -> dict[str, Any]:
    """Return the first accepted value of each argument. Optional arguments whose value is "" are left out."""
    chosen = {}
    for name, values in arguments.items():
        given = [value for value in values if value != ""] if name in required else values
        if given and given[0] != "":
            chosen[name] = _plain(given[0])
        elif name in required:
            chosen[name] = "" if values else []
    return chosen


def _plain(value: Any) -> Any:
    if isinstance(value, dict):  # accepted values by key
        return {key: _plain(some[0] if isinstance(some, list) else some) for key, some in value.items() if some != [""]}
    return [_plain(item) for item in value] if isinstance(value, list) else value
