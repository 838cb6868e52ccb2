"""The command ``agentgym`` and its subcommands.

The module of each subcommand imports its dependencies inside its function, so that ``agentgym list`` is fast.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentgym.cli.check import check
from agentgym.cli.compare import compare
from agentgym.cli.convert import convert
from agentgym.cli.credit import credit
from agentgym.cli.describe import describe
from agentgym.cli.doctor import doctor
from agentgym.cli.eval import eval_
from agentgym.cli.exits import interrupt_on_ending_signals, mapped_errors
from agentgym.cli.export import export
from agentgym.cli.list import list_
from agentgym.cli.mcp import mcp
from agentgym.cli.model import model
from agentgym.cli.new import new
from agentgym.cli.play import play
from agentgym.cli.plot import plot
from agentgym.cli.reap import reap
from agentgym.cli.sandbox import sandbox
from agentgym.cli.serve import serve
from agentgym.cli.serve_model import serve_model
from agentgym.cli.serve_search import serve_search
from agentgym.cli.train import train
from agentgym.cli.view import view


class _Commands(TyperGroup):
    """All subcommands; the only place where their errors are mapped to exit codes."""

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
app.command("list")(list_)
app.command("describe")(describe)
app.command("check")(check)
app.command("play")(play)
app.command("eval")(eval_)
app.command("compare")(compare)
app.command("train", context_settings={"ignore_unknown_options": True})(train)  # the message names the right form
app.command("serve")(serve)
app.command("mcp")(mcp)
app.command("serve-model")(serve_model)
app.command("serve-search")(serve_search)
app.command("view")(view)
app.command("plot")(plot)
app.command("export")(export)
app.command("convert")(convert)
app.command("credit")(credit)
app.command("new")(new)
app.command("doctor")(doctor)
app.command("reap")(reap)
app.add_typer(model, name="model")
app.add_typer(sandbox, name="sandbox")


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


def main() -> None:
    """Run the command line."""
    # Threads of torch that wait for each other sleep. By default they spin, and on busy cores keep away the one that is
    # waited for: two threads were many times slower than one. OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    interrupt_on_ending_signals()
    app()


if __name__ == "__main__":
    main()
