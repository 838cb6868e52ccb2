"""The accessibility tree of a page, as ``page/tree.js`` returns it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

CLICKABLE_ROLES = frozenset(
    {"button", "checkbox", "clickable", "link", "menuitem", "menuitemcheckbox", "menuitemradio"}
    | {"option", "radio", "switch", "tab", "treeitem", "generic"}
)
TEXT_ROLES = frozenset({"textbox", "searchbox", "spinbutton"})
_UNSTATED = frozenset({"options", "placeholder"})  # fixed properties of an element, which are no part of the state


@dataclass(frozen=True, slots=True)
class Node:
    """One line of the tree."""

    depth: int
    role: str
    """A role of WAI-ARIA, ``text``, or ``clickable`` for clickable elements without a role."""
    name: str
    states: Mapping[str, Any] = field(default_factory=dict)
    """``value``, ``checked``, ``selected``, ``expanded``, ``disabled``, ``focused`` ... where they apply."""
    id: str = ""
    """Id by which actions refer to it; empty if no action applies to it."""
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Left, top, width, height in pixels of the viewport."""
    is_seen: bool = True
    """True if a part of it is within the viewport, whether or not something covers it."""


@dataclass(frozen=True)
class Tree:
    """The tree of a settled page.

    Example:
        >>> nodes = (Node(0, "button", "Go", {}, "go"), Node(0, "link", "Help", {}, "help"))
        >>> page = Tree("http://a.localhost/", "A", nodes)
        >>> page.find("link").id, page.ids
        ('help', ('go', 'help'))
    """

    url: str
    title: str
    nodes: tuple[Node, ...]
    view: tuple[int, int] = (0, 0)
    """Width and height of the viewport."""
    scroll: tuple[int, int] = (0, 0)
    """Scroll position in pixels."""
    extent: tuple[int, int] = (0, 0)
    """Width and height of the whole page."""

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> Tree:
        """Return the tree from the JSON of ``page/tree.js``."""
        nodes = (
            Node(
                depth=node["depth"],
                role=node["role"],
                name=node["name"],
                states=node["states"],
                id=node.get("id", ""),
                box=tuple(node["box"] or (0, 0, 0, 0)),
                is_seen=node["seen"],
            )
            for node in seen["nodes"]
        )
        return cls(
            seen["url"],
            seen["title"],
            tuple(node for node in nodes if node.role != "text" or node.name),
            tuple(seen["view"]),
            tuple(seen["scroll"]),
            tuple(seen["extent"]),
        )

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """The nodes that actions can refer to."""
        return {node.id: node for node in self.nodes if node.id}

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, in the page's order."""
        return tuple(self.by_id)

    @property
    def text(self) -> str:
        """All names and texts on the page, one per line."""
        return "\n".join(node.name for node in self.nodes if node.name)

    def find_all(self, role: str, name: str | None = None) -> Iterator[Node]:
        """Return the nodes of a role and, if given, of a name."""
        return (node for node in self.nodes if node.role == role and name in (None, node.name))

    def find(self, role: str, name: str | None = None) -> Node:
        """Return the first of :meth:`find_all`.

        Raises:
            LookupError: there is none; the message lists the names that have that role.
        """
        found = next(self.find_all(role, name), None)
        if found is None:
            names = [node.name for node in self.find_all(role)]
            raise LookupError(f"no {role} {name or ''!r} on {self.url}; there are {names or 'none of that role'}")
        return found

    def state(self) -> list[Any]:
        """Return address and tree with values, checks and focus, but without boxes, scrolling and visibility."""
        told = [
            [node.depth, node.role, node.name, {name: v for name, v in node.states.items() if name not in _UNSTATED}]
            for node in self.nodes
        ]
        return [self.url, told]
