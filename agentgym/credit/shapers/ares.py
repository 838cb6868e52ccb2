"""ARES: reward exploration where a task is hard, and brevity where it is easy.

Source: "ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping"
(``examples/reward_function/aepo.py``, ``compute_score``). A trajectory explores at tokens that are followed by a window
of high mean entropy. Their number is compared with a target of the task's difficulty, which is the success rate of its
group. Right answers to easy tasks pay for more, right answers to hard ones earn by more, and wrong answers always do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, add_reward, on_last_turn, outcomes
from agentgym.credit.statistics import finite_column, group_statistics, token_rows, trajectories
from agentgym.credit.table import Bools, Floats, Ints, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Count, Fraction, NonNegative, Range
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True)
class Band:
    """The released constants of a difficulty."""

    margin: float
    """Share of the target by which a number may differ from it."""
    kappa: float
    """Excess from which on a penalty grows linearly."""
    temperature: float
    """Excess over which a reward grows."""
    scale: float
    """Factor of the largest reward."""
    wrong: float
    """Factor of the reward of a wrong answer."""


EASY, MEDIUM, HARD = Band(0.15, 2.0, 2.0, 1.0, 0.6), Band(0.25, 3.0, 2.5, 1.0, 0.8), Band(0.35, 4.0, 3.0, 1.2, 1.0)
BANDS = {"easy": EASY, "medium": MEDIUM, "hard": HARD}


@dataclass(frozen=True, slots=True, kw_only=True)
class AresOptions(Options):
    """Keys of ARES's reward."""

    off_at_0 = "alpha"
    kind: Literal["ares"] = "ares"
    alpha: NonNegative = 0.3
    """Largest reward or penalty, of hard tasks 1.2 times as much. From 0.42 on a wrong answer may earn more than a
    right one; the release begins with 0.5."""
    window: Count = 4
    """Number of tokens after a token whose mean entropy counts; the release's 4 and 8."""
    quantile: Fraction = 0.9
    """Quantile of a trajectory's windows that makes the threshold: its mean over the first batch. The release's is
    0.98, for answers of thousands of tokens."""
    success_above: Annotated[float, Range(at_least=0)] = 0.0
    """A trajectory is right if its outcome is above this."""


def entropy_score(number: float, target: float, band: str, is_right: bool, alpha: float) -> float:
    """Return the reward of a trajectory with a number of exploring tokens.

    Args:
        number: its exploring tokens.
        target: the target of its difficulty.
        band: ``easy``, ``medium`` or ``hard``.
        is_right: its answer is right.
        alpha: largest reward, before the difficulty's factor.

    Example (9 tokens above the target of an easy task, of which 1.5 are allowed):
        >>> round(entropy_score(19, 10, "easy", True, 0.5), 4), round(entropy_score(19, 10, "hard", True, 0.5), 4)
        (-0.5, 0.5908)
    """
    of, off = BANDS[band], number - target
    cap = alpha * of.scale
    margin = max(1.0, of.margin * max(target, 1.0))
    if not is_right:
        return cap * of.wrong * _saturated(max(off - margin, 0.0), of.temperature)
    if band == "hard" and off >= -margin:
        return cap * _saturated(off + margin, of.temperature)
    beyond = {"easy": off, "medium": abs(off), "hard": -off}[band] - margin
    penalty = _huber(beyond, of.kappa) * (0.5 if band == "hard" else 1.0)
    return -min(cap, penalty / (margin + of.kappa) * cap)


def _huber(excess: float, kappa: float) -> float:
    excess = max(excess, 0.0)
    return 0.5 * excess**2 / kappa if excess <= kappa else excess - 0.5 * kappa


def _saturated(excess: float, temperature: float) -> float:
    return float(1 / (1 + np.exp(-excess / temperature)))


@shaper(
    "ares",
    paper="ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping",
    parity="shawn0728/ARES@146620e:examples/reward_function/aepo.py",
    columns=("num_tokens", "token_entropy", "part_values"),
    limits="equal in the reward of a number of tokens; all tokens count, not a list of words; without its KL penalty",
    test="tests/credit/test_ares.py::test_ares",
)
def ares(
    table: TurnTable, memory: Mapping[str, float], options: AresOptions = AresOptions()
) -> tuple[Shaped, Mapping[str, float]]:
    """Add :func:`entropy_score` of a trajectory's exploring tokens to its last turn.

    A token explores if the mean entropy of the ``window`` sampled tokens after it reaches the threshold. A group is
    easy from a success rate of two thirds on, hard below one third. A difficulty's target is the mean number of its
    groups in the last batch that had some, in the first its own.

    Needs the columns ``num_tokens`` and ``token_entropy``, the latter in nats under the sampling policy.

    Args:
        table: the turns of the batch.
        memory: ``threshold`` in nats, from the first batch with a window on, and the targets by difficulty.
        options: size of the reward, and what counts.

    Raises:
        ConfigError: a column is missing or not finite.
    """
    table.require("num_tokens", by="ares")
    entropy = finite_column(table, "token_entropy", by="ares")
    view = trajectories(table)
    means = _windows(entropy, view.of_row[token_rows(table)], len(view.first), options.window)
    threshold = memory.get("threshold", _threshold(means, options.quantile))
    number = np.array([np.count_nonzero(some >= threshold) for some in means], dtype=np.float64)
    is_right = outcomes(table) > options.success_above
    band = _bands(is_right, view.group)
    targets = {name: float(number[band == name].mean()) for name in BANDS if (band == name).any()}
    known = {**targets, **{name: value for name, value in memory.items() if name in BANDS}}
    rows = zip(number.tolist(), band.tolist(), is_right.tolist(), strict=True)
    value = np.array([entropy_score(one, known[of], of, right, options.alpha) for one, of, right in rows])
    shaped = add_reward(table, "ares", RewardRole.PROCESS, on_last_turn(table, value))
    return Shaped(table=shaped), {**memory, **targets, **({"threshold": threshold} if np.isfinite(threshold) else {})}


def _windows(entropy: Floats, trajectory: Ints, num: int, window: int) -> list[Floats]:
    """Return for each trajectory the mean entropy of each window of its sampled tokens but the first."""
    found = []
    for one in range(num):
        own = entropy[trajectory == one][1:]
        total = np.append(0.0, np.cumsum(own))
        found.append((total[window:] - total[:-window]) / window if len(own) >= window else np.zeros(0))
    return found


def _threshold(means: list[Floats], quantile: float) -> float:
    """Return the mean over trajectories of a quantile of their windows; infinite if none has a window."""
    own = [float(np.quantile(some, quantile)) for some in means if len(some)]
    return float(np.mean(own)) if own else np.inf


def _bands(is_right: Bools, group: Ints) -> np.ndarray:
    rate = group_statistics(is_right.astype(np.float64), group).mean
    return np.where(rate >= 2 / 3, "easy", np.where(rate >= 1 / 3, "medium", "hard"))
