"""Commands that the README and the docs only show: each can be parsed, and runs can be planned.

``bash`` blocks and transcripts are run by ``test_docs.py``. What takes longer, needs a GPU or changes the machine
stands in other ``text`` blocks and in running text.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import RECIPES, load_recipe

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(agentgym [^`]+|make [a-z-]+)`(?!`)")
USAGE = re.compile(r" \| |\S {3,}agentgym|\[-|\[[A-Za-z]+[=\]]|\.\.\.|…|[a-z]\|[a-z]")
"""What only a line that tells how a command is used has."""
VERBS = tuple(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def text_blocks(page: Path) -> Iterator[str]:
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "text":
            yield body.replace("\\\n", " ")


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command in the text blocks and the running text of a page."""
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    lines = [line for body in text_blocks(page) for line in body.splitlines() if not line.startswith("$ ")]
    for line in [*lines, *(" ".join(span.split()) for span in SPAN.findall(prose))]:
        if USAGE.search(line) or not re.search(r"\b(agentgym|make|pip|python) ", line):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # prose with an apostrophe
            continue
        for name in ("agentgym", "make", "python", "pip"):
            if name in words and (name != "agentgym" or words[0] in {"agentgym", "torchrun", "docker"}):
                yield words[words.index(name) :]
                break


def parsed(words: list[str]) -> Any:
    """Parse a command as the command line does, run nothing, and return its context."""
    command: Any = typer.main.get_command(app)  # typer's own copy of click has no names of its own
    context, rest = None, words
    while True:
        context = command.make_context(command.name or "agentgym", rest, parent=context)
        if not isinstance(command, TyperGroup):
            return context
        _, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command = found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_can_be_given(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (own,) = re.findall(r"```python\n(# guess.py\n.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    Path("guess.py").write_text(own, encoding="utf-8")
    for program, *words in commands(page):
        told = f"{page.name}: {program} {shlex.join(words)}"
        if program == "agentgym":
            if len(words) == 1:  # named in a sentence, without its arguments
                assert words[0].startswith("--") or words[0] in VERBS, told
                continue
            try:
                context = parsed(words)
            except Exception as error:
                pytest.fail(f"{told}: {error}")
            if words[0] == "train":
                check_training(context, told)
        elif program == "make":
            targets = [word for word in words if "=" not in word]
            subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, capture_output=True)
        elif program == "pip":
            check_extras(words, told)
        elif words[0].endswith(".py") and "/" in words[0]:
            code = (ROOT / words[0]).read_text(encoding="utf-8")
            assert all(word in code for word in words if word.startswith("--")), told


def check_training(context: Any, told: str) -> None:
    """Plan a run, or see that a resumed one is given no values but those of a branch."""
    recipe, overrides = context.params["recipe"], context.params["overrides"] or []
    if context.params["resume"] is not None and context.params["run_dir"] is not None:
        branched = [re.sub(r"=(FOLDER|RUN|ID|.*\.\.\.)$", "", text) for text in [recipe or "", *overrides] if text]
        apply_overrides(load_recipe("tiny"), [text for text in branched if "=" in text])
    elif context.params["resume"] is not None:
        assert all(text.startswith("num_steps=") for text in [*([recipe] if recipe else []), *overrides]), told
    elif recipe in RECIPES:
        values = [re.sub(r"=(FOLDER|RUN|ID|.*\.\.\.)$", "", text) for text in overrides]
        done = CliRunner().invoke(app, ["train", recipe, *(v for v in values if "=" in v), "--dry-run"])
        is_unknown_model = "sizes are known only of" in done.stderr  # of a folder that the page leaves open
        assert done.exit_code == 0 or is_unknown_model, f"{told}: {done.stderr}"
    elif recipe is not None:
        assert recipe.isupper(), f"{told}: no such recipe"


def check_extras(words: list[str], told: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for word in words:
        extras = re.search(r"(?:^\.|agentgym)\[([\w,-]+)\]", word)
        assert extras is None or set(extras.group(1).split(",")) <= set(known), told


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"## Commands\n\n```text\n(.*?)```", readme, re.DOTALL)
    assert [name for name in VERBS if not re.search(rf"\b{name}\b", block)] == []
