"""``agentgym/BFCL-v0``: the multi-turn tasks of the Berkeley Function Calling Leaderboard, version 4."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from agentgym.call_syntax import format_call, parse_words
from agentgym.canonical import canonical, digest
from agentgym.env.env import Env
from agentgym.envs.adapters.bfcl_data import CATEGORIES, INSTALL, Problem, begin, call_of, functions_of, problems
from agentgym.errors import ResetNeededError, ToolError, UsageError, error_text, require_extra, require_known
from agentgym.tool import error_result, result_of, unknown_tool
from agentgym.types import Call, MalformedCall, Message, Observation, Task, ToolCall, ToolSpec

Category = Literal["base", "miss_func", "miss_param", "long_context"]

_CLASSES = ("GorillaFileSystem", "MathAPI", "MessageAPI", "TwitterAPI", "TicketAPI", "TradingBot", "TravelAPI",
            "VehicleControlAPI")  # fmt: skip
_MORE_FUNCTIONS = "There are more functions now; these can be called as well:"
_DONE = "Done."
_NO_STATE = frozenset({"_random", "_api_description", "_last_modified"})
"""Private attributes that are not part of the state: a random generator, a text, and a time stamp."""
_LARGEST = 10**15
_LARGEST_BY_NAME: Mapping[str, int] = {"precision": 1000, "exponent": 1000}


class BFCLEnv(Env):
    """A user makes requests turn by turn, and the agent calls functions of stateful APIs.

    A message without a call ends the user's turn.

    Grading follows BFCL (``multi_turn_checker``). After each of the user's turns, the public attributes of every API
    must equal those after the gold calls, and the results so far must contain the results of the turn's gold calls. The
    outcome is 1.0 if all turns pass; the episode ends with 0.0 at the first turn that fails. A turn without anything to
    do (a function or a value is missing) is not graded. As in BFCL, functions that are not offered can still be called;
    one gold answer does.

    Args:
        category: ``base``, ``miss_func`` (functions come later), ``miss_param`` (a value comes later), or
            ``long_context`` (much more data).
        num_train: number of the 200 tasks, from the start, for training; the others are the split test. The leaderboard
            uses all: ``num_train=0``.
        max_steps: most messages with calls in one of the user's turns; BFCL's limit is 20.
        max_turns: turns after which the episode is truncated; by default only ``max_steps`` limits it.

    Raises:
        MissingExtraError: bfcl-eval is not installed.
    """

    takes_words: ClassVar[bool] = True

    def __init__(
        self,
        *,
        category: Category = "base",
        num_train: int = 100,
        max_steps: int = 20,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        require_extra("agentgym/BFCL-v0", "bfcl", "bfcl_eval", "mpmath", command=INSTALL)
        require_known("category of BFCL", category, CATEGORIES)
        self._problems = problems(category)
        if not 0 <= num_train <= len(self._problems):
            raise UsageError(f"num_train must be from 0 to {len(self._problems)}, got {num_train}")
        self._category, self._num_train, self._max_steps = category, num_train, max_steps
        self._checker: Any = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
        self._problem: Problem | None = None
        self._world = _World({}, {})
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        name = str(task.data.get("problem"))
        if name not in self._problems:
            raise UsageError(f"no task {name!r} in BFCL's category {self._category}; take tasks from tasks(split)")
        self._problem = self._problems[name]
        self._world = _World(begin(self._problem), begin(self._problem))
        return self._problem.requests[0]

    def respond(self, action: Message) -> str | Observation:
        if not action.calls:
            return self._end_users_turn()
        self._world.num_steps += 1
        said = tuple([self._answer(call) for call in action.calls])
        if self._world.num_steps > self._max_steps:
            self.finish(0.0)
        return said

    def _answer(self, call: Call) -> Message:
        try:
            if isinstance(call, MalformedCall):
                raise ToolError(f"could not read the call {call.text!r}: {call.reason}", "malformed_call")
            if not any(call.name in functions_of(owner) for owner in self._current().classes):
                raise unknown_tool(call.name, list(self._offered()))
            _check_size(call)
            result = result_of(call, _run(self._world.instances, call, self._world.said))
        except ToolError as error:
            self.refuse()
            result = error_result(error, *((call.name, call.id) if isinstance(call, ToolCall) else ()))
        self._world.has_called = True
        return Message("tool", result.content, (), result)

    def _end_users_turn(self) -> str:
        problem, world = self._current(), self._world
        if not self._turn_is_right(problem, world):
            self.finish(0.0)
            return "That is not what was asked for."
        world.users_turn += 1
        world.num_steps, world.has_called = 0, False
        if world.users_turn == len(problem.requests):
            self.finish(1.0)
            return "Thank you, that is all."
        request = problem.requests[world.users_turn]
        added = problem.added.get(world.users_turn, ())
        if not added:
            return request
        told = json.dumps([self._offered()[name].as_function()["function"] for name in added])
        return f"{_MORE_FUNCTIONS}\n{told}\n{request}".rstrip()

    def _turn_is_right(self, problem: Problem, world: _World) -> bool:
        """Return True if BFCL's ``multi_turn_checker`` accepts a turn."""
        gold: list[str] = []
        for text in problem.answers[world.users_turn]:
            _run(world.gold, call_of(text, world.gold), gold)
        if not gold:
            return True
        is_same = self._checker.state_checker(world.instances, world.gold)["valid"]
        is_said = self._checker.response_checker(world.said, gold, world.users_turn)["valid"]
        return bool(world.has_called and is_same and is_said)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Functions that the current task offers at its start; all functions before the first reset."""
        return tuple(self._offered(at_start=True).values())

    def tasks(self, split: str) -> Sequence[Task]:
        require_known("split of BFCL", split, ("train", "test"))
        names = list(self._problems)
        chosen = names[: self._num_train] if split == "train" else names[self._num_train :]
        return [Task(id=name, split=split, seed=0, data={"problem": name}) for name in chosen]

    def state_key(self) -> str:
        """Return a key of the user's turn, the state of every API, and the gold results obtained so far."""
        problem, world = self._current(), self._world
        things = [[name, _plain(world.instances[name], {})] for name in sorted(world.instances)]
        said = sorted((Counter(world.said) & self._gold_said(problem)).elements())
        return canonical([problem.id, world.users_turn, world.has_called, digest(things), digest(said)])

    def oracle(self) -> Message:
        """Return the gold calls of the user's turn, then a message that ends the turn."""
        world = self._world
        answers = self._current().answers[world.users_turn]
        if world.has_called or not answers:
            return Message("assistant", _DONE)
        calls = [call_of(text, world.instances) for text in answers]
        numbered = tuple(ToolCall(call.name, call.arguments, str(index)) for index, call in enumerate(calls))
        tools = tuple(self._offered().values())
        return Message("assistant", "\n".join(format_call(call, tools) for call in numbered), numbered)

    def parse_action(self, text: str) -> Message:
        return parse_words(text, tuple(self._offered().values()))

    def dump_state(self) -> _World:
        return copy.deepcopy(self._world)

    def load_state(self, state: _World) -> None:
        self._problem = self._problems[self.task.data["problem"]]
        self._world = copy.deepcopy(state)

    # --------------------------------------------------------------------------------------------------- private

    def _current(self) -> Problem:
        if self._problem is None:
            raise ResetNeededError(f"{self.env_id}: no task before reset()")
        return self._problem

    def _offered(self, at_start: bool = False) -> Mapping[str, ToolSpec]:
        problem = self._problem
        classes = _CLASSES if problem is None else problem.classes
        offered = {name: spec for owner in classes for name, spec in functions_of(owner).items()}
        if problem is None:
            return offered
        turn = 0 if at_start else self._world.users_turn
        late = {name for since, names in problem.added.items() if since > turn for name in names}
        return {name: spec for name, spec in offered.items() if name not in late}

    def _gold_said(self, problem: Problem) -> Counter[str]:
        if self._world.gold_said is None:
            world: dict[str, Any] = begin(problem)
            said: list[str] = []
            for text in (text for turn in problem.answers for text in turn):
                _run(world, call_of(text, world), said)
            self._world.gold_said = Counter(said)
        return self._world.gold_said


class _World:
    """The APIs after the agent's calls and after the gold calls."""

    def __init__(self, instances: dict[str, Any], gold: dict[str, Any]) -> None:
        self.instances = instances
        self.gold = gold
        self.said: list[str] = []
        """All results so far."""
        self.users_turn = 0
        self.num_steps = 0
        self.has_called = False
        """True if the agent has made a call in this turn of the user."""
        self.gold_said: Counter[str] | None = None


def _run(instances: Mapping[str, Any], call: ToolCall, said: list[str]) -> str:
    """Call a function and record its result in the text form in which BFCL compares results."""
    method = next(getattr(instance, call.name) for instance in instances.values() if hasattr(instance, call.name))
    try:
        inspect.signature(method).bind(**call.arguments)
        result = method(**copy.deepcopy(dict(call.arguments)))
        text = result if isinstance(result, str) else _as_text(result)
    except Exception as error:  # APIs do not check arguments and often raise; BFCL shows the error to the model
        said.append(f"Error during execution: {error}")
        raise ToolError(error_text(error)) from None
    said.append(text)
    return text


def _as_text(result: Any) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except TypeError:
            pass
    return str(result)


def _check_size(call: ToolCall) -> None:
    """Raise an error for numbers that no task needs and whose computation would never end."""
    for name, value in call.arguments.items():
        most = _LARGEST_BY_NAME.get(name, _LARGEST)
        if isinstance(value, int | float) and abs(value) > most:
            raise ToolError(f"{name} is beyond {most}", "invalid_arguments")


def _plain(value: Any, seen: dict[int, int]) -> Any:
    """Return an API's state as plain values. A repeated object is replaced by the index of its first occurrence."""
    if isinstance(value, dict):
        return {str(key): _plain(item, seen) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple):
        return [_plain(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if not hasattr(value, "__dict__"):
        return repr(value)
    if id(value) in seen:
        return ["met", seen[id(value)]]
    seen[id(value)] = len(seen)
    state = {name: item for name, item in vars(value).items() if name not in _NO_STATE}
    return [type(value).__name__, _plain(state, seen)]
