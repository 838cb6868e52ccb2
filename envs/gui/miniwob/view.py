"""A solver's view of the page, which holds no more than the agent's, and short forms of calls."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentgym.envs.gui.tree import Node, Tree
from agentgym.types import ToolCall


@dataclass(frozen=True, slots=True)
class View:
    """A settled page of MiniWoB++."""

    goal: str
    page: Tree
    html: str
    """The markup of the page's body, which an agent can observe by ``observe=["html"]``."""

    def quoted(self, number: int = 0) -> str:
        """Return a text between quotation marks in the goal, the first or a later one."""
        return str(re.findall(r'"([^"]*)"', self.goal)[number])

    def match(self, pattern: str) -> tuple[str, ...]:
        """Return the groups of a pattern in the goal.

        Raises:
            LookupError: the goal is of another form.
        """
        found = re.search(pattern, self.goal)
        if found is None:
            raise LookupError(f"a goal of another form: {self.goal!r}")
        return found.groups()

    def named(self, name: str, *roles: str) -> Node:
        """Return the first element of a name that can be acted on, of some roles if they are given.

        Raises:
            LookupError: there is none.
        """
        for node in self.page.nodes:
            if node.id and node.name == name and (not roles or node.role in roles):
                return node
        raise LookupError(f"nothing named {name!r} among {[node.name for node in self.page.nodes]}")

    def all(self, *roles: str) -> list[Node]:
        """Return the elements of some roles that can be acted on."""
        return [node for node in self.page.nodes if node.id and node.role in roles]


def call(name: str, **arguments: object) -> ToolCall:
    """Return a call of a tool."""
    return ToolCall(name, arguments, "0")


def click(node: Node) -> ToolCall:
    """Return a call that clicks."""
    return call("click", id=node.id)


def fill(node: Node, text: str) -> ToolCall:
    """Return a call that puts a text into a box."""
    return call("fill", id=node.id, text=text)


def filled(view: View, texts: list[tuple[Node, str]], then: ToolCall) -> ToolCall:
    """Return a call that fills the first box whose text differs; ``then`` if none does."""
    for node, text in texts:
        value = node.states.get("value", "")
        if value not in (text, "•" * len(text)):
            return fill(node, text)
    return then
