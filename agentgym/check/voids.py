"""Check that a policy cannot void its episodes: what its own calls do is evidence, never a failure of the rollout."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence

from agentgym.check.episodes import step_limit
from agentgym.check.report import CheckFailed
from agentgym.check.sandbox.adversary import attempts
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.errors import ToolError
from agentgym.types import Message, Task, ToolCall, ToolSpec

_HASTE = {"tool_timeout_s": 0.5, "turn_timeout_s": 1.0}
"""Limits of environments with sandboxes, so that the check does not wait for the whole of them."""
_CALLS_PER_TURN = 3  # each within its own limit, and together beyond that of a step


def void_on_demand(subject: Subject) -> str:
    """Programs that sleep, stop, fill or plant something fail no episode, and the next one works."""
    task = subject.tasks(1)[0]
    programs = attempts()["voids"]
    with contextlib.closing(subject.factory()) as env:
        tool = _program_tool(env.tools)
        if tool is None:
            return "not applicable: no tool runs programs"
        for name in _HASTE.keys() & set(dir(env)):
            setattr(env, name, _HASTE[name])
        for name, code in programs.items():
            call = _call_of(tool, f"{attempts()['prelude']}\n{code}")
            _must_be_evidence(name, env, task, [call] * (_CALLS_PER_TURN if name == "sleeps" else 1))
    return f"none of {len(programs)} programs voids an episode"


def _program_tool(tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """Return the tool that runs Python or a shell, by the parameter that it needs."""
    for wanted in ("code", "command"):
        for tool in tools:
            if tool.parameters.get("required") == [wanted]:
                return tool
    return None


def _call_of(tool: ToolSpec, code: str) -> ToolCall:
    if tool.parameters["required"] == ["code"]:
        return ToolCall(tool.name, {"code": code})
    return ToolCall(tool.name, {"command": f"python3 -c {shlex.quote(code)}"})


def _must_be_evidence(name: str, env: Env, task: Task, calls: Sequence[ToolCall]) -> None:
    turns = [tuple(calls)]
    if any(tool.name == "submit" and not tool.parameters.get("required") for tool in env.tools):
        turns.append((ToolCall("submit"),))
    try:
        with step_limit("reset"):
            env.reset(options={"task": task})
        for turn in turns:
            with step_limit(f"the program that {name}"):
                _, _, terminated, truncated, _ = env.step(Message("assistant", "", turn))
            if terminated or truncated:
                return
    except ToolError:  # the environment ends the episode because of what the policy did
        return
    except Exception as error:
        raise CheckFailed(
            f"a policy can void its episode by a program that {name}: {type(error).__name__}: {error}; raise a "
            "ToolError for what a call of the policy did"
        ) from error
