"""Base class of a domain's tools, which are ``@tool`` methods over a database."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from agentgym.call_syntax import format_call
from agentgym.envs.domains.database import Database, Record
from agentgym.envs.domains.task import GoldAction
from agentgym.errors import EnvError, ToolDefinitionError, ToolError
from agentgym.tool import Tool, tools_of, unknown_tool
from agentgym.types import ToolCall


class Toolkit:
    """Base class of a domain's tools. A tool must raise :class:`~agentgym.errors.ToolError` before it writes anything.

    Example:
        >>> from agentgym.tool import tool
        >>> class Library(Toolkit):
        ...     writes = frozenset({"lend"})
        ...     @tool
        ...     def lend(self, book: str) -> str:
        ...         '''Lend a book.'''
        ...         if self.need("books", book, "book")["is_out"]:
        ...             raise ToolError(f"{book} is lent already")
        ...         self.db.edit("books", book)["is_out"] = True
        ...         return "Lent."
        >>> library = Library(Database({"books": {"Emma": {"is_out": False}}}))
        >>> library.call(GoldAction("lend", {"book": "Emma"}))
        'Lent.'
        >>> library.call(GoldAction("lend", {"book": "Emma"}))
        Traceback (most recent call last):
        agentgym.errors.ToolError: Emma is lent already
    """

    writes: ClassVar[frozenset[str]] = frozenset()
    """Names of the tools that change the database."""
    transfer: ClassVar[str] = ""
    """Name of the tool that transfers the user to a person, which ends the conversation; empty if there is none."""
    identifies: ClassVar[frozenset[str]] = frozenset()
    """Names of the tools that return a user's id, through which the agent identifies the user."""
    tools: ClassVar[dict[str, Tool]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = tools_of(cls)
        for name in (*cls.writes, *cls.identifies, *filter(None, [cls.transfer])):
            if name not in cls.tools:
                raise ToolDefinitionError(f"{cls.__name__} has no tool {name!r}; it has {', '.join(cls.tools)}")

    def __init__(self, db: Database) -> None:
        self.db = db

    def need(self, table: str, key: str, what: str) -> Record:
        """Return a read-only record.

        Raises:
            ToolError: there is no such record.
        """
        record = self.db.find(table, key)
        if record is None:
            raise ToolError(f"{what} {key!r} not found", "not_found")
        return record

    def owner_of(self, action: GoldAction) -> str | None:
        """Return the user whose data a call reads or writes, or None if the data belong to no user."""
        return None

    def call(self, action: GoldAction) -> Any:
        """Run a tool after checking its arguments.

        Raises:
            ToolError: there is no such tool, the arguments do not fit the schema, or the tool rejects the call.
        """
        found = self.tools.get(action.name)
        if found is None:
            raise unknown_tool(action.name, list(self.tools))
        return found.call(self, found.arguments(ToolCall(action.name, action.arguments)))

    def replay(self, actions: Iterable[GoldAction], *, allows_rejected: bool = True) -> None:
        """Run gold actions. A rejected one changes nothing.

        Raises:
            EnvError: an action names no tool, or is rejected and may not be, so that doing nothing would be right.
        """
        for action in actions:
            if action.name not in self.tools:
                known = ", ".join(self.tools)
                raise EnvError(f"the gold action {action.name!r} is no tool of {type(self).__name__}; it has {known}")
            try:
                self.call(action)
            except ToolError as error:
                if not allows_rejected:
                    call = format_call(
                        ToolCall(action.name, action.arguments), [tool.spec for tool in self.tools.values()]
                    )
                    raise EnvError(
                        f"the gold action {call!r} is rejected ({error}); mend it, or set the task's allows_rejected"
                    ) from error


def bound(tool: Tool, run: Callable[..., object]) -> Tool:
    """Convert a toolkit's tool to an environment's, which runs ``run(env, tool, arguments)`` and looks the same to the
    model.
    """

    @functools.wraps(tool.function)
    def call(env: object, **arguments: object) -> Any:
        return run(env, tool, arguments)

    return replace(tool, function=call, attribute="")
