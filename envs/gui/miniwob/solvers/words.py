"""Tasks of texts: read, find, change or compute them, put them into boxes, submit; and tasks of several steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from agentgym.envs.gui.miniwob.view import View, call, click, fill, filled
from agentgym.types import ToolCall


def _entering(text_of: Callable[[View], str], box: int = 0) -> Callable[[View], ToolCall]:
    """Return a policy that puts a text into a box and submits."""

    def solve(view: View) -> ToolCall:
        node = view.all("textbox", "spinbutton", "searchbox")[box]
        return filled(view, [(node, text_of(view))], click(view.named("Submit", "button")))

    return solve


def _cased(view: View) -> str:
    return view.quoted().upper() if "upper case" in view.goal else view.quoted().lower()


def _date(view: View) -> str:
    month, day, year = view.match(r"(\d+)/(\d+)/(\d+)")
    return f"{year}-{month}-{day}"


def _time(view: View) -> str:
    hour, minute, half = view.match(r"(\d+):(\d+)\s*([AP])M")
    return f"{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}"


def _copied_of(view: View) -> str:
    return str(view.all("textbox")[int(view.match(r"the (\d)")[0]) - 1].states.get("value", ""))


def _copying_one(view: View) -> ToolCall:
    one, other = view.all("textbox")
    area, box = (one, other) if re.search("<(textarea|input)", view.html)[1] == "textarea" else (other, one)  # type: ignore[index]
    text = str(area.states.get("value", ""))
    return filled(view, [(box, text)], click(view.named("Submit", "button")))


def _copying(view: View) -> ToolCall:
    boxes = view.all("textbox")
    return filled(view, [(boxes[3], _copied_of(view))], click(view.named("Submit", "button")))


def _word(view: View) -> str:
    number = int(view.match(r"the (\d+)")[0])
    paragraph = next(node.name for node in view.page.nodes if node.role in ("generic", "text") and node.name)
    return re.sub("[^a-zA-Z]", "", paragraph.split()[number - 1])


def _last_word(view: View) -> str:
    return str(re.findall(r"\w+", str(view.all("textbox")[0].states["value"]))[-1])


def _letters(view: View) -> str:
    return "".join(node.name for node in view.page.nodes if node.role in ("generic", "text") and len(node.name) == 1)


def table(view: View) -> dict[str, str]:
    """Return a table's second column by its first."""
    cells = [node.name for node in view.page.nodes if node.role == "cell"]
    return dict(zip(cells[::2], cells[1::2], strict=True))


def _sum(view: View) -> str:
    first, sign, second = re.findall(r"(\d+)\s*([-+x*])\s*(\d+)", view.page.text)[0]
    one, two = int(first), int(second)
    return str({"+": one + two, "-": one - two}.get(sign, one * two))


def _unknown(view: View) -> str:
    line = next(node.name for node in view.page.nodes if "=" in node.name)
    if found := re.fullmatch(r"x ([-+]) (\d+) = (-?\d+)", line):
        return str(int(found[3]) - int(found[2]) if found[1] == "+" else int(found[3]) + int(found[2]))
    found = re.fullmatch(r"(\d+) ([-+]) x = (-?\d+)", line)
    assert found is not None, line
    return str(int(found[3]) - int(found[1]) if found[2] == "+" else int(found[1]) - int(found[3]))


def _guess(view: View) -> ToolCall:
    box = view.all("spinbutton")[0]
    said = re.search(r"number is (higher|lower) than\s*(\d+)", view.page.text)
    guess = 5 if said is None else int(said[2]) + (1 if said[1] == "higher" else -1)
    return filled(view, [(box, str(guess))], click(view.named("Submit", "button")))


# ----------------------------------------------------------------------------- tasks of several fields or several steps


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


SOLVERS: dict[str, Callable[[View], ToolCall]] = {
    "enter-text": _entering(View.quoted),
    "enter-text-dynamic": _entering(View.quoted),
    "enter-text-2": _entering(_cased),
    "enter-date": _entering(_date),
    "enter-time": _entering(_time),
    "copy-paste": _copying_one,
    "copy-paste-2": _copying,
    "find-word": _entering(_word),
    "scroll-text": _entering(_last_word, box=1),
    "text-transform": _entering(_letters),
    "read-table": _entering(lambda view: table(view)[view.match(r"value of (.*) into")[0]]),
    "simple-arithmetic": _entering(_sum),
    "simple-algebra": _entering(_unknown),
    "visual-addition": _entering(lambda view: str(view.html.count('class="addition-block"'))),
    "guess-number": _guess,
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
