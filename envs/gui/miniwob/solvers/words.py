"""Tasks of one text: read, find, change or compute it, put it into the box, submit."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentgym.envs.gui.miniwob.view import View, click, filled
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
}
