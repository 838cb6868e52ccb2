"""Corrections of the gap between engine and trainer compared with verl's ``rollout_corr_helper.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from case_verl_losses import FILE as LOSS_FILE
from case_verl_losses import NO_DUAL, verl
from released import Case, Release, gap, load
from token_rows import NORM_LENGTH, VERL_FUNCTIONS, TokenRows, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import Aggregation, LossConfig
from agentgym.trainers.losses.options import (
    BatchNormaliseOptions,
    DivergenceRejectionOptions,
    GeometricOptions,
    IcepopOptions,
    SequenceMisOptions,
    SequenceTisOptions,
    TokenTisOptions,
)

RELEASE = Release("verl-project/verl", "1dda039")
FILE = "verl/trainer/ppo/rollout_corr_helper.py"
MODES: tuple[Aggregation, ...] = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")

TOKEN_REJECTIONS = {"token_k1", "token_k2", "token_k3"}
SEQUENCE_REJECTIONS = {"seq_sum_k1", "seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"}


@cache
def helpers_of(folder: Path) -> dict[str, Any]:
    """Return verl's functions for weights and rejection, without those that only compute metrics."""
    namespace = {
        "torch": torch,
        "math": math,
        "verl_F": VERL_FUNCTIONS,
        "Optional": Optional,
        "SAFETY_BOUND": 20.0,
        "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS": TOKEN_REJECTIONS,
        "SUPPORTED_ROLLOUT_RS_OPTIONS": TOKEN_REJECTIONS | SEQUENCE_REJECTIONS,
        "compute_rs_metrics": lambda **_: {},
        "compute_is_metrics": lambda **_: {},
    }
    names = (
        "_parse_rollout_rs_thresholds",
        "_parse_rollout_is_threshold",
        "compute_rollout_rejection_mask",
        "compute_rollout_correction_weights",
    )
    return load(folder / FILE, *names, namespace=namespace)


def released_loss(folder: Path, rows: TokenRows, mode: str, **settings: Any) -> np.ndarray:
    """Return verl's clipped loss with weights and a rejection mask, and its gradients."""
    helpers = helpers_of(folder)
    log_ratio, mask, weights = rows.old - rows.rollout, rows.mask.long(), None
    if "rollout_is" in settings:
        keys = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
        chosen = {key: settings[key] for key in keys if key in settings}
        weights, _ = helpers["compute_rollout_correction_weights"](log_ratio, mask, **chosen)
    if "rollout_rs" in settings:
        rejected = settings["rollout_rs"], settings["rollout_rs_threshold"]
        mask, _ = helpers["compute_rollout_rejection_mask"](log_ratio, mask, *rejected)
    compute = verl(folder, "compute_policy_loss_vanilla")["compute_policy_loss_vanilla"]

    def loss(logprob: Tensor, entropy: Tensor) -> Tensor:
        if not mask.any():
            return torch.zeros((), dtype=torch.float64)  # verl divides by 0 here
        value: Tensor = compute(rows.old, logprob, rows.advantage, mask, mode, NO_DUAL, weights)[0]
        return value

    return with_gradients(rows, loss)


def draw(rng: np.random.Generator, gap_of_engine: float) -> TokenRows:
    """Draw rows; one in ten has log-ratios beyond verl's safety bound of 20."""
    return draw_rows(rng, gap=6.0 if rng.random() < 0.1 else gap_of_engine)


def correction_case(
    make: Callable[[np.random.Generator], tuple[tuple[Any, ...], dict[str, Any]]],
    gap_of_engine: float = 0.6,
    *,
    by_turn: bool = False,
) -> Callable[[Path, np.random.Generator], float]:
    """Compare our corrections with verl's settings; ``make`` draws both. A turn is a row of verl's if ``by_turn``."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw(rng, gap_of_engine)
        rows = rows.per_turn() if by_turn else rows
        corrections, settings = make(rng)
        mode: Any = rng.choice(MODES)
        config = LossConfig(aggregation=mode, norm_length=NORM_LENGTH, corrections=corrections)
        return gap(ours(rows, config), released_loss(folder, rows, mode, **settings))

    return largest_gap


def token_tis(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    cap = float(rng.choice([0.8, 2.0, 5.0]))
    return (TokenTisOptions(cap=cap),), {"rollout_is": "token", "rollout_is_threshold": cap}


def seq_tis(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    cap = float(rng.choice([0.8, 2.0, 5.0]))
    return (SequenceTisOptions(cap=cap),), {"rollout_is": "sequence", "rollout_is_threshold": cap}


def turn_tis(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    corrections, settings = seq_tis(rng)
    return (SequenceTisOptions(cap=corrections[0].cap, level="turn"),), settings


def icepop(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    low, high = float(rng.choice([0.3, 0.5])), float(rng.choice([2.0, 5.0]))
    settings = {"rollout_is": "token", "rollout_is_threshold": high}
    rejection = {"rollout_rs": "token_k1", "rollout_rs_threshold": f"{1 / high}_{1 / low}"}
    return (IcepopOptions(low=low, high=high, denominator="kept"),), settings | rejection


def seq_mis(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    low, high = float(rng.choice([0.0, 0.2])), float(rng.choice([2.0, 9.0]))
    options = SequenceMisOptions(low=low, high=high, weight=rng.choice(["one", "ratio"]))
    settings = {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": f"{1 / options.band[1]}_{1 / options.band[0]}"}
    if options.weight == "ratio":
        settings |= {"rollout_is": "sequence", "rollout_is_threshold": 1e9}
    return (options,), settings


def geometric(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    low, high = float(rng.choice([0.0, 0.9])), float(rng.choice([1.001, 1.2, 2.0]))
    options = GeometricOptions(low=low, high=high)
    band = f"{1 / options.band[1]}_{1 / options.band[0]}"
    return (options,), {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": band}


def divergence(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    name, level = rng.choice([("token", "token"), ("seq_mean", "sequence_mean"), ("seq_max", "sequence_max")])
    estimator: Any = rng.choice(["k2", "k3"])
    threshold = float(rng.choice([0.05, 0.5, 3.0]))
    options = DivergenceRejectionOptions(estimator=estimator, level=level, threshold=threshold)
    return (options,), {"rollout_rs": f"{name}_{estimator}", "rollout_rs_threshold": threshold}


def normalised(rng: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw weights of tokens or sequences, half of the time with a rejection, which their mean does not see."""
    corrections, settings = token_tis(rng) if rng.random() < 0.5 else seq_tis(rng)
    if rng.random() < 0.5:
        rejection, more = divergence(rng)
        corrections, settings = (*corrections, *rejection), settings | more
    return (*corrections, BatchNormaliseOptions()), settings | {"rollout_is_batch_normalize": True}


def case(component: str, comparison: Callable[[Path, np.random.Generator], float], variant: str = "") -> Case:
    """Return a case against verl's corrections, inside verl's clipped loss."""
    file = f"{FILE}, {LOSS_FILE}"
    return Case(component=component, variant=variant, release=RELEASE, file=file, largest_gap=comparison)


CASES = (
    case("token_tis", correction_case(token_tis)),
    case("seq_tis", correction_case(seq_tis, 0.2), "by row"),
    case("seq_tis", correction_case(turn_tis, 0.2, by_turn=True), "by turn"),
    case("icepop", correction_case(icepop), "averaged over kept tokens"),
    case("seq_mis", correction_case(seq_mis, 0.2)),
    case("geometric", correction_case(geometric, 0.1)),
    case("divergence_rejection", correction_case(divergence)),
    case("batch_normalise", correction_case(normalised, 0.3)),
)
