"""A person's game through a pipe, and policies that are watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
