"""Tasks solved by clicks on elements that the goal names."""

from __future__ import annotations

import re
from datetime import datetime

from agentgym.envs.gui.miniwob.view import View, call, click
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


# ---------------------------------------------------- tasks of choosing: boxes, lists, menus, trees, calendars, sliders


def _submit(view: View) -> ToolCall:
    return click(view.named("Submit", "button"))


def _checkboxes(view: View) -> ToolCall:
    wanted = view.match(r"Select (.*) and click Submit")[0].split(", ")
    for node in view.all("checkbox", "radio"):
        if node.name in wanted and not node.states["checked"]:
            return call("check", id=node.id)
    return _submit(view)


def _list(view: View) -> ToolCall:
    wanted = view.match(r"Select (.*) from the (?:scroll )?list")[0]
    box = view.all("combobox", "listbox")[0]
    if box.states["value"] == wanted or sorted(box.states["value"].split(", ")) == sorted(wanted.split(", ")):
        return _submit(view)
    names = [wanted] if box.role == "combobox" else wanted.split(", ")
    return call("select", id=box.id, options=names)


def _menu(view: View) -> ToolCall:
    *parents, leaf = view.match(r"Select (.*)$")[0].split(">")
    items = {node.name: node for node in view.all("menuitem")}
    if leaf in items:
        return click(items[leaf])
    return call("hover", id=next(items[name].id for name in reversed(parents) if name in items))


def _icon_menu(view: View) -> ToolCall:
    items = {node.name: node for node in view.all("menuitem")}
    if not items:
        return click(view.named("Menu", "button"))
    label = view.quoted(1) if view.goal.count('"') > 2 else _label_of_icon(view)
    return click(items[label]) if label in items else call("hover", id=items["Playback"].id)


def _label_of_icon(view: View) -> str:
    """Return the name of the item that has the icon which the goal shows."""
    first, *others = re.findall(r'ui-icon (ui-icon-[\w-]+)"></span>\s*([\w ]*)', view.html)
    return next(str(label) for icon, label in others if icon == first[0])


def _tree(view: View) -> ToolCall:
    wanted = view.quoted()
    shown = [node for node in view.page.nodes if node.id and node.name and node.role != "listitem"]
    for node in shown:
        if node.name == wanted:
            return click(node)
    return click(next(node for node in shown if _is_closed_folder(view, node.name)))


def _is_closed_folder(view: View, name: str) -> bool:
    found = re.search(rf'<li class="([^"]*)">(?:<div[^>]*></div>)?<span class="folder">{re.escape(name)}<', view.html)
    return found is not None and "expandable" in found[1]


def _date(view: View) -> ToolCall:
    month, day, year = map(int, view.match(r"(\d+)/(\d+)/(\d+)"))
    box = view.all("textbox")[0]
    if box.states.get("value") == f"{month:02}/{day:02}/{year}":
        return _submit(view)
    days = [node for node in view.all("link") if node.name.isdecimal()]
    if not days:
        return click(box)
    shown = datetime.strptime(re.findall(r"[A-Z][a-z]+\s*20\d\d", _heading(view))[0], "%B %Y")
    if (shown.year, shown.month) != (year, month):
        return click(view.named("Prev" if (shown.year, shown.month) > (year, month) else "Next"))
    return click(next(node for node in days if node.name == str(day)))


def _heading(view: View) -> str:
    """Return a calendar's month and year."""
    found = re.search(r'datepicker-month">(\w+)</span>.*?datepicker-year">(\d+)<', view.html)
    return f"{found[1]} {found[2]}" if found else ""


def _slide(view: View, wanted: int) -> ToolCall | None:
    """Return the next key for a slider; None if its value is right."""
    handle = next(node for node in view.all("clickable") if not node.name)
    value = int(next(node.name for node in view.page.nodes if re.fullmatch(r"-?\d+", node.name)))
    away = wanted - value
    if not away:
        return None
    if not handle.states.get("focused"):
        return click(handle)
    if abs(away) > 10:  # a page is a fifth of the whole
        return call("press", key="PageUp" if away > 0 else "PageDown")
    return call("press", key="ArrowRight" if away > 0 else "ArrowLeft")


def _slider_form(view: View) -> ToolCall:
    wanted, number = view.match(r"Select (-?\d+) with the slider, click the (\d)")
    box = view.all("checkbox")[int(number) - 1]
    if not box.states["checked"]:
        return call("check", id=box.id)
    return _slide(view, int(wanted)) or _submit(view)


def _spinner(view: View) -> ToolCall:
    box = view.all("spinbutton")[0]
    away = int(view.match(r"Select (-?\d+)")[0]) - int(box.states["value"])
    if not away:
        return _submit(view)
    if not box.states.get("focused"):
        return click(box)
    return call("press", key="ArrowUp" if away > 0 else "ArrowDown")


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
    **dict.fromkeys(
        ("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer", "click-option"), _checkboxes
    ),
    "choose-list": _list,
    "click-scroll-list": _list,
    "click-menu": _menu,
    "click-menu-2": _icon_menu,
    "navigate-tree": _tree,
    **dict.fromkeys(("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay"), _date),
    "use-slider": lambda view: _slide(view, int(view.match(r"Select (-?\d+)")[0])) or _submit(view),
    "form-sequence": _slider_form,
    "use-spinner": _spinner,
}
