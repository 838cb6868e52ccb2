"""Tasks about shapes, which are read from the markup, since no tree shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentgym.envs.gui.miniwob.view import View, click
from agentgym.types import ToolCall

_SHAPES = {"rect": "rectangle", "circle": "circle", "polygon": "triangle"}


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape, digit or letter of a drawing."""

    kind: str
    text: str
    color: str
    is_large: bool

    def fits(self, size: str, color: str, what: str) -> bool:
        """Return True if a description fits; every part except ``what`` may be empty."""
        return (
            size in ("", "large" if self.is_large else "small")
            and color in ("", self.color)
            and what in ("item", self.kind, self.text)
        )


def shapes_of(html: str) -> list[Shape]:
    """Return the shapes of a page's drawing, in its order."""
    found = []
    for tag, given, text in re.findall(r"<(text|rect|circle|polygon)\b([^>]*)>([^<]*)", html):
        values = dict(re.findall(r'([\w-]+)="([^"]*)"', given))
        if tag == "text":
            kind, name, size = "digit" if text.isdigit() else "letter", text, float(values["font-size"][:-2])
        else:
            kind, name, size = "shape", _SHAPES[tag], _size(tag, values)
        found.append(Shape(kind, name, values["fill"], size > 15))
    return found


def _size(tag: str, values: dict[str, str]) -> float:
    if tag == "rect":
        return float(values["width"])
    if tag == "circle":
        return 2 * float(values["r"])
    points = [float(value) for value in re.findall(r"-?[\d.]+", values["points"])]
    return max(points[::2]) - min(points[::2])


_COLORS = "red|green|blue|aqua|black|magenta|yellow"


def described(text: str) -> tuple[str, str, str]:
    """Return size, colour, and kind or name from a description such as ``large red item``; missing parts are empty."""
    found = re.fullmatch(rf"(?:(large|small) )?(?:({_COLORS}) )?(\w+)", text)
    assert found is not None, text
    return found[1] or "", found[2] or "", found[3]


def _click_shape(view: View) -> ToolCall:
    wanted = described(view.match(r"Click on a (.*)")[0])
    shapes = shapes_of(view.html)
    nodes = view.all("clickable")
    return click(next(node for node, shape in zip(nodes, shapes, strict=True) if shape.fits(*wanted)))


def _count_shapes(view: View) -> ToolCall:
    wanted = described(view.match(r"How many (.*)s are there")[0])
    count = sum(shape.fits(*wanted) for shape in shapes_of(view.html))
    return click(view.named(str(count), "button"))


def _identify(view: View) -> ToolCall:
    shape = shapes_of(view.html)[0]
    name = {"digit": "Number", "letter": "Letter"}.get(shape.kind, shape.text.capitalize())
    return click(view.named(name, "button"))


def _grid(view: View) -> ToolCall:
    wanted = "({},{})".format(*view.match(r"\((-?\d),(-?\d)\)"))
    ids = re.findall(r'<circle class="plot-point" id="([^"]*)"', view.html)
    points = [node for node in view.all("generic") if not node.name and 0 < node.box[2] < 15 and 0 < node.box[3] < 15]
    return click(points[ids.index(wanted)])


SOLVERS = {
    "click-shape": _click_shape,
    "count-shape": _count_shapes,
    "identify-shape": _identify,
    "grid-coordinate": _grid,
}
