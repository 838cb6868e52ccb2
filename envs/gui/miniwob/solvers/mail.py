"""Tasks in a mailbox, in a book of contacts, and with cards and numbers to mark."""

from __future__ import annotations

import re

from agentgym.envs.gui.miniwob.view import View, call, click, fill
from agentgym.envs.gui.tree import Node
from agentgym.types import ToolCall


def _icons_after(view: View, name: str) -> list[Node]:
    """Return the visible elements without a name after the first element of a name."""
    nodes = view.page.nodes
    at = next(number for number, node in enumerate(nodes) if node.name == name and node.role == "generic")
    return [node for node in nodes[at:] if node.id and not node.name and min(node.box[2:]) >= 10]


def _mail(view: View) -> ToolCall:
    sender = view.match(r"email by ([\w-]+) and")[0]
    is_list = any(node.role == "heading" and node.name == "Primary" for node in view.page.nodes)
    if is_list and "icon" in view.goal:
        return click(_icons_after(view, sender)["star" in view.goal])  # trash, star
    if is_list:
        return click(view.named(sender, "generic"))
    boxes = view.all("textbox")
    if not boxes:
        return click(view.named("Reply" if "reply" in view.goal else "Forward", "generic"))
    text = view.quoted() if "reply" in view.goal else view.match(r"that email to ([\w-]+)\.")[0]
    if boxes[0].states.get("value") != text:
        return fill(boxes[0], text)
    return click(view.all("clickable")[1])  # the first one closes


def _contact(view: View) -> ToolCall:
    name, what = view.match(r"Find ([\w-]+) in the contact book and click on their ([\w ]+)\.")
    if view.all("heading") and view.all("heading")[0].name != name:
        return click(view.named(">", "link"))
    label = {"phone number": "Phone:"}.get(what, f"{what.capitalize()}:")
    nodes = view.page.nodes
    at = next(number for number, node in enumerate(nodes) if node.name == label)
    return click(nodes[at + 1])


def _odd_or_even(view: View) -> ToolCall:
    rows = re.findall(r'class="(odd[^"]*)">Odd.*?display-number">(-?\d+)<.*?class="(even[^"]*)">Even', view.html, re.S)
    buttons = {"odd": [n for n in view.all("button") if n.name == "Odd"]}
    buttons["even"] = [node for node in view.all("button") if node.name == "Even"]
    for number, (odd, value, even) in enumerate(rows):
        kind, mark = ("odd", odd) if int(value) % 2 else ("even", even)
        if "selected" not in mark:
            return click(buttons[kind][number])
    return click(view.named("Submit", "button"))


def _greatest(view: View) -> ToolCall:
    cards = re.findall(r'class="(card[^"]*)" data-index="\d+"><span class="card-value">(\d+)<', view.html)
    best = max(range(len(cards)), key=lambda number: int(cards[number][1]))
    if "hidden" in cards[best][0]:
        return click(view.all("clickable")[best])
    return click(view.named("Submit", "button"))


def _number(view: View) -> ToolCall:
    shown = next((int(node.name) for node in view.page.nodes if re.fullmatch(r"-?\d+", node.name)), None)
    if shown is not None and _is_wanted(view.goal, shown):
        return click(view.named("Submit", "button"))
    return click(view.named("Generate", "button"))


def _is_wanted(goal: str, number: int) -> bool:
    found = re.search(r"(less|greater) than (-?\d+)", goal)
    if found is None:
        return number % 2 == ("odd" in goal)
    return number < int(found[2]) if found[1] == "less" else number > int(found[2])


def _stock(view: View) -> ToolCall:
    """Return the next call. The page's limit is its 76th of 100 prices; the plot gets ten prices a second."""
    limit = float(view.match(r"less than \$([\d.]+)\.")[0])
    price = float(next(node.name for node in view.page.nodes if re.fullmatch(r"\$[\d.]+", node.name))[1:])
    if price <= limit:  # the page pays for the limit, too
        return click(view.named("Buy", "button"))
    num_to_come = 76 - view.html.count("<circle")
    return call("wait", seconds=max(num_to_come - 5, 1) / 10)  # five more come with the turn


SOLVERS = {
    **dict.fromkeys(
        (
            "email-inbox",
            "email-inbox-delete",
            "email-inbox-forward",
            "email-inbox-important",
            "email-inbox-noscroll",
            "email-inbox-reply",
            "email-inbox-star-reply",
        ),
        _mail,
    ),
    "phone-book": _contact,
    "odd-or-even": _odd_or_even,
    "find-greatest": _greatest,
    "generate-number": _number,
    "stock-market": _stock,
}
