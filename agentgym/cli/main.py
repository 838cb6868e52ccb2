"""The command ``agentgym`` and its subcommands.

The module of a subcommand is imported when the subcommand is called, and imports its dependencies inside its function,
so that ``agentgym list`` is fast.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentgym.cli.exits import interrupt_on_ending_signals, mapped_errors, open_missing_streams, silence_closed_pipes
from agentgym.visible_text import visible

_COMMANDS = {
    "list": "list:list_",
    "describe": "describe:describe",
    "check": "check:check",
    "play": "play:play",
    "eval": "eval:eval_",
    "compare": "compare:compare",
    "cross-play": "cross_play:cross_play",
    "train": "train:train",
    "sweep": "sweep:sweep",
    "table": "table:table",
    "plot": "plot:plot",
    "serve": "serve:serve",
    "mcp": "mcp:mcp",
    "serve-model": "serve_model:serve_model",
    "serve-search": "serve_search:serve_search",
    "view": "view:view",
    "export": "export:export",
    "convert": "convert:convert",
    "credit": "credit:credit",
    "new": "new:new",
    "doctor": "doctor:doctor",
    "reap": "reap:reap",
    "model": "model:model",
    "sandbox": "sandbox:sandbox",
}
"""Subcommands in the order of ``agentgym --help``, each with its module in this package and its function or group."""
_SETTINGS = {name: {"ignore_unknown_options": True} for name in ("train", "sweep")}  # the message names the right form


class _LazyCommands(Mapping[str, Any]):
    """The subcommands by name. A look-up imports the subcommand; names alone import nothing."""

    def __getitem__(self, name: str) -> Any:
        return _build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


@functools.cache
def _build(name: str) -> Any:
    """Import a subcommand and return the command that typer builds from it.

    Raises:
        KeyError: there is no such subcommand.
    """
    module, _, attribute = _COMMANDS[name].partition(":")
    found = getattr(importlib.import_module(f"agentgym.cli.{module}"), attribute)
    alone = typer.Typer()
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, context_settings=_SETTINGS.get(name))(found)
    command = typer.main.get_group(alone).commands[name]
    _keep_brackets(command)
    return command


def _keep_brackets(command: Any) -> None:
    """Escape the brackets in the help of a command's options, such as ``[default: all]``, which rich takes for markup
    and leaves out.
    """
    for parameter in command.params:
        if parameter.help:
            parameter.help = parameter.help.replace("[", r"\[")
    for member in getattr(command, "commands", {}).values():
        _keep_brackets(member)


class _Commands(TyperGroup):
    """All subcommands; the only place where their errors are mapped to exit codes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _LazyCommands()})

    def invoke(self, ctx: Any) -> object:
        with mapped_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: object) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        import agentgym

        print(agentgym.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """A gym and a trainer for tool-using language agents.

    Exit codes: 0 ok, 1 failed, 2 usage. AGENTGYM_DEBUG=1 shows tracebacks.
    """


class _VisibleFormatter(logging.Formatter):
    """A format of log lines, which may quote servers, that shows control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def main() -> None:
    """Run the command line."""
    # Threads of torch that wait for each other sleep. By default they spin, and on busy cores keep away the one that is
    # waited for: two threads were many times slower than one. OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    open_missing_streams()
    interrupt_on_ending_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):  # as Python does for stderr: names of folders may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())
    faulthandler.enable()  # a tool's library that crashes ends the process; this prints where
    try:
        app()
    finally:
        silence_closed_pipes()


if __name__ == "__main__":
    main()
