"""EPO's smoothed entropy compared with its authors' trainer and actor."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from released import Case, Release, gap, load, run_lines
from token_rows import VERL_FUNCTIONS, TokenRows, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import EpoOptions
from agentgym.trainers.losses.regularisers import EntropyHistory, epo_phase

RELEASE = Release("WujiangXu/EPO", "5b6fa98")
FILE = "verl/workers/actor/dp_actor.py"
TRAINER_FILE = "verl/trainer/ppo/ray_trainer.py"
AGGREGATION_FILE = "verl/trainer/ppo/core_algos.py"
NUM_TURNS = 3


@cache
def actor(folder: Path) -> SimpleNamespace:
    """Return the actor's methods, and the aggregation they end in."""
    methods = ("_calculate_epoch_based_entropy_weight", "generate_entropy_penalty")
    names = [f"DataParallelPPOActor.{name}" for name in methods]
    scope = load(folder / FILE, *names, namespace={"torch": torch, "np": np})
    scope |= load(folder / AGGREGATION_FILE, "agg_loss", namespace={"torch": torch, "verl_F": VERL_FUNCTIONS})
    return SimpleNamespace(**{name: scope[name] for name in (*methods, "agg_loss")})


def mean_history(folder: Path, means: np.ndarray) -> np.ndarray:
    """Return the released trainer's argument of the actor: the mean over iterations, the current one included."""
    scope: dict[str, Any] = {"np": np, "self": SimpleNamespace(entropy_history=list(means))}
    run_lines(folder / TRAINER_FILE, "entropy_list_return =", 'batch.meta_info["entropy_history"]', scope)
    history: np.ndarray = scope["entropy_list_return"]
    return history


def epo(folder: Path, rng: np.random.Generator) -> float:
    """Compare the term with the released constant penalty, in a random training step of a random phase.

    A row of the release is one turn of an episode. Past iterations have seen every turn: the release fills up
    shorter ones with zeros at the front, which moves their turns.
    """
    rows = draw_rows(rng)
    released_rows, turn_of_row = rows.per_turn(), turns(rows)
    low, high = rng.choice([(0.0, 2.0), (0.8, 1.2), (0.5, 1.5)])
    options = EpoOptions(
        coef=0.3,
        smoothing=float(rng.choice([0.5, 1.0])),
        alpha=float(rng.choice([0.05, 0.1])),
        low=float(low),
        high=float(high),
        phase_steps=int(rng.integers(1, 8)),
        from_turn=int(rng.integers(0, 3)),
        has_gradient=False,
    )
    means = rng.exponential(0.8, (int(rng.integers(1, 10)), NUM_TURNS))
    step = len(means) - 1
    code = actor(folder)

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        penalty = torch.zeros_like(entropy)
        if (turn_of_row >= options.from_turn).any():
            with contextlib.redirect_stdout(io.StringIO()):  # the release prints
                penalty, _ = code.generate_entropy_penalty(
                    None,
                    mean_history(folder, means),
                    entropy,
                    turn_of_row,
                    "token",
                    options.low,
                    options.high,
                    options.alpha,
                )
            # the release says 150 epochs in the middle of the loop
            penalty = penalty * code._calculate_epoch_based_entropy_weight(None, step, options.phase_steps)
        mask = released_rows.mask.long()
        smoothed = code.agg_loss(entropy, mask, "token-mean")
        smoothed = smoothed - code.agg_loss(penalty, mask, "token-mean") * options.smoothing
        loss: Tensor = -smoothed * options.coef
        return loss

    history = EntropyHistory()
    for iteration in means:
        history = history.after(dict(enumerate(iteration)))
    plain = LossConfig(corrections=())
    with_term = LossConfig(corrections=(), regularisers=(options,))
    term = ours(rows, with_term, history) - ours(rows, plain)
    return gap(per_turn(rows, term), with_gradients(released_rows, released))


def turns(rows: TokenRows) -> np.ndarray:
    """Return the turn of each row of :meth:`TokenRows.per_turn`."""
    return np.concatenate([np.arange(int(turn.max()) + 1) for turn in rows.turn])


def per_turn(rows: TokenRows, flat: np.ndarray) -> np.ndarray:
    """Return a loss and its two gradients, ``[1 + 2 B T]``, with one row per turn."""
    size = rows.mask.numel()
    pieces = [flat[:1]]
    for gradient in (flat[1 : 1 + size], flat[1 + size :]):
        by_row = gradient.reshape(rows.mask.shape)
        owners = [(row, turn) for row in range(len(by_row)) for turn in range(int(rows.turn[row].max()) + 1)]
        at_turn = [
            np.where((rows.mask[row] & (rows.turn[row] == turn)).numpy(), by_row[row], 0) for row, turn in owners
        ]
        pieces.append(np.stack(at_turn).reshape(-1))
    return np.concatenate(pieces)


def phase_weight(folder: Path, rng: np.random.Generator) -> float:
    """Compare the phase weight, past the last step too."""
    code, num_steps = actor(folder), int(rng.integers(1, 160))
    steps = range(0, num_steps + 40)
    weights = [code._calculate_epoch_based_entropy_weight(None, step, num_steps) for step in steps]
    return gap([epo_phase(step, num_steps) for step in steps], weights)


CASES = (
    Case(
        component="epo",
        variant="constant penalty",
        release=RELEASE,
        file=f"{FILE}, {TRAINER_FILE}",
        largest_gap=epo,
    ),
    Case(component="epo", variant="phase weight", release=RELEASE, file=FILE, largest_gap=phase_weight),
)
