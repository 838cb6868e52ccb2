"""Commands import what they use: no other command, nothing of torch where no model runs, and little for a plan."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import typer

from agentgym.cli.main import app

HEAVY = ("torch", "transformers", "tokenizers", "peft", "jinja2", "httpx", "ray", "playwright", "PIL", "matplotlib")
CODE = """
import json, sys
from agentgym.cli.main import app
app(json.loads(sys.argv[1]), standalone_mode=False)
print(json.dumps(list(sys.modules)), file=sys.stderr)
"""


def imported(*arguments: str) -> list[str]:
    """Return the modules that a command has imported at its end."""
    command = [sys.executable, "-c", CODE, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stderr)
    return modules


@pytest.mark.parametrize("arguments", [("list",), ("describe", "agentgym/Maze-v0")], ids=" ".join)
def test_a_command_imports_no_other_command(arguments: tuple[str, ...]) -> None:
    group: Any = typer.main.get_command(app)
    others = {f"agentgym.cli.{name.replace('-', '_')}" for name in group.commands if name != arguments[0]}
    assert others & set(imported(*arguments)) == set()


@pytest.mark.parametrize("arguments", [("list",), ("--help",)], ids=" ".join)
def test_what_makes_no_environment_imports_no_gymnasium(arguments: tuple[str, ...]) -> None:
    assert {"gymnasium", "numpy"} & set(imported(*arguments)) == set()


def test_every_command_has_its_name_and_a_summary() -> None:
    group: Any = typer.main.get_command(app)
    assert [name for name, command in group.commands.items() if command.name != name or not command.help] == []


def heavy(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} & set(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("list", "--suites"),
        ("list", "--strategies"),
        ("list", "--credit"),
        ("describe", "agentgym/Household-v0"),
    ],
    ids=" ".join,
)
def test_commands_without_a_model_import_no_torch(arguments: tuple[str, ...]) -> None:
    assert heavy(imported(*arguments)) == set()


PLAN = """
import json, sys
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.recipes import load_recipe
assert dry_run(load_recipe("household-smoke")).num_steps
print(json.dumps(list(sys.modules)), file=sys.stderr)
"""


def test_a_plan_imports_little() -> None:
    """A module takes about 1.2 ms of a processor; the rehearsal of the start, after it, loads what a start loads."""
    done = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, check=True)
    modules: list[str] = json.loads(done.stderr)
    assert len(modules) < 760 and not heavy(modules)
    for unused in ("agentgym.render.chat", "agentgym.trainers.run", "agentgym.trainers.models.gguf", "unittest"):
        assert unused not in modules
