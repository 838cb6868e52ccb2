"""The gold policy of a skill chain: it saves the end of a plan as a skill, and uses skills that fit its plan.

The plan is what the wrapped environment's own oracle would do. A skill is saved or used only when the agent has read
all values that it needs. Demonstrations therefore show nothing that the agent could not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.env.env import Env
from agentgym.envs.skill_chain.library import SAVE, USE, Limits, Skill, new_skill
from agentgym.errors import ToolError
from agentgym.types import ToolCall, ToolSpec

_LONGEST_PLAN = 60


def plan_of(env: Env) -> tuple[ToolCall, ...]:
    """Play the oracle to the end of an episode, and return its calls; empty if they do not lead to success."""
    calls: list[ToolCall] = []
    for _ in range(_LONGEST_PLAN):
        action = env.oracle()
        made = [call for call in action.calls if isinstance(call, ToolCall)]
        calls += made
        _, _, terminated, truncated, info = env.step(action)
        if len(made) < max(1, len(action.calls)):
            return ()
        if terminated or truncated:
            return tuple(calls) if info["success"] else ()
    return ()


def next_skill_call(
    plan: Sequence[ToolCall],
    library: Sequence[Skill],
    read: Sequence[str],
    *,
    tools: Sequence[ToolSpec],
    may_save: bool,
    limits: Limits,
) -> tuple[str, dict[str, Any]] | None:
    """Return the arguments of the next call of a skill tool, with the tool's name, or None to play without a skill.

    Args:
        plan: the calls that solve the task from here on.
        read: texts that the agent has read in this task.
        may_save: True if a skill of this task would help a later one.
    """
    fits = [(skill, found) for skill in library if (found := binding(skill, plan)) is not None]
    usable = [(skill, found) for skill, found in fits if _are_read(plan[: len(skill.calls)], read)]
    if usable:
        skill, found = max(usable, key=lambda one: len(one[0].calls))
        return USE, {"name": skill.name, "arguments": found}
    is_long_enough = limits.min_calls <= len(plan) <= limits.max_calls
    if not (may_save and is_long_enough and len(library) < limits.max_skills and _are_read(plan, read)):
        return None
    skill = generalised(plan, [SAVE, USE, *(spec.name for spec in tools), *(skill.name for skill in library)])
    if binding(skill, plan) is None:
        return None
    lines = "\n".join(format_call(call, tools) for call in skill.calls)
    try:
        new_skill(skill.name, skill.parameters, lines, tools=tools, library=library, limits=limits)
    except ToolError:  # a name or a value that no skill may have
        return None
    return SAVE, {"name": skill.name, "parameters": list(skill.parameters), "calls": lines}


def binding(skill: Skill, plan: Sequence[ToolCall]) -> dict[str, Any] | None:
    """Return the arguments with which a skill does the first calls of a plan, or None if it does not.

    Example:
        >>> skill = Skill("fetch", ("at",), (ToolCall("go_to", {"to": "$at"}), ToolCall("take", {"from": "$at"})))
        >>> binding(skill, (ToolCall("go_to", {"to": "desk 1"}), ToolCall("take", {"from": "desk 1"})))
        {'at': 'desk 1'}
    """
    found: dict[str, Any] = {}
    if len(plan) < len(skill.calls):
        return None
    for call, wanted in zip(skill.calls, plan, strict=False):
        if call.name != wanted.name or call.arguments.keys() != wanted.arguments.keys():
            return None
        for key, value in call.arguments.items():
            if isinstance(value, str) and value[1:] in skill.parameters and value.startswith("$"):
                found.setdefault(value[1:], wanted.arguments[key])
    try:
        done = skill.filled(found)
    except ToolError:
        return None
    is_same = all(dict(mine.arguments) == dict(own.arguments) for mine, own in zip(done, plan, strict=False))
    return found if is_same else None


def generalised(plan: Sequence[ToolCall], taken: Sequence[str]) -> Skill:
    """Return a skill that does a plan: every text of its arguments becomes a parameter, equal texts the same one.

    Example:
        >>> skill = generalised((ToolCall("take", {"object": "mug 1"}), ToolCall("drop", {"object": "mug 1"})), ())
        >>> skill.name, skill.parameters, skill.calls[1].arguments
        ('take_drop', ('object',), {'object': '$object'})
    """
    parameter_of: dict[str, str] = {}
    calls = []
    for call in plan:
        arguments = {
            key: f"${_parameter(parameter_of, key, value)}" if isinstance(value, str) else value
            for key, value in call.arguments.items()
        }
        calls.append(ToolCall(call.name, arguments))
    name = _free("_".join(dict.fromkeys(call.name for call in plan))[:36], taken)
    return Skill(name, tuple(parameter_of.values()), tuple(calls))


def _parameter(parameter_of: dict[str, str], key: str, value: str) -> str:
    """Return the parameter that stands for a text, named after the first argument that had it."""
    if value not in parameter_of:
        parameter_of[value] = _free(re.sub(r"\W", "_", key), tuple(parameter_of.values()))
    return parameter_of[value]


def _free(name: str, taken: Sequence[str]) -> str:
    """Return the name, with a number if it is taken."""
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + 2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _are_read(calls: Sequence[ToolCall], read: Sequence[str]) -> bool:
    """Return True if every text among the calls' arguments occurs as a whole in a text that was read."""
    values = {value for call in calls for value in call.arguments.values() if isinstance(value, str)}
    return all(any(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) for text in read) for value in values)
