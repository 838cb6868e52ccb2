"""The gold policy of the guest book."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.envs.gui.tree import Node, Tree
from agentgym.types import ToolCall


def next_call(task: str, values: Mapping[str, Any], page: Tree, database: Path) -> ToolCall:
    """Return the next call, by what the page shows."""
    if task == "whence":
        return _done(values["entry_town"])
    if task == "sign":
        return _sign(values, page)
    name, column = (values["entry_name"], 0) if task == "strike" else (values["town_town"], 1)
    button = _button_in_row(page, name, column)
    return _done("") if button is None else ToolCall("click", {"id": button.id}, "0")


def _sign(values: Mapping[str, object], page: Tree) -> ToolCall:
    if page.title == "Thank you":
        return _done("")
    for label in ("Name", "Town", "Message"):
        box = page.find("textbox", label)
        if box.states.get("value") != values[label.lower()]:
            return ToolCall("fill", {"id": box.id, "text": values[label.lower()]}, "0")
    return ToolCall("click", {"id": page.find("button", "Sign").id}, "0")


def _button_in_row(page: Tree, wanted: str, column: int) -> Node | None:
    """Return the button of the first row with a text in a column."""
    cells: list[str] = []
    for node in page.nodes:
        if node.role == "row":
            cells = []
        elif node.role == "cell":
            cells.append(node.name)
        elif node.role == "button" and len(cells) > column and cells[column] == wanted:
            return node
    return None


def _done(answer: str) -> ToolCall:
    return ToolCall("done", {"answer": answer}, "0")
