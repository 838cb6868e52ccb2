"""A small environment in a file of its own, and a way to call commands."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

GUESS = '''
from agentgym import Message, Task, ToolEnv, register, tool


class Guess(ToolEnv):
    """Guess a number.

    The second paragraph.
    """

    def __init__(self, *, highest: int = 10, **kwargs):
        self.highest = highest
        super().__init__(**kwargs)

    def start(self, task: Task) -> str:
        self.secret = int(self.np_random.integers(1, self.highest + 1))
        self.said = []
        return f"Guess my [number] between 1 and {self.highest}."

    @tool
    def guess(self, number: int) -> str:
        """Guess the number."""
        self.said.append(number)
        if number == self.secret:
            self.finish(1.0)
        return "Correct." if number == self.secret else "Wrong."

    @tool
    def help(self) -> str:
        """Ask for help."""
        return f"{len(self.said)} guesses so far."

    def state_key(self) -> str:
        return f"{self.secret} {sorted(set(self.said))}"

    def oracle(self) -> Message:
        return self.parse_action(f"guess: {self.secret}")

    def admissible_actions(self) -> tuple[str, ...]:
        return tuple(f"guess: {n}" for n in range(1, self.highest + 1))


class NoOracle(Guess):
    """Guess without help."""

    def oracle(self) -> Message:
        return ToolEnv.oracle(self)


class Broken(Guess):
    """Breaks at the first guess."""

    @tool
    def guess(self, number: int) -> str:
        """Guess the number."""
        raise RuntimeError("the world is broken")


register("Guess-v0", Guess, max_turns=6)
register("NoOracle-v0", NoOracle, max_turns=6)
register("Broken-v0", Broken, max_turns=6)
'''


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All of standard output as one JSON value."""
        return json.loads(self.out)

    def assert_one_line_error(self, code: int = 2) -> str:
        """The error's line; nothing else may be on standard error, and no traceback anywhere."""
        assert self.code == code, self
        if self.out:  # of --json
            assert self.json == {"error": self.err.removeprefix("error: ").rstrip("\n"), "exit_code": code}
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err


Command = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Calls ``agentgym`` with arguments in an empty folder."""
    from agentgym.cli.main import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGYM_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str, stdin: str = "") -> Ran:
        with warnings.catch_warnings():  # each test registers the same ids anew, from a file of its own
            warnings.filterwarnings("ignore", message=".*Overriding environment")
            result = CliRunner().invoke(app, list(arguments), input=stdin)
        return Ran(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def guess_file(tmp_path: Path) -> Path:
    """The file of the environments ``Guess-v0``, ``NoOracle-v0`` and ``Broken-v0``."""
    path = tmp_path / "guess_envs.py"
    path.write_text(GUESS)
    return path


@pytest.fixture
def guess(guess_file: Path) -> str:
    """A reference to ``Guess-v0``."""
    return f"{guess_file}:Guess-v0"
