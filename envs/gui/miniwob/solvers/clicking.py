"""Tasks solved by clicks on elements that the goal names."""

from __future__ import annotations

import re

from agentgym.envs.gui.miniwob.view import View, click
from agentgym.types import ToolCall


def _named_button(view: View) -> ToolCall:
    return click(view.named(view.match(r"button (ONE|TWO)")[0], "button"))


def _quoted_button(view: View) -> ToolCall:
    return click(view.named(view.quoted(), "button"))


def _sequence(view: View) -> ToolCall:
    first = view.named("ONE", "button")
    return click(view.named("TWO", "button") if first.states.get("focused") else first)


def _dialog(view: View) -> ToolCall:
    name = view.quoted()
    return click(view.named("Close" if name == "x" else name, "button"))


def _textbox(view: View) -> ToolCall:
    found = re.search(r"(\d)(?:st|nd|rd)", view.goal)
    return click(view.all("textbox")[int(found[1]) - 1 if found else 0])


def _widget(view: View) -> ToolCall:
    kind = view.quoted()
    if kind in ("radio", "checkbox", "button"):
        return click(view.all(kind)[0])
    kinds = re.findall(r'data-type="(text|textarea)"', view.html)
    return click(view.all("textbox")[kinds.index(kind)])


def _color(view: View) -> ToolCall:
    wanted = view.match(r"Click on the (\w+) colored box")[0]
    return click(view.all("generic")[re.findall(r'class="color"[^>]*data-color="(\w+)"', view.html).index(wanted)])


def _link_in_tabs(view: View) -> ToolCall:
    for node in view.all("clickable"):
        if node.name == view.quoted() and not _is_in_tab(view, node.id):
            return click(node)
    tabs = view.all("tab")
    shown = next(number for number, tab in enumerate(tabs) if tab.states.get("selected"))
    return click(tabs[(shown + 1) % len(tabs)])


def _is_in_tab(view: View, id: str) -> bool:
    """Return True for the part of a tab's head that takes clicks."""
    nodes = view.page.nodes
    at = next(number for number, node in enumerate(nodes) if node.id == id)
    return nodes[at - 1].role == "tab" and nodes[at - 1].depth == nodes[at].depth - 1


def _section(view: View) -> ToolCall:
    for tab in view.all("tab"):
        if tab.name.startswith("Section"):
            return click(view.named("Submit", "button") if tab.states.get("expanded") else tab)
    raise LookupError("no section")


def _link_in_sections(view: View) -> ToolCall:
    for node in view.page.nodes:
        if node.role == "clickable" and node.name == view.quoted():
            return click(node)
    tabs = view.all("tab")
    shown = next((number for number, tab in enumerate(tabs) if tab.states.get("expanded")), -1)
    return click(tabs[(shown + 1) % len(tabs)])


SOLVERS = {
    "click-test": lambda view: click(view.all("button")[0]),
    "click-test-2": _named_button,
    "click-test-transfer": _named_button,
    "click-button": _quoted_button,
    "unicode-test": _quoted_button,
    "click-button-sequence": _sequence,
    "click-link": lambda view: click(view.named(view.quoted(), "clickable")),
    "click-dialog": _dialog,
    "click-dialog-2": _dialog,
    "focus-text": _textbox,
    "focus-text-2": _textbox,
    "click-widget": _widget,
    "click-color": _color,
    "click-tab": lambda view: click(view.named(view.match(r"(Tab #\d)")[0], "clickable", "generic")),
    **dict.fromkeys(("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard"), _link_in_tabs),
    "click-collapsible": _section,
    "click-collapsible-nodelay": _section,
    "click-collapsible-2": _link_in_sections,
    "click-collapsible-2-nodelay": _link_in_sections,
}
