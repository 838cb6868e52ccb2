"""Deliberately wrong episodes of MiniWoB++: those of a scripted policy, with the decisive action replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgym.call_syntax import format_call
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.solvers.drawings import described, shapes_of
from agentgym.envs.gui.replay import Recording
from agentgym.envs.gui.tree import Node
from agentgym.types import ToolCall

RIGHT_ALONE = frozenset({"click-test", "click-dialog", "focus-text", "guess-number"})
"""Pages that end an episode only after the right action; the only wrong episode lets the time run out."""
_UNTIL_WRONG = {"generate-number": "click: generate", "stock-market": "wait: 0.1"}
"""Actions to repeat until the page shows a wrong value: another number, another price."""


def play_wrong(env: MiniWoBEnv, right: Recording) -> float | None:
    """Return the page's raw reward for a deliberately wrong episode, or None if the episode has not ended.

    Args:
        env: the environment.
        right: the scripted policy's episode of the task.
    """
    env.reset(options={"task": right.task})
    for action in _wrong(env, str(right.task.data["task"]), right.actions):
        _, reward, terminated, _, _ = env.step(action)
        assert reward == 0.0, (right.task.id, action, reward)
        if terminated:
            return env.raw_reward
    return None


def _wrong(env: MiniWoBEnv, name: str, right: Sequence[str]) -> Sequence[str]:
    """Return the wrong actions that replace the right ones from the current state on."""
    is_sent = right[-1] in ("click: submit", "click: submit-button", "click: buy")
    if name in _UNTIL_WRONG:
        env.step(_UNTIL_WRONG[name])
        while env.oracle().text == right[-1]:
            env.step(_UNTIL_WRONG[name])
        return right[-1:]
    if name in RIGHT_ALONE or (is_sent and len(right) == 1):  # there is nothing to leave out
        return ["wait: 1"] * 3
    if name.startswith("click-checkboxes"):  # every box that was to be left, and none that was to be checked
        boxes = [node.id for node in env.page.nodes if node.role == "checkbox" and f"check: {node.id}" not in right]
        return [*(f"check: {id}" for id in boxes), right[-1]]
    if name != "search-engine" and any(action.startswith("fill:") for action in right):
        return [_with_other_text(env, action) for action in right]
    if is_sent:
        return right[-1:]
    return _another_click(env, name, right)


def _another_click(env: MiniWoBEnv, name: str, right: Sequence[str]) -> list[str]:
    """Return the click on the element most similar to the right one, after all actions but the last."""
    for action in right[:-1]:
        env.step(action)
    meant = env.page.by_id[right[-1].removeprefix("click: ")]
    if name == "phone-book":  # of another person
        if len(right) == 1:
            return []
        env.reset(options={"task": env.task})
    others = [node for node in env.page.nodes if _is_other(node, meant, name)]
    if name == "click-shape":  # several may fit the description
        wanted, drawn = described(env.goal.removeprefix("Click on a ")), shapes_of(env.source)
        nodes = [node for node in env.page.nodes if node.id and node.role == "clickable"]
        others = [node for node, shape in zip(nodes, drawn, strict=True) if not shape.fits(*wanted)]
    return [f"click: {min(others, key=lambda node: _difference(node, meant)).id}"] if others else []


def _with_other_text(env: MiniWoBEnv, action: str) -> str:
    call = env.parse_action(action).calls[0]
    if not isinstance(call, ToolCall) or call.name != "fill":
        return action
    text = str(call.arguments["text"])
    other = str(int(text) + 1) if text.lstrip("-").isdecimal() else "x" + text
    return format_call(replace(call, arguments={**call.arguments, "text": other}), env.tools)


def _is_other(node: Node, meant: Node, name: str) -> bool:
    """Return True if an element could be mistaken for the right one."""
    if name == "click-widget":  # an area for text and a box for text have one role
        return node.role in ("button", "checkbox", "radio") and node.role != meant.role
    if name.startswith("click-tab-2"):  # a link, also where a tab is meant
        return node.role == "clickable" and node.name not in (meant.name, "") and not node.name.startswith("Tab")
    is_like = bool(node.id) and node.id != meant.id and node.role == meant.role
    return is_like and (not meant.name or node.name != meant.name)


def _difference(node: Node, meant: Node) -> float:
    """Return how different two elements look, by size and horizontal distance."""
    return sum(abs(node.box[side] - meant.box[side]) for side in (0, 2, 3))
