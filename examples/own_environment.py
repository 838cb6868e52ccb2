"""Write an environment, check it, evaluate policies in it, and credit every turn of its episodes.

Run it with `python examples/own_environment.py`. It takes a few seconds and needs no model.
"""

from __future__ import annotations

import argparse

import numpy as np

import agentgym
from agentgym import Message, Task, ToolCall, ToolEnv, tool
from agentgym.check import check_env
from agentgym.credit.compose import CreditConfig, assign_credit
from agentgym.types import TrajectoryGroup

DIALS = 3


class Safe(ToolEnv):
    """Open a safe by turning its dials, one digit at a time."""

    max_turns = 8

    def start(self, task: Task) -> str:
        """Choose the combination; ``np_random`` is seeded by the task."""
        self._digits = [int(digit) for digit in self.np_random.integers(1, 4, DIALS)]
        self._shown = [0] * DIALS
        return f"The safe has {DIALS} dials. Each opens at 1, 2 or 3. Turn them until all of them click."

    @tool
    def turn(self, dial: int, digit: int) -> str:
        """Turn a dial to a digit.

        Args:
            dial: number of the dial, counted from 1.
            digit: 1, 2 or 3.
        """
        if not 1 <= dial <= DIALS:
            raise agentgym.ToolError(f"there is no dial {dial}; the dials are 1 to {DIALS}")
        self._shown[dial - 1] = digit
        if self._shown == self._digits:
            self.finish(1.0)
            return "The safe opens."
        return "Click." if digit == self._digits[dial - 1] else "Nothing."

    def state_key(self) -> str:
        """Return the dials' positions: GiGPO compares the turns that start from the same ones."""
        return str(self._shown)

    def oracle(self) -> Message:
        """Return an expert's action. It provides demonstrations, and the upper bound in an evaluation."""
        wrong = next(i for i in range(DIALS) if self._shown[i] != self._digits[i])
        call = ToolCall("turn", {"dial": wrong + 1, "digit": self._digits[wrong]})
        return Message("assistant", f"I turn dial {wrong + 1}.", (call,))


def guesses(rng: np.random.Generator) -> ToolCall:
    """Guess at random. A policy is a function whose parameters may be ``env``, ``observation`` and ``rng``."""
    return ToolCall("turn", {"dial": int(rng.integers(1, DIALS + 1)), "digit": int(rng.integers(1, 4))})


def show_credit(group: TrajectoryGroup) -> None:
    """Print the advantage of every turn of a group."""
    (credit,) = assign_credit([group], CreditConfig(estimator="gigpo"))
    for trajectory, credits in zip(group.valid, credit, strict=True):
        print(f"an episode of return {trajectory.reward:.0f}")
        for turn, credited in zip(trajectory.turns, credits, strict=True):
            call = turn.action.calls[0]
            assert isinstance(call, ToolCall)
            print(f"  {turn.state_key:10} turn {call.arguments}  advantage {credited.advantage:+.2f}")


def main() -> None:
    """Check, evaluate and credit."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(check_env(Safe, num_episodes=2))
    guessing = agentgym.evaluate(Safe, guesses, episodes=40)
    expert = agentgym.evaluate(Safe, "oracle", episodes=40)
    print(guessing, expert, sep="\n")
    found = agentgym.compare(guessing, expert)
    print(f"the expert wins {found.difference:+.2f} (p = {found.p_value:.2g})")
    (group,) = agentgym.collect_rollouts(Safe, guesses, group_size=6, seed=3)
    show_credit(group)


if __name__ == "__main__":
    main()
