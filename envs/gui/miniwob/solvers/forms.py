"""Tasks of several fields or several steps."""

from __future__ import annotations

import re
from itertools import pairwise

from agentgym.envs.gui.miniwob.solvers.words import table
from agentgym.envs.gui.miniwob.view import View, call, click, fill, filled
from agentgym.types import ToolCall


def _login(view: View) -> ToolCall:
    for node in view.all("button"):
        if node.name in ("Cancel", "No", "Maybe later"):
            return click(node)
    user, password = view.all("textbox")[:2]
    button = next(node for node in view.all("button") if node.name in ("Login", "OK", "Log in"))
    return filled(view, [(user, view.quoted(0)), (password, view.quoted(1))], click(button))


def _password(view: View) -> ToolCall:
    first, second = view.all("textbox")
    return filled(view, [(first, view.quoted()), (second, view.quoted())], click(view.named("Submit", "button")))


def _autocomplete(view: View) -> ToolCall:
    start, end = view.quoted(0), view.quoted(1) if view.goal.count('"') > 2 else ""
    box = view.all("textbox")[0]
    nodes = view.page.nodes
    offered = [
        node
        for before, node in pairwise(nodes)
        if before.role == "listitem" and node.name.startswith(start) and node.name.endswith(end)
    ]
    if offered:
        return click(offered[0])
    if not str(box.states.get("value", "")).startswith(start):
        return fill(box, start)
    return click(view.named("Submit", "button"))


def _search(view: View) -> ToolCall:
    box = view.all("textbox")[0]
    if box.states.get("value") != view.quoted(0):
        return fill(box, view.quoted(0))
    links = view.all("link")
    if not links:
        return click(view.named("Search", "button"))
    number = int(view.match(r"the (\d+)(?:st|nd|rd|th)")[0]) - 1
    active = re.search(r'page-item active"><a[^>]*>(\d)', view.html)
    page = number // 3 + 1
    if active is None or int(active[1]) != page:
        return click(next(link for link in links if link.name == str(page)))
    return click(links[number % 3])


def _movies(view: View) -> ToolCall:
    genre, name, year = view.match(r"Search for (\w+) movies directed by (\w+) from year (\d+)")
    wanted = {"Genre": genre, "Director": name, "Year": year}
    labels = [node.name for node in view.page.nodes if node.name in wanted and node.role != "textbox"]
    texts = [(box, wanted[label]) for box, label in zip(view.all("textbox"), labels, strict=True)]
    return filled(view, texts, click(view.named("Submit")))


def _table_form(view: View) -> ToolCall:
    cells = table(view)
    labels = [node.name[:-1] for node in view.page.nodes if node.name.endswith(":")]
    texts = [(box, cells[label]) for box, label in zip(view.all("textbox"), labels, strict=True)]
    return filled(view, texts, click(view.named("Submit", "button")))


def _radio_and_number(view: View) -> ToolCall:
    radio, number, box = view.match(r'the (\d)\w\w radio button and enter the number "(-?\d+)" into the (\d)')
    button = view.all("radio")[int(radio) - 1]
    if not button.states["checked"]:
        return call("check", id=button.id)
    return filled(view, [(view.all("textbox")[int(box) - 1], number)], click(view.named("Submit", "button")))


def _cheapest(view: View) -> ToolCall:
    wanted, what = view.match(r"with the (.+) (\w+)\.")  # the cheapest or most expensive, the shortest or longest
    buttons = view.all("button")
    if what == "cost":
        costs = [int(node.name.rpartition("$")[2]) for node in buttons]
    else:
        spans = re.findall(r"(\d+)h (\d+)m", view.page.text)
        costs = [60 * int(hours) + int(minutes) for hours, minutes in spans]
    best = min(costs) if wanted in ("cheapest", "shortest") else max(costs)
    return click(buttons[costs.index(best)])


SOLVERS = {
    "login-user": _login,
    "login-user-popup": _login,
    "enter-password": _password,
    "use-autocomplete": _autocomplete,
    "use-autocomplete-nodelay": _autocomplete,
    "search-engine": _search,
    "multi-orderings": _movies,
    "read-table-2": _table_form,
    "form-sequence-2": _radio_and_number,
    "buy-ticket": _cheapest,
}
