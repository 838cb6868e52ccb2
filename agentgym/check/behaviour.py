"""Checks of rewards by policy: an idle, a random or a hostile policy gains nothing."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nan

import numpy as np

from agentgym.check.contract import free_texts
from agentgym.check.episodes import ON_TURN, brief, noop, play, step_limit
from agentgym.check.first_turns import FirstTurns
from agentgym.check.outages import retried
from agentgym.check.policies import random_action
from agentgym.check.report import CheckFailed
from agentgym.check.sandbox.adversary import SIGNAL_ALL, attempts
from agentgym.check.subject import Subject, played
from agentgym.env.env import Env
from agentgym.errors import ToolError, error_text
from agentgym.json_schema.reading import properties, required
from agentgym.sandbox import Sandbox
from agentgym.tool import CONTROL_VERBS, random_call
from agentgym.types import MalformedCall, Message, Task, ToolCall, ToolSpec

_MOST_ADMISSIBLE = 20
# random episodes per requested episode: more, since a single failure among them passes the check
_RANDOM_PER_EPISODE = 4
_SPEED_S = 0.2

_ODD_TEXTS = (
    "",
    " \n\t ",
    "\x00\x1b[2J\x7f",
    "\U0001f469\u200d\U0001f692 \u202egnp\u202c e\u0301\u0301\u0301 \ufeff\uffff",
    "\ud800 half of a surrogate pair",
    "{" * 2000,
    "a" * 100_000,
)
_ODD_NAMES = (
    "no_such_tool",
    "",
    "\u202e",
    "\ud800",
    "x" * 10_000,
    "__init__",
    "start",
    "finish",
    *sorted(CONTROL_VERBS),
)
_ODD_VALUES: tuple[object, ...] = (
    None,
    [],
    {},
    [[["a"]]],
    {"a": {"b": None}},
    10**30,
    -(10**30),
    nan,
    inf,
    *_ODD_TEXTS,
)


def _admissible(subject: Subject) -> str:
    """Return a remark on admissible actions that are refused at the start of an episode; empty if there are none.

    Raises:
        CheckFailed: the environment refuses all that it lists.
    """
    refused: list[str] = []
    num_tried = 0
    with contextlib.closing(subject.factory()) as env:
        for task in subject.tasks():
            env.reset(options={"task": task})
            for text in env.admissible_actions()[:_MOST_ADMISSIBLE]:
                num_tried += 1
                refused += [] if retried(partial(_is_taken, env, task, text)) else [text]
    if not refused:
        return ""
    if len(refused) == num_tried:
        raise CheckFailed(
            f"admissible_actions() lists {refused[0]!r}, and the environment refuses it, as all the others"
        )
    return f"; {len(refused)} of {num_tried} admissible actions are refused at the start, as {refused[0]!r}"


def _is_taken(env: Env, task: Task, text: str) -> bool:
    env.reset(options={"task": task})
    ON_TURN.get()(1)
    try:
        *_, info = env.step(env.parse_action(text))
    except ToolError:
        return False
    return bool(info.get("is_valid", True))


def _refused_later(num_refused: int, num_listed: int) -> str:
    """Return a remark on admissible actions that are refused after the first turn; empty if there are none.

    Raises:
        CheckFailed: all are refused.
    """
    if not num_refused:
        return ""
    if num_refused == num_listed:
        raise CheckFailed(f"after the first turn all {num_listed} actions of admissible_actions() were refused")
    return f"; {num_refused} of {num_listed} admissible actions were refused after the first turn"


def noop_policy(subject: Subject) -> str:
    """Check that a policy that does nothing never succeeds."""
    for episode in list(played(subject, noop, subject.tasks())):
        if episode.is_success:
            raise CheckFailed(f"task {episode.task.id}: doing nothing succeeds after {len(episode.steps)} turns")
    return f"0 of {subject.num_episodes} episodes succeed"


def random_policy(subject: Subject) -> str:
    """Check that a random policy does not succeed on every task, and that listed actions are not all refused."""
    remark = _admissible(subject)
    num_listed = num_refused = 0
    most_episodes = _RANDOM_PER_EPISODE * subject.num_episodes
    num_successes, has_effect = 0, False
    with contextlib.closing(played(subject, random_action, subject.tasks(most_episodes))) as found:
        for number, episode in enumerate(found, 1):
            num_successes += episode.is_success
            has_effect = (
                has_effect or len(set(episode.state_keys)) > 1 or any(step.reward > 0 for step in episode.steps)
            )
            later = [step for step in episode.steps[1:] if step.is_listed]
            num_listed += len(later)
            num_refused += sum(not step.info["is_valid"] for step in later)
            if num_successes < number >= subject.num_episodes:
                remark = remark or _refused_later(num_refused, num_listed)
                told = f"{num_successes} of {number} episodes succeed" + ("" if has_effect else _blind(subject))
                return f"warning: {told}{remark}" if remark else told
    raise CheckFailed(f"random actions succeed in {num_successes} of {most_episodes} episodes")


def _blind(subject: Subject) -> str:
    """Return a remark on free-text arguments that random words rarely fit, so that random episodes test little."""
    with contextlib.closing(subject.factory()) as env:
        free = [f"{spec.name}.{name}" for spec in env.tools for name in free_texts(spec.parameters)]
    if not free:
        return ""
    return (
        f"; random calls never changed the state, because they rarely guess {', '.join(free)}. Name the choices by "
        "Literal['...'], which the model sees too, or list possible calls in admissible_actions()"
    )


def hostile_actions(subject: Subject) -> str:
    """Check that malformed and absurd actions raise no error, earn nothing, and count as invalid if they cannot run."""
    task = subject.tasks(1)[0]
    num_actions = 0
    with contextlib.closing(subject.factory()) as env:
        start = FirstTurns(env, task)
        for text in _ODD_TEXTS:
            env.parse_action(text)
        for hostile in _hostile(env, subject.rng(8)):
            _check_hostile(start, hostile)
            num_actions += 1
    return f"{num_actions} actions"


def speed(subject: Subject) -> str:
    """Report the steps per second. This check always passes."""
    rng, task = subject.rng(9), subject.tasks(1)[0]
    num_steps, spent_s = 0, 0.0
    with contextlib.closing(subject.factory()) as env:
        while num_steps == 0 or spent_s < _SPEED_S:
            began = time.perf_counter()
            num_steps += len(play(env, random_action, task, rng).steps)
            spent_s += time.perf_counter() - began
    return f"{num_steps / spent_s:.0f} steps per second with a random policy, resets included"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hostile:
    action: Message
    is_impossible: bool = False
    """True if the environment must count the turn as invalid."""
    plain: ToolCall | None = None
    """Valid call that the action was derived from; a lenient environment may pay the reward of that call."""


def _hostile(env: Env, rng: np.random.Generator) -> Iterator[_Hostile]:
    for text in _ODD_TEXTS:
        yield _Hostile(action=Message("assistant", text))
    if not env.tools:
        return
    yield _Hostile(action=_calls(MalformedCall((0, 4), "not JSON", "{{{{")), is_impossible=True)
    for name in set(_ODD_NAMES) - {spec.name for spec in env.tools}:
        yield _Hostile(action=_calls(ToolCall(name, {})), is_impossible=True)
    for spec in env.tools:
        yield from _hostile_arguments(spec, rng)


def _hostile_arguments(spec: ToolSpec, rng: np.random.Generator) -> Iterator[_Hostile]:
    call = random_call(spec, rng)

    def other(arguments: dict[str, object], is_impossible: bool = False) -> _Hostile:
        return _Hostile(action=_calls(ToolCall(spec.name, arguments)), is_impossible=is_impossible, plain=call)

    yield other({**call.arguments, "no_such_parameter": 1})
    yield other({**call.arguments, "\ud800": 1})
    root = spec.parameters
    for missing in required(root, root):
        yield other({name: value for name, value in call.arguments.items() if name != missing}, is_impossible=True)
    for name in properties(root, root):
        for value in _ODD_VALUES:
            yield other({**call.arguments, name: value})


def _calls(*calls: ToolCall | MalformedCall) -> Message:
    return Message("assistant", "", calls)


def _check_hostile(start: FirstTurns, hostile: _Hostile) -> None:
    action = hostile.action
    what = _what(action)
    try:
        observation, reward, _, _, info = start.step(action)
        for message in observation:
            message.text.encode()
    except Exception as error:
        raise CheckFailed(f"{what}: {type(error).__name__}: {brief(str(error))}") from error
    start.check_reward(what, float(reward), action, _calls(hostile.plain) if hostile.plain else None)
    if hostile.is_impossible and info["is_valid"]:
        raise CheckFailed(f"{what}: counts as a valid action")


def _what(action: Message) -> str:
    return brief(action.calls[0] if action.calls else action.content, 80)


# ------ check that a policy cannot void its episodes: effects of its calls are evidence, not infrastructure failures

_HASTE = {"tool_timeout_s": 0.5, "turn_timeout_s": 1.0}
"""Short time limits for environments with sandboxes, so that the check is fast."""
_HARMLESS = "sleeps"
"""The program that harms nothing, wherever it runs."""
_CALLS_PER_TURN = 3  # each call is within its own limit; together they exceed that of a step


def void_on_demand(subject: Subject) -> str:
    """Check that programs that sleep, stop, fill the disk or leave files fail no episode, and that the next works."""
    task = subject.tasks(1)[0]
    programs = attempts()["voids"]
    with contextlib.closing(subject.factory()) as env:
        tool = _program_tool(env.tools)
        if tool is None:
            return "not applicable: no tool runs programs"
        for name in _HASTE.keys() & set(dir(env)):
            setattr(env, name, _HASTE[name])

        def run(name: str) -> None:
            call = _call_of(tool, f"{attempts()['prelude']}\n{programs[name]}")
            _must_be_evidence(name, env, task, [call] * (_CALLS_PER_TURN if name == _HARMLESS else 1))

        run(_HARMLESS)
        left_out, why = _too_hostile_for(env, programs)
        for name in [name for name in programs if name != _HARMLESS and name not in left_out]:
            run(name)
    if left_out:
        return f"warning: {len(left_out)} of {len(programs)} programs were not tried, since {why}"
    return f"none of {len(programs)} programs voids an episode"


def _too_hostile_for(env: Env, programs: Collection[str]) -> tuple[set[str], str]:
    """Return the programs that could harm whoever runs this check, and why."""
    sandbox = getattr(env, "sandbox", None)
    if not isinstance(sandbox, Sandbox):
        return {*programs} - {_HARMLESS}, "the tool runs them outside agentgym's sandboxes, with this user's rights"
    here = sandbox.capabilities()
    if "signals" in here.in_force:
        return set(), ""
    return {*programs} & {*SIGNAL_ALL}, f"in sandbox {here.backend!r} {here.how('signals')}"


def _program_tool(tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """Return the tool that runs Python or a shell, recognised by its required parameter."""
    for wanted in ("code", "command"):
        for tool in tools:
            if required(tool.parameters, tool.parameters) == (wanted,):
                return tool
    return None


def _call_of(tool: ToolSpec, code: str) -> ToolCall:
    if required(tool.parameters, tool.parameters) == ("code",):
        return ToolCall(tool.name, {"code": code})
    return ToolCall(tool.name, {"command": f"python3 -c {shlex.quote(code)}"})


def _must_be_evidence(name: str, env: Env, task: Task, calls: Sequence[ToolCall]) -> None:
    turns = [tuple(calls)]
    if any(tool.name == "submit" and not required(tool.parameters, tool.parameters) for tool in env.tools):
        turns.append((ToolCall("submit"),))
    try:
        with step_limit("reset"):
            env.reset(options={"task": task})
        for turn in turns:
            with step_limit(f"the program that {name}"):
                _, _, terminated, truncated, _ = env.step(Message("assistant", "", turn))
            if terminated or truncated:
                return
    except ToolError:  # the environment may end the episode as a mistake of the policy
        return
    except Exception as error:
        raise CheckFailed(
            f"a policy can void its episode by a program that {name}: {error_text(error)}; raise a "
            "ToolError for faults of the policy's calls"
        ) from error
