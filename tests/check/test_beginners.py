"""Mistakes that beginners make in an environment: the check names the cause, and a sound neighbour passes."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym import Message, Task, ToolEnv, register, tool
from agentgym.check import check_env
from agentgym.errors import EnvError, UsageError
from agentgym.registry import make

NUM_EPISODES = 3


def detail(env: type[ToolEnv], check: str) -> str:
    return {one.name: one.detail for one in check_env(env, num_episodes=NUM_EPISODES).checks}[check]


class Guess(ToolEnv):
    """Guess a number from 1 to 4."""

    max_turns = 4

    def start(self, task: Task) -> str:
        self.secret = int(self.np_random.integers(1, 5))
        return "Guess a number from 1 to 4."

    def state_key(self) -> str:
        return f"{self.secret}"

    def oracle(self) -> Message:
        return self.parse_action(f"guess: {self.secret}")

    def won(self) -> Any:
        self.finish(1.0)
        return "Correct."

    @tool
    def guess(self, number: int) -> Any:
        """Guess the number."""
        return self.won() if number == self.secret else "No."


class ReturnsTheReward(Guess):
    def won(self) -> Any:
        return 1.0


class PaysForAStep(Guess):
    def won(self) -> Any:
        self.award(1.0, "won", role="process")
        self.finish()
        return "Correct."


class PaysAHalf(Guess):
    def won(self) -> Any:
        self.finish(0.5)
        return "Correct."


class WrongOracle(Guess):
    def oracle(self) -> Message:
        return self.parse_action(f"guess: {self.secret % 4 + 1}; 7")


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        (ReturnsTheReward, ["no part of the role outcome", "self.finish(1.0)", "answer '1.0'"]),
        (PaysForAStep, ["no part of the role outcome", "other parts: won (process)"]),
        (PaysAHalf, ["its outcome is 0.5, and 1 is a success"]),
        (WrongOracle, ["4 of its actions were refused", "last action 'guess: ", "Error: could not read"]),
    ],
)
def test_an_oracle_without_success_shows_what_its_episode_earned(env: type[ToolEnv], parts: list[str]) -> None:
    told = detail(env, "oracle")
    assert all(part in told for part in parts), told


class KeyWithTurn(Guess):
    def state_key(self) -> str:
        return f"{self.secret} {self.turn}"


class KeyWithTurnsLeft(Guess):
    def state_key(self) -> str:
        return f"{4 - self.turn} of number {self.secret}"


class KeyWithGuesses(Guess):
    """Refused turns cost nothing here, so that the number is the world's, not the turn's."""

    def start(self, task: Task) -> str:
        self.num_guesses = 0
        return super().start(task)

    def state_key(self) -> str:
        return f"{self.secret} {self.num_guesses}"

    @tool
    def guess(self, number: int) -> Any:
        """Guess the number."""
        self.num_guesses += 1
        return self.won() if number == self.secret else "No."


@pytest.mark.parametrize(("env", "counts"), [(KeyWithTurn, True), (KeyWithTurnsLeft, True), (KeyWithGuesses, False)])
def test_a_key_that_counts_turns_is_told(env: type[ToolEnv], counts: bool) -> None:
    told = detail(env, "state keys")
    assert told.startswith("warning: ") == counts == ("counts turns" in told), told


class NoTool(ToolEnv):
    """A world whose author forgot the decorator."""

    max_turns = 4

    def start(self, task: Task) -> str:
        return "Guess."

    def guess(self, number: int) -> str:
        return "No."


def test_an_environment_of_tools_without_a_tool_fails() -> None:
    assert "NoTool is a ToolEnv without a tool: write @tool" in detail(NoTool, "tool schemas")


@pytest.mark.parametrize("value", ["1", "won", b"1"])
def test_a_text_is_no_reward(value: Any) -> None:
    env = Guess()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="expected a number"):
        env.award(value, "won")


class TakesNoKeywords(Guess):
    def __init__(self, level: int = 1) -> None:
        super().__init__()


def test_a_constructor_that_hides_the_base_class_is_told_how_to_take_its_arguments() -> None:
    register("TakesNoKeywords-v0", TakesNoKeywords, max_turns=4)
    with pytest.raises(UsageError, match=r"'max_turns'.*\*\*kwargs\) with super\(\).__init__\(\*\*kwargs\)"):
        make("TakesNoKeywords-v0")


def test_an_instance_is_not_registered() -> None:
    with pytest.raises(UsageError, match="takes the class Guess, not an instance"):
        register("Instance-v0", Guess())  # type: ignore[arg-type]
