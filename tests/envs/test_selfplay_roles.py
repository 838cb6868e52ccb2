"""The base of self-play environments: what an author's tools may decide, and how often."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentgym import tool
from agentgym.envs.selfplay.roles import PROPOSER, SOLVER, SelfPlayEnv
from agentgym.errors import EnvError
from agentgym.types import Message, Observation, Task


class Sums(SelfPlayEnv):
    """Propose a number and guess it, with tools that decide as a test wants it."""

    on_propose: Callable[[Sums], object] = staticmethod(lambda env: env.accept())
    text: object = "Which number?"

    def start(self, task: Task) -> Observation:
        return self.begin("Propose a number.")

    @tool
    def propose(self, number: int) -> str:
        """Propose a number."""
        self.on_propose(self)
        return "It was read."

    @tool
    def answer(self, number: int) -> str:
        """Guess the number."""
        self.settle(1.0)
        return "It was read."

    def task_for_solver(self) -> str:
        return self.text  # type: ignore[return-value]

    def oracle(self) -> Message:
        raise NotImplementedError


def played(on_propose: Callable[[Sums], object], text: object = "Which number?") -> Sums:
    env = Sums()
    env.on_propose, env.text = on_propose, text
    env.reset(seed=0)
    env.step("propose: 1")
    return env


@pytest.mark.parametrize(
    ("on_propose", "said"),
    [
        (lambda env: (env.reject("too small"), env.accept()), r"accept\(\), but the proposal is 'too small' already"),
        (lambda env: (env.accept(), env.reject("no")), r"reject\('no'\), but the proposal is 'valid' already"),
        (lambda env: (env.reject("no"), env.reject("no")), r"reject\('no'\), but the proposal is 'no' already"),
        (lambda env: env.settle(1.0), r"settle\(1\), but no proposal was accepted"),
    ],
)
def test_a_proposal_is_decided_once(on_propose: Callable[[Sums], object], said: str) -> None:
    with pytest.raises(EnvError, match=said):
        played(on_propose)


def test_a_match_is_settled_once() -> None:
    env = played(Sums.accept)
    env.step("answer: 1")
    parts = [env.parts_of(player) for player in (PROPOSER, SOLVER)]
    with pytest.raises(EnvError, match=r"settle\(0\), but the match is over"):
        env.settle(0.0)
    assert [env.parts_of(player) for player in (PROPOSER, SOLVER)] == parts


@pytest.mark.parametrize("text", [None, 5])
def test_a_solver_without_a_task_is_named(text: object) -> None:
    with pytest.raises(EnvError, match=r"task_for_solver\(\) returned .*, expected the solver's first message"):
        played(Sums.accept, text)
