"""UFO compared with its authors' environment."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from released import Case, Release, gap, load

from agentgym.credit.shapers.attempts import UfoOptions, ufo
from agentgym.credit.table import TurnTable

AUTHORS = Release("lichengliu03/unary-feedback", "b9eb4bd")
FILE = "ragen/env/metamathqa/env.py"


@cache
def methods(folder: Path) -> dict[str, Any]:
    names = ("step", "_check_answer", "_normalize_answer", "_minimal_normalize_answer")
    return load(folder / FILE, *(f"MetaMathQAEnv.{name}" for name in names), namespace={"re": re})


def environment(answer: str, max_steps: int, **methods: Any) -> SimpleNamespace:
    """Return the state of an environment at the start of an episode."""
    state: dict[str, Any] = {"correct_answer": answer, "max_steps": max_steps, "penalty_lambda": 0.5, "step_num": 0}
    state |= {"unique_answers_count": defaultdict(int), "total_valid_answers": 0, "_step_rewards": []}
    return SimpleNamespace(**state, **methods)


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Play one episode of attempts, and compare the rewards.

    The release refuses a blank answer before the first well-formed one, so those come later.
    """
    released = methods(folder)
    own = environment("7", int(rng.integers(1, 6)))
    for name in ("_check_answer", "_normalize_answer", "_minimal_normalize_answer"):
        setattr(own, name, lambda *given, of=released[name]: of(own, *given))
    attempts, rewards, done = [], [], False
    while not done:
        answer = str(rng.choice(["7", " 7 ", "8", "9", "x Y"]))
        attempts.append(answer)
        _, reward, done, _ = released["step"](own, answer)
        rewards.append(reward)
    table = TurnTable.from_lists(rewards=[[*[0.0] * (len(attempts) - 1), float(attempts[-1].strip() == "7")]],
                                 group_of_trajectory=[0])  # fmt: skip
    names = [answer.strip() for answer in attempts]
    table = table.with_columns(answer=[names.index(name) for name in names])
    return gap(ufo(table, UfoOptions(malformed_reward=0.0, least_success=None)).table.reward, rewards)


def malformed_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the penalty where some answers, never the first or the last, are blank."""
    num_attempts = int(rng.integers(3, 6))
    said = [int(rng.integers(0, 3)) for _ in range(num_attempts)]
    for at in range(1, num_attempts - 1):
        said[at] = -1 if rng.random() < 0.5 else said[at]
    is_right = rng.random() < 0.5
    own = environment(
        "right",
        sum(answer >= 0 for answer in said),
        _check_answer=lambda text: (text == "right", text != ""),
        _minimal_normalize_answer=lambda text: text,
    )
    step = methods(folder)["step"]
    texts = ["" if answer < 0 else str(answer) for answer in said]
    if is_right:
        texts[-1], said[-1] = "right", 9
    reward = 0.0
    for text in texts:
        _, reward, _, _ = guarded(step, own, text)
    table = TurnTable.from_lists(rewards=[[*[0.0] * (num_attempts - 1), float(is_right)]], group_of_trajectory=[0])
    shaped = ufo(table.with_columns(answer=said), UfoOptions(malformed_reward=0.0, least_success=None)).table
    return gap(shaped.reward.sum(), reward)


def guarded(step: Any, own: Any, text: str) -> Any:
    """Take a step; the release's has no ``info`` to return for a blank answer, and its state is right all the same."""
    try:
        return step(own, text)
    except UnboundLocalError:
        return None, 0.0, False, None


CASES = (
    Case(component="ufo", variant="as released", release=AUTHORS, file=FILE, largest_gap=largest_gap),
    Case(component="ufo", variant="as released, blank answers", release=AUTHORS, file=FILE, largest_gap=malformed_gap),
)
