"""Observations of a page: its tree as text, shortened to a budget, and its picture, optionally with numbered marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from agentgym.envs.gui.tree import Node, Tree
from agentgym.errors import ConfigError, require_known
from agentgym.settings import Settings
from agentgym.tools.pictures import Scale, Screen, Size, check_size, fitting_size, opened, placed, png_from, png_size

Part = Literal["tree", "html", "screenshot", "marks"]
_PICTURES: tuple[Part, ...] = ("screenshot", "marks")
_ALSO_CALLED = {"set_of_marks": "marks"}
_BYTES_PER_TOKEN = 4  # of English and of markup, with the tokenizers of today
_FLAGS = ("checked", "selected", "current", "expanded", "disabled", "readonly", "required", "invalid", "focused")
_MOST_OPTIONS = 30
_LEAST_PART = 200  # bytes of a line that does not fit, of which less would say nothing
_COLOURS = ("#c00000", "#0050c0", "#007030", "#a05000", "#7000a0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationConfig(Settings):
    """The parts of an observation.

    Example:
        >>> ObservationConfig(parts=("tree", "picture"))
        Traceback (most recent call last):
        agentgym.errors.UnknownNameError: unknown part of an observation 'picture'; known: html, marks, screenshot, tree
    """

    parts: tuple[Part, ...] = ("tree",)
    """``tree``: the accessibility tree with ids; ``html``: the document; ``screenshot``; ``marks``: a screenshot in
    which every element that can be acted on is framed and numbered, with a list of the numbers (which also serve as
    ids). ``set_of_marks`` is another name of ``marks``."""
    max_tokens: int = 3000
    """Budget for tree and html each, at an estimated four bytes per token; a shortened text says so."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(_ALSO_CALLED.get(part, part) for part in self.parts))
        for part in self.parts:
            require_known("part of an observation", part, get_args(Part))
        if not self.parts or self.max_tokens < 100:
            raise ConfigError("an observation has at least one part and at least 100 tokens")

    @property
    def max_bytes(self) -> int:
        """The budget in bytes of UTF-8."""
        return self.max_tokens * _BYTES_PER_TOKEN

    @property
    def has_pictures(self) -> bool:
        """True if an observation has pictures."""
        return any(part in _PICTURES for part in self.parts)


def screen_of(viewport: Size, picture: Sequence[int] | str, scale: Scale, has_pictures: bool) -> tuple[Screen, float]:
    """Return the picture of a page and the picture's pixels for one of the page; without pictures both are the same.

    Args:
        viewport: width and height of the page's screen.
        picture: ``fit``, ``page``, or width and height.
        scale: that of the agent's coordinates.
        has_pictures: True if the agent sees pictures.

    Raises:
        ConfigError: every processor would resize a picture of that size.
    """
    width, height = viewport
    if isinstance(picture, str):
        require_known("picture", picture, ("fit", "page"))
        size = fitting_size(width, height) if picture == "fit" and has_pictures else viewport
    else:
        size = check_size(picture, "picture")
    return Screen(*size, scale), min(1.0, size[0] / width, size[1] / height)


def page_text(tree: Tree, max_bytes: int) -> str:
    """Return the tree as lines: first what is on the screen, then the rest, up to the budget in bytes.

    Example:
        >>> nodes = (Node(0, "heading", "Sign in", {"level": 1}), Node(0, "textbox", "Name", {"value": "Ann"}, "name"))
        >>> print(page_text(Tree("http://a.localhost/", "Shop", nodes), 1000))
        Page: Shop (http://a.localhost/)
        heading "Sign in"
        textbox "Name" = "Ann" [name]
    """
    seen, unseen = lines_of([node.is_seen for node in tree.nodes], tree)
    below = max(0, tree.extent[1] - tree.view[1])
    at = f", scrolled {tree.scroll[1]} of {below} pixels" if below else ""
    lines = [f"Page: {tree.title or 'without a title'} ({tree.url}{at})", *(seen or ["(nothing on the screen)"])]
    if unseen:
        lines += ["Off the screen (ids work; scroll to see it):", *unseen]
    return _cut(lines, max_bytes)


def lines_of(is_seen: Sequence[bool], tree: Tree) -> tuple[list[str], list[str]]:
    """Return the lines on the screen and the lines off it; a table's row is one line."""
    seen: list[str] = []
    unseen: list[str] = []
    nodes = tree.nodes
    at = 0
    while at < len(nodes):
        end = at + 1
        line = line_of(nodes[at])
        if nodes[at].role == "row":
            while end < len(nodes) and nodes[end].depth > nodes[at].depth:
                end += 1
            line = _row_of(nodes[at:end])
        if not _is_empty(nodes, at):
            (seen if any(is_seen[at:end]) else unseen).append(line)
        at = end
    return seen, unseen


def line_of(node: Node, indent: bool = True) -> str:
    """Return a node as a line of the observation."""
    pad = "  " * node.depth if indent else ""
    if node.role == "text":
        return f"{pad}{node.name}"
    pieces = [node.role]
    if node.name:
        pieces.append(f'"{node.name}"')
    if "value" in node.states:
        pieces.append(f'= "{node.states["value"]}"')
    if "placeholder" in node.states:
        pieces.append(f'(e.g. "{node.states["placeholder"]}")')
    for name in _FLAGS:
        if name in node.states:
            value = node.states[name]
            pieces.append(name if value is True else f"not {name}" if value is False else f"{name}: {value}")
    if "sort" in node.states:
        pieces.append(f"sorted {node.states['sort']}")
    if options := node.states.get("options"):
        rest = len(options) - _MOST_OPTIONS
        shown = " | ".join(options[:_MOST_OPTIONS]) + (f" | and {rest} more" if rest > 0 else "")
        pieces.append(f"options: {shown}")
    if node.id:
        pieces.append(f"[{node.id}]")
    return pad + " ".join(pieces)


def fitted(png: bytes, size: Size) -> bytes:
    """Return a screenshot scaled to a size, and padded where its aspect differs.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    return png if png_size(png) == size else png_from(placed(opened(png, "screenshot"), size)[0])


def marked(png: bytes, tree: Tree, scale: float = 1.0) -> tuple[bytes, list[str]]:
    """Draw numbered frames around the visible elements that can be acted on; return the PNG and the ids, number 1
    first.

    Args:
        png: the screenshot.
        tree: its page.
        scale: pixels of the screenshot for a pixel of the page.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    image = opened(png, "screenshot")
    from PIL import ImageDraw, ImageFont

    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=11)
    ids: list[str] = []
    for node in tree.nodes:
        if not (node.id and node.is_seen):
            continue
        ids.append(node.id)
        left, top, width, height = (round(side * scale) for side in node.box)
        colour = _COLOURS[len(ids) % len(_COLOURS)]
        draw.rectangle((left, top, left + width, top + height), outline=colour, width=2)
        label = str(len(ids))
        right = left + 4 + draw.textlength(label, font=font)
        draw.rectangle((left, top, right, top + 13), fill=colour)
        draw.text((left + 2, top), label, fill="#ffffff", font=font)
    return png_from(image), ids


def tabs_line(urls: Sequence[str], current: int) -> str:
    """Return a line that lists the open tabs; empty if there is only one."""
    if len(urls) < 2:
        return ""
    shown = [f"{number}{' (current)' if number - 1 == current else ''}: {url}" for number, url in enumerate(urls, 1)]
    return f"Tabs: {'; '.join(shown)}"


def _is_empty(nodes: Sequence[Node], at: int) -> bool:
    """Return True if the node is a group without content."""
    node = nodes[at]
    is_bare = not (node.name or node.id or node.states)
    return is_bare and (at + 1 == len(nodes) or nodes[at + 1].depth <= node.depth)


def _row_of(nodes: Sequence[Node]) -> str:
    """Return a table's row as its cells, separated by bars."""
    row, *rest = nodes
    cells: list[str] = []
    heads = [at for at, node in enumerate(rest) if node.depth == row.depth + 1]
    for start, end in pairwise([*heads, len(rest)]):
        cell, *inner = rest[start:end]
        own: Mapping[str, object] = cell.states
        is_plain = cell.role in ("cell", "gridcell", "text") and not cell.id and not own
        head = cell.name if is_plain else line_of(cell, indent=False)
        cells.append(" ".join(filter(None, [head, *(line_of(node, indent=False) for node in inner)])))
    return "  " * row.depth + f"row: {' | '.join(cells)}"


def _cut(lines: Sequence[str], max_bytes: int) -> str:
    """Return as many lines as fit the budget, and a note if lines were left out."""
    room = max_bytes
    kept: list[str] = []
    for number, line in enumerate(lines):
        room -= len(line.encode(errors="replace")) + 1
        if room < 0:
            whole = line.encode(errors="replace")
            if (size := len(whole) + room) > _LEAST_PART:  # of one long text the beginning is shown
                kept.append(f"{whole[:size].decode(errors='ignore')} [cut: {-room} more bytes of this line]")
                continue
            kept.append(f"[cut: {len(lines) - number} more lines; scroll, or look for what you need by other means]")
            break
        kept.append(line)
    return "\n".join(kept)
