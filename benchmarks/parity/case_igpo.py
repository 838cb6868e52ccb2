"""IGPO and its information gain compared with the release of February 2026."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import TORCH, by_trajectory, double_precision, on_last_tokens, random_table, to_tokens
from released import Case, Release, gap, load, run_lines

from agentgym.credit.estimators.igpo import igpo
from agentgym.credit.shapers.information_gain import InformationGainOptions, information_gain
from agentgym.credit.statistics import ends_of_trajectories, per_trajectory, trajectories

FORK = Release("debajoycs98/IGPO", "745078b")
"""A fork that holds the authors' release of February 2026; their own repository shows that of November 2025."""
ALGORITHMS = "verl/trainer/ppo/core_algos.py"
GENERATION = "scrl/llm_agent/generation.py"


@cache
def estimator(folder: Path) -> Any:
    names = ("_compute_turn_level_advantage", "compute_grpo_outcome_advantage")
    return load(folder / ALGORITHMS, *names, namespace={"torch": TORCH, "np": np})["compute_grpo_outcome_advantage"]


def beside(normalisation: str, gamma: float = 1.0) -> Any:
    """Return the comparison of the estimator under one normalisation; some trajectories have no gain at all."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        table = random_table(rng)
        view, layout, is_last = trajectories(table), by_trajectory(table), ends_of_trajectories(table)
        has_gain = (rng.random(len(view.first)) < 0.8)[view.of_row]
        gain = np.where(is_last | ~has_gain, np.nan, rng.normal(size=len(table)))
        progress = None if rng.random() < 0.5 else float(rng.random())
        outcome = per_trajectory(table, table.reward)[view.of_row]
        table = table.with_columns(info_gain=gain)
        rewards = layout.spread(on_last_tokens(table, np.where(is_last, outcome, np.nan_to_num(gain))))
        weights = (1.0, 1.0) if progress is None else (0.5 + 0.5 * progress, 1.0 - 0.5 * progress)
        responses = layout.mask.flip(1).cummax(1).values.flip(1)  # the release's mask holds observations too
        with double_precision():
            theirs, _ = estimator(folder)(
                rewards, responses, view.group, gamma=gamma, info_gain_norm_mode=normalisation,
                curriculum_f1_weight=weights[0], curriculum_ig_weight=weights[1],
            )  # fmt: skip
        ours = igpo(table, normalisation=normalisation, gamma=gamma, progress=progress).advantage
        return gap(to_tokens(table, ours), layout.read(theirs))

    return largest_gap


def gain_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the gains, with missing and infinite log-probabilities and episodes that hit the limit."""
    mode = str(rng.choice(["prob_diff", "log_prob_diff"]))
    table = random_table(rng)
    view = trajectories(table)
    levels = [rng.normal(-2, 1, size=n + int(rng.integers(0, 2))) for n in view.num_turns]
    for level in levels:
        if rng.random() < 0.3:
            level[rng.integers(len(level))] = rng.choice([np.nan, -np.inf])
    given = table.with_columns(answer_logprobs=[level[:, None] for level in levels])
    ours = information_gain(given, InformationGainOptions(mode=mode)).table.info_gain
    theirs = np.full(len(table), np.nan)
    for first, num_turns, level in zip(view.first, view.num_turns, levels, strict=True):
        gains = released_gains(folder, mode, level[:num_turns])
        if len(gains) == num_turns - 1:  # the reward function falls back to the outcome otherwise
            theirs[first : first + num_turns - 1] = gains
    return gap(ours, theirs)


def released_gains(folder: Path, mode: str, levels: np.ndarray) -> list[float]:
    """Run the release's loop body on the log-probabilities measured before each turn of one trajectory."""
    own = SimpleNamespace(config=SimpleNamespace(info_gain_type=mode))
    scope: dict[str, Any] = {"self": own, "math": math, "torch": torch, "activate_list": [0], "gt_idx": [(0, 1)]}
    scope |= {"info_gain_rewards": [[]], "gt_values": {}, "gt_log_probs_per_turn": [[]], "gt_entropys_per_turn": [[]]}
    for step, level in enumerate(levels):
        measured = {"old_log_probs": torch.tensor([[level]]).double(), "entropys": torch.zeros(1, 1)}
        scope |= {"step": step, "pseudo_gen_output_log_probs": SimpleNamespace(batch=measured)}
        with double_precision():
            start, stop = "info_gain_type = self.config.info_gain_type  #", "gen_output = self._generate"
            run_lines(folder / GENERATION, start, stop, scope, within="# Original mode: immediate computation")
    return list(scope["info_gain_rewards"][0])


MERGED = (
    "The release takes the tokens with a normalised reward other than 0 for the ends of turns, so that a turn without "
    "a gain, or with the mean gain, is merged with the next and not discounted. Ours discounts every turn. With the "
    "released gamma of 1 there is no difference."
)
CASES = (
    Case(component="igpo", variant="separate", release=FORK, file=ALGORITHMS, largest_gap=beside("separate")),
    Case(component="igpo", variant="joint", release=FORK, file=ALGORITHMS, largest_gap=beside("joint")),
    Case(
        component="igpo",
        variant="separate, gamma 0.9",
        release=FORK,
        file=ALGORITHMS,
        largest_gap=beside("separate", 0.9),
        explained=MERGED,
    ),
    Case(component="information_gain", release=FORK, file=GENERATION, largest_gap=gain_gap),
)
