"""Commands import what they use: nothing of torch where no model runs, and little for a dry run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
        ("train", "household-smoke", "--dry-run"),
        ("train", "alfworld-qwen2.5-1.5b", "--dry-run"),
    ],
    ids=" ".join,
)
def test_commands_without_a_model_import_no_torch(arguments: tuple[str, ...]) -> None:
    assert heavy(imported(*arguments)) == set()


def test_a_dry_run_imports_little() -> None:
    """A module takes about 1.2 ms of a processor: with 760 of them all is said within a second."""
    modules = imported("train", "household-smoke", "--dry-run")
    assert len(modules) < 760
    assert "agentgym.trainers.planning.dry_run" in modules
    for unused in ("agentgym.render.chat", "agentgym.trainers.run", "agentgym.trainers.models.gguf", "unittest"):
        assert unused not in modules
