"""A person's game through a pipe, and policies that are watched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
BARE = """
from agentgym import Task, ToolEnv, register, tool

class Bare(ToolEnv):
    def tasks(self, split):
        return [Task(id="0", split=split, seed=0)] if split == "test" else []

    def start(self, task):
        return "Go."

    @tool
    def go(self) -> str:
        '''Go.'''
        return "Gone."

register("Bare-v0", Bare)
"""


def test_a_human_game(run: Command, guess: str) -> None:
    hint = run("play", guess, stdin="hint\nquit\n").out
    secret = hint.partition("the gold policy would say: ")[2].split("\n")[0]
    wrong = "guess: 1" if secret != "guess: 1" else "guess: 2"
    done = run("play", guess, stdin=f"\n{wrong}\nundo\n{wrong}\n:help\nactions\n{secret}\n")
    assert done.code == 0
    for text in ("my [number]", "Wrong.", "back after turn 0", "guess(number: integer)", "guess: 10", "Correct."):
        assert text in done.out
    assert "success, return 1 in 2 turns" in done.out


def test_the_environments_own_tool_comes_before_a_command(run: Command, guess: str) -> None:
    assert "0 guesses so far." in run("play", guess, stdin="help\n").out


def test_json_of_a_game(run: Command, guess: str) -> None:
    done = run("play", guess, "--policy", "oracle", "--seed", "3", "--split", "test", "--json")
    assert done.json == {
        "env": "Guess-v0", "task_id": "test-3", "status": "completed", "success": True, "return": 1.0, "num_turns": 1,
    }  # fmt: skip
    stopped = run("play", guess, "--json", stdin="guess: 99\nnonsense(\nquit\n").json
    assert (stopped["status"], stopped["success"], stopped["num_turns"]) == ("stopped", None, 2)


def test_end_of_input_ends_politely(run: Command, guess: str) -> None:
    done = run("play", guess, stdin="undo\n")
    assert done.code == 0
    assert "nothing to take back" in done.out
    assert "stopped after 0 turns" in done.out


def test_random_policy_and_running_out_of_turns(run: Command, guess: str) -> None:
    done = run("play", guess, "highest=1000", "--policy", "random")
    assert "out of turns, no success, return 0 in 6 turns" in done.out
    assert done.out == run("play", guess, "highest=1000", "--policy", "random").out


def test_no_oracle(run: Command, guess_file: Path) -> None:
    reference = f"{guess_file}:NoOracle-v0"
    assert "has no oracle" in run("play", reference, stdin="hint\n").out
    failed = run("play", reference, "--policy", "oracle")
    assert failed.code == 2
    assert "has no oracle" in failed.err


def test_a_broken_world_is_a_failure_with_its_place(run: Command, guess_file: Path) -> None:
    failed = run("play", f"{guess_file}:Broken-v0", stdin="guess: 1\n")
    assert failed.code == 1
    assert "the world is broken" in failed.err
    assert "guess_envs.py:" in failed.err
    assert "Traceback" not in failed.err


def test_unknown_split(run: Command, guess: str) -> None:
    assert "did you mean 'test'?" in run("play", guess, "--split", "tests").assert_one_line_error()


def test_a_split_without_tasks(run: Command, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    failed = run("play", "bare.py").assert_one_line_error()
    assert "Bare-v0 has no tasks in split 'train'; it has test: 1" in failed


def test_markup_of_the_world_is_shown_as_it_is(run: Command, guess: str) -> None:
    assert "[bold]x[/]" in run("play", guess, stdin="[bold]x[/]\n").out


SHOP = '''
from typing import Annotated

from pydantic import BaseModel, Field

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool


class Gift(BaseModel):
    name: str
    wrapped: bool = False


class Shop(ToolEnv):
    max_turns = 9

    def tasks(self, split):
        return [Task(id="0", split=split, seed=0)]

    def start(self, task):
        return "A shop."

    @tool
    def buy(self, what: str, count: int = Field(default=1, le=3), note: str | None = None) -> str:
        """Buy."""
        if what == "all":
            self.finish(1.0)
        return f"{count} x {what} ({note})"

    @tool
    def give(self, gift: Gift) -> str:
        """Give."""
        return f"gave {gift.name}"

    def oracle(self):
        return ORACLE


ORACLE = Message("assistant", "", (ToolCall("buy", {"what": "all", "count": 2}),))
register("Shop-v0", Shop)
'''


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path / "shop.py"


def test_calls_as_a_person_writes_them(run: Command, shop: Path) -> None:
    lines = [
        "buy: cup",
        "buy: cup; note=for Ada",
        'buy: {"what": "cup", "count": 3}',
        "buy: cup; 9",
        'buy: {"wat": "cup"}',
        'give: {"gift": {"name": "cup"}}',
        'give: {"name": "tea"}',
        "help",
    ]
    said = run("play", str(shop), stdin="\n".join(lines)).out
    for text in ("1 x cup (None)", "1 x cup (for Ada)", "3 x cup (None)", "gave cup", "gave tea"):
        assert text in said
    assert "count: Input should be less than or equal to 3" in said
    assert "'wat' is no parameter; they are what, count, note" in said
    assert "{wat" not in said and '{"wat": "cup"} (None)' not in said
    assert "`name: key=value` names an" in said and "those with ? may be left out" in said
    assert "give(gift: {name: string, wrapped?: boolean})" in said


@pytest.mark.parametrize(
    "oracle",
    [
        'Message("assistant", "", (ToolCall("buy", {"what": "all", "count": 2}),))',
        'ToolCall("buy", {"what": "all", "count": 2})',
        '"buy: all; 2"',
    ],
)
def test_what_an_oracle_would_do_is_shown(run: Command, shop: Path, oracle: str) -> None:
    shop.write_text(SHOP.replace('Message("assistant", "", (ToolCall("buy", {"what": "all", "count": 2}),))', oracle))
    assert "the gold policy would say: buy: all; 2\n" in run("play", str(shop), stdin="hint\n").out
    watched = run("play", str(shop), "--policy", "oracle")
    assert watched.code == 0
    assert "> buy: all; 2\n" in watched.out and "success, return 1 in 1 turns" in watched.out


def test_thoughts_of_an_oracle_are_shown_with_its_calls(run: Command, shop: Path) -> None:
    shop.write_text(SHOP.replace('Message("assistant", ""', 'Message("assistant", "I buy."'))
    assert "I buy.\nbuy: all; 2\n" in run("play", str(shop), stdin="hint\n").out


LOST_ORACLE = """
from agentgym import Message, ToolCall, ToolEnv, register, tool

class Lost(ToolEnv):
    '''Press the button twice.'''

    def start(self, task):
        self.pressed = 0
        return "Press."

    def oracle(self):
        return next(iter([Message("assistant", "", (ToolCall("press", {}),))][self.pressed:]))

    @tool
    def press(self) -> str:
        '''Press it.'''
        self.pressed += 1
        return "pressed"

register("Lost-v0", Lost, max_turns=3)
"""


def test_an_oracle_off_its_path_is_told_by_name(run: Command, tmp_path: Path) -> None:
    Path("lost.py").write_text(LOST_ORACLE)
    said = "its oracle knows no action in this state (StopIteration)"
    assert said in run("play", "lost.py:Lost-v0", "--policy", "oracle").err
    done = run("eval", "lost.py:Lost-v0", "--policy", "oracle", "--episodes", "1", "--run-dir", "lost")
    assert said in done.err + done.out


def test_a_file_of_a_package_is_named_as_its_module(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "shops" / "gifts"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "words.py").write_text("WORD = 'A shop.'\n")
    (package / "env.py").write_text("from .words import WORD\n" + SHOP.replace('"A shop."', "WORD"))
    failed = run("check", "shops/gifts/env.py").assert_one_line_error()
    assert "imports relatively, as only a part of a package can; name it as shops.gifts.env:NAME" in failed
    assert "A shop." in run("play", "shops.gifts.env:Shop-v0", stdin="quit\n").out
    missing = run("play", "shops.gifts.nothing:Shop-v0").assert_one_line_error()
    assert "no module 'shops.gifts.nothing'; to use a file, write its path: shops/gifts/nothing.py:NAME" in missing


OWN = """
from typing import Literal

from agentgym import ToolEnv, register, tool
from agentgym.evals.policies import policy


class Door(ToolEnv):
    max_turns = 2

    def start(self, task):
        return "Open a door."

    @tool
    def open(self, door: Literal["red", "blue"]) -> str:
        '''Open a door.'''
        self.finish(float(door == "blue"))
        return "Open."


register("Door-v0", Door)


@policy("bold")
def bold(env):
    return "open: blue"
"""


def test_a_policy_of_ones_own_is_watched_as_it_is_evaluated(run: Command) -> None:
    Path("door.py").write_text(OWN)
    assert run("play", "door.py", "--policy", "door.py:bold", "--json").json["success"] is True
    assert run("play", "door.py", "--policy", "idle", "--json").json["success"] is False
    assert (
        "registers no policy 'timid', only bold"
        in run("play", "door.py", "--policy", "door.py:timid").assert_one_line_error()
    )
    for unknown in ("orcale", "openai:http://127.0.0.1:1/v1", "some/folder"):
        told = run("play", "door.py", "--policy", unknown).assert_one_line_error()
        assert "human, oracle, random, idle or file.py:NAME" in told


def test_help_names_the_choices_of_an_argument(run: Command) -> None:
    Path("door.py").write_text(OWN)
    assert "open(door: red or blue)" in run("play", "door.py", stdin="help\nquit\n").out


def test_pictures_are_files_to_look_at(run: Command) -> None:
    shown = run("play", "agentgym/VisualMaze-v0", "picture=64", stdin="move: north\nquit\n").out
    files = [Path(line.partition(": ")[2].strip(" │")) for line in shown.splitlines() if "picture " in line]
    assert [file.name for file in files] == ["1.png", "2.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
