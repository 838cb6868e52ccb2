"""Policy losses, aggregation modes and KL estimates compared with verl."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Optional, get_args

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import NORM_LENGTH, VERL_FUNCTIONS, ActorConfig, TokenRows, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import Aggregation, LossConfig
from agentgym.trainers.losses.options import EntropyOptions, KlOptions, ReinforceOptions, SapoOptions
from agentgym.trainers.losses.regularisers import KlEstimator

RELEASE = Release("verl-project/verl", "1dda039")
FILE = "verl/trainer/ppo/core_algos.py"

Comparison = Callable[[Path, np.random.Generator], float]


@cache
def verl(folder: Path, *names: str) -> dict[str, Any]:
    """Return functions of verl's ``core_algos.py``."""
    namespace = {
        "torch": torch,
        "verl_F": VERL_FUNCTIONS,
        "ActorConfig": ActorConfig,
        "AlgoConfig": type("AlgoConfig", (), {}),
        "Optional": Optional,
    }
    return load(folder / FILE, "agg_loss", *names, namespace=namespace)


def policy_loss_case(
    function: str,
    config: LossConfig,
    settings: ActorConfig,
    draw: Callable[[np.random.Generator], TokenRows] = draw_rows,
) -> Comparison:
    """Compare one of verl's losses with a configuration of ours; a turn is a row of verl's where it is ours."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw(rng)
        padded = rows.per_turn() if config.level == "turn" else rows
        compute = verl(folder, function)[function]

        def released(logprob: Tensor, entropy: Tensor) -> Tensor:
            loss: Tensor = compute(padded.old, logprob, padded.advantage, padded.mask.long(), config.mean, settings)[0]
            return loss

        return gap(ours(padded, config), with_gradients(padded, released))

    return largest_gap


def per_row(rng: np.random.Generator) -> TokenRows:
    """Draw rows for a ratio per sequence, which needs one advantage per sequence; small gaps reach its clip."""
    return draw_rows(rng, advantage_per="row", gap=float(rng.choice([0.001, 0.3])))


def per_turn(rng: np.random.Generator) -> TokenRows:
    """Draw rows whose turns have an advantage each."""
    return draw_rows(rng, advantage_per="turn", gap=float(rng.choice([0.001, 0.3])))


def reinforce(cap: float) -> Comparison:
    """Compare in bypass mode, where the ratio is that of the policy to the engine's."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_rows(rng)
        scope = verl(folder, "compute_policy_loss_reinforce")
        weights = torch.exp((rows.logprob - rows.old).clamp(-20, 20)).clamp(max=cap) if cap else None

        def released(logprob: Tensor, entropy: Tensor) -> Tensor:
            loss: Tensor = scope["compute_policy_loss_reinforce"](
                rows.old, logprob, rows.advantage, rows.mask.long(), "token-mean", ActorConfig(), weights
            )[0]
            return loss

        config = LossConfig(kind="reinforce", mode="bypass", corrections=(), options=ReinforceOptions(cap=cap))
        return gap(ours(rows, config), with_gradients(rows, released))

    return largest_gap


def kl(estimator: KlEstimator) -> Comparison:
    """Compare a KL term, with coefficient 1, in each aggregation mode; our k1 is the release's ``k1+``."""
    name = "k1+" if estimator == "k1" else estimator

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_rows(rng)
        scope = verl(folder, "kl_penalty_forward", "kl_penalty")
        mode = str(rng.choice(get_args(Aggregation)))

        def released(logprob: Tensor, entropy: Tensor) -> Tensor:
            divergence = scope["kl_penalty"](logprob, rows.reference, name)
            loss: Tensor = scope["agg_loss"](divergence, rows.mask.long(), mode, **ActorConfig().global_batch_info)
            return loss

        term = KlOptions(coef=1.0, estimator=estimator)
        return gap(regulariser(rows, mode, term), with_gradients(rows, released))

    return largest_gap


def entropy(folder: Path, rng: np.random.Generator) -> float:
    """Compare the entropy bonus, with coefficient 0.3, in each aggregation mode."""
    rows = draw_rows(rng)
    scope = verl(folder)
    mode = str(rng.choice(get_args(Aggregation)))

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        info = ActorConfig().global_batch_info
        loss: Tensor = -0.3 * scope["agg_loss"](entropy, rows.mask.long(), mode, **info)
        return loss

    return gap(regulariser(rows, mode, EntropyOptions(coef=0.3)), with_gradients(rows, released))


def regulariser(rows: TokenRows, mode: Any, options: Any) -> np.ndarray:
    """Return what one regulariser adds to our loss and gradients."""
    plain = LossConfig(aggregation=mode, norm_length=NORM_LENGTH, corrections=())
    with_term = LossConfig(aggregation=mode, norm_length=NORM_LENGTH, corrections=(), regularisers=(options,))
    return ours(rows, with_term) - ours(rows, plain)


def case(component: str, variant: str, comparison: Comparison) -> Case:
    """Return a case against verl's ``core_algos.py``."""
    return Case(component=component, variant=variant, release=RELEASE, file=FILE, largest_gap=comparison)


def aggregated(mode: Aggregation, **settings: Any) -> LossConfig:
    """Return one of our configurations without corrections."""
    return LossConfig(aggregation=mode, norm_length=NORM_LENGTH, corrections=(), **settings)


MODES: tuple[Aggregation, ...] = get_args(Aggregation)
VANILLA, CISPO = "compute_policy_loss_vanilla", "compute_policy_loss_cispo"
NO_DUAL = ActorConfig(clip_ratio_c=1e9)
"""verl's clipped loss cannot leave the dual clip out."""
GSPO = LossConfig(kind="gspo", ratio_level="sequence", corrections=())
GSPO_TURNS = LossConfig(kind="gspo", corrections=())
GSPO_SETTINGS = ActorConfig(clip_ratio_low=3e-4, clip_ratio_high=4e-4)
SAPO = LossConfig(kind="sapo", corrections=(), options=SapoOptions(tau_positive=0.8, tau_negative=1.3))

CASES = (
    *(case("ppo_clip", mode, policy_loss_case(VANILLA, aggregated(mode), NO_DUAL)) for mode in MODES),
    *(case("dapo", mode, policy_loss_case(VANILLA, aggregated(mode, kind="dapo"), ActorConfig())) for mode in MODES),
    *(
        case("cispo", mode, policy_loss_case(CISPO, aggregated(mode, kind="cispo", clip_low=0.2), ActorConfig()))
        for mode in MODES
    ),
    case("gspo", "by row", policy_loss_case("compute_policy_loss_gspo", GSPO, GSPO_SETTINGS, per_row)),
    case("gspo", "by turn", policy_loss_case("compute_policy_loss_gspo", GSPO_TURNS, GSPO_SETTINGS, per_turn)),
    case("sapo", "", policy_loss_case("compute_policy_loss_sapo", SAPO, ActorConfig(tau_pos=0.8, tau_neg=1.3))),
    case("reinforce", "with a cap", reinforce(2.0)),
    case("reinforce", "without the ratio", reinforce(0.0)),
    *(case("kl", estimator, kl(estimator)) for estimator in get_args(KlEstimator)),
    case("entropy", "", entropy),
)
