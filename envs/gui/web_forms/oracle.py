"""The gold policy of WebForms: what leads to the goal from the page as it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from agentgym.envs.gui.tree import Node, Tree
from agentgym.envs.gui.web_forms.problems import Problem
from agentgym.types import ToolCall


def next_call(problem: Problem, page: Tree) -> ToolCall:
    """The next call."""
    if "answer" in problem.goal:
        return _call("done", answer=problem.goal["answer"])
    return _NEXT[problem.page](dict(problem.goal), page)


def _call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name, arguments, "0")


def _click(node: Node) -> ToolCall:
    return _call("click", id=node.id)


def _form(goal: dict[str, Any], page: Tree) -> ToolCall:
    for label, wanted in goal.items():
        if label in ("Newsletter", "Topics"):
            role = "radio" if label == "Newsletter" else "checkbox"
            for name in [wanted] if isinstance(wanted, str) else wanted:
                if not (node := page.find(role, name)).states["checked"]:
                    return _call("check", id=node.id)
        elif label == "Room":
            if (node := page.find("combobox", label)).states["value"] != wanted:
                return _call("select", id=node.id, options=[wanted])
        elif (node := page.find("textbox", label)).states.get("value") != wanted:
            return _call("fill", id=node.id, text=wanted)
    return _click(page.find("button", "Send"))


def _table(goal: dict[str, object], page: Tree) -> ToolCall:
    in_row = False
    for node in page.nodes:
        if node.role in ("cell", "row"):
            in_row = node.name == goal["removed"] if node.role == "row" or not in_row else in_row
        if in_row and node.role == "button":
            return _click(node)
    raise LookupError(f"no row of {goal['removed']}")


def _calendar(goal: dict[str, Any], page: Tree) -> ToolCall:
    wanted = datetime.fromisoformat(goal["date"])
    shown = next(_dates(page))
    if (shown.year, shown.month) != (wanted.year, wanted.month):
        back = (shown.year, shown.month) > (wanted.year, wanted.month)
        return _click(page.find("button", "Previous month" if back else "Next month"))
    day = page.find("button", str(wanted.day))
    return _click(page.find("button", "Book") if day.states["checked"] else day)


def _dates(page: Tree) -> Iterator[datetime]:
    for node in page.find_all("heading"):
        if node.states["level"] == 2:
            yield datetime.strptime(node.name, "%B %Y")


def _board(goal: dict[str, Any], page: Tree) -> ToolCall:
    column = ""
    for node in page.nodes:
        if node.role == "region":
            column = node.name
        elif node.role == "clickable" and node.name not in goal[column]:
            other = next(name for name in goal if name != column)
            return _call("drag", source=node.id, target=page.find("region", other).id)
    return _click(page.find("button", "Save"))


def _list(goal: dict[str, Any], page: Tree) -> ToolCall:
    for node in page.find_all("option", goal["ordered"]):
        return _click(node)
    return _call("scroll", direction="down", id=page.find("listbox", "Parts").id)


def _frame(goal: dict[str, Any], page: Tree) -> ToolCall:
    if goal["code"] not in page.text:
        return _click(page.find("button", "Show code"))
    box = page.find("textbox", "Code")
    if box.states.get("value") != goal["code"]:
        return _call("fill", id=box.id, text=goal["code"])
    return _click(page.find("button", "Open"))


def _settings(goal: dict[str, Any], page: Tree) -> ToolCall:
    for name, on in goal["switches"].items():
        node = page.find("switch", name)
        if node.states["checked"] != on:
            return _call("check" if on else "uncheck", id=node.id)
    theme = page.find("combobox", "Theme")
    if theme.states["value"] != goal["theme"]:
        return _call("select", id=theme.id, options=[goal["theme"]])
    return _click(page.find("button", "Save"))


_NEXT: dict[str, Callable[[dict[str, object], Tree], ToolCall]] = {
    "form": _form,
    "table": _table,
    "calendar": _calendar,
    "board": _board,
    "list": _list,
    "frame": _frame,
    "settings": _settings,
}
