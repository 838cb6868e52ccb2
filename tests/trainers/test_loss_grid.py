"""Losses, corrections and regularisers on tokens where they differ: off-policy ratios, and a gap to the engine.

With one update per batch every ratio is 1, and most losses have the same gradient. Here no two may agree unless
``EQUAL`` says why, every gate and bound must act, and every option must change something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import combinations
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.layout import PaddedRows
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.component import CORRECTIONS, POLICY_LOSSES, REGULARISERS, Aggregation, LossComponent
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, update_facts
from agentgym.trainers.losses.loss import policy_loss, vocabulary_terms
from agentgym.trainers.losses.regularisers import EntropyHistory

# row, turn of the row, advantage, pi_theta / pi_old, pi_old / mu, entropy, pi_ref / pi_old
TOKENS = (
    (0, 0, 1.0, 1.1, 1.0, 0.2, 1.0),
    (0, 0, 1.0, 1.5, 2.5, 1.4, 1.3),
    (0, 0, 1.0, 0.6, 0.4, 0.6, 0.9),
    (0, 1, -0.5, 0.7, 1.5, 2.3, 0.8),
    (0, 1, -0.5, 4.0, 0.62, 0.4, 2.0),
    (1, 0, -1.0, 1.0, 6.0, 1.9, 1.1),
    (1, 0, -1.0, 1.25, 0.8, 0.1, 1.0),
    (1, 0, -1.0, 0.5, 1.0, 0.7, 0.5),
    (1, 1, 1.0, 2.5, 1.001, 2.6, 1.7),
    (1, 1, 1.0, 0.9, 0.999, 0.3, 0.6),
    (1, 1, 1.0, 1.3, 1.0005, 1.1, 1.2),
    (2, 0, 0.5, 1.0001, 1.05, 0.9, 1.0),
    (2, 0, 0.5, 1.0002, 0.97, 0.5, 0.7),
    (2, 1, -1.5, 0.9, 0.2, 1.3, 1.4),
    (2, 1, -1.5, 0.9998, 1.3, 0.8, 0.9),
    (2, 1, -1.5, 1.0, 0.63, 2.0, 1.0),
    (3, 0, 0.0, 1.4, 1.0, 0.2, 1.1),
    (3, 0, 0.0, 0.6, 1.0, 1.0, 0.8),
    (3, 1, 1.0, 3.0, 1.0, 0.6, 2.2),
    (3, 1, 1.0, 0.8, 1.0, 1.6, 0.9),
)
ROW, TURN = ([int(token[column]) for token in TOKENS] for column in (0, 1))
ADVANTAGE, RATIO, RHO, ENTROPY, REFERENCE = (
    torch.tensor([token[column] for token in TOKENS], dtype=torch.float64) for column in range(2, 7)
)
SIBLINGS = {(0, 1): 0, (1, 1): 0, (2, 1): 0, (3, 0): 1, (2, 0): 1}
"""States of turns, by row and turn of the row, in which several turns were sampled."""
REWARD = torch.tensor([1.0, 0.8, 0.4, 0.0], dtype=torch.float64)[torch.tensor(ROW)]
"""Rewards of the rows, which are the episodes of one group."""
HISTORY = EntropyHistory().after({0: 0.3, 1: 1.2}).after({0: 0.9, 1: 0.8}).after({0: 0.6, 1: 1.0})
"""Mean entropies 0.6 of first turns and 1.0 of second ones, over three steps."""

LOGITS = torch.sin(torch.arange(len(ROW) * 8, dtype=torch.float64)).reshape(-1, 8)
"""Distributions over eight tokens, given beside log-probabilities and entropies for the components that read them."""
TOKEN = LOGITS.argmax(-1).index_fill(0, torch.tensor([0, 1, 5, 6]), 3)
"""The likeliest tokens, but that the first two rows begin with the same two."""
MEMORY = {"siren": {"first": 0.2}, "entropy_band": {"first": 2.5}}
"""Memory of the components that compare with earlier updates."""
STATES = torch.tensor([SIBLINGS.get(at, -1) for at in zip(ROW, TURN, strict=True)])


def outcome(config: LossConfig) -> Tensor:
    """Return the step's direction: gradients by what the loss reads, times the learning rate's factor."""
    turns = [2 * row + turn for row, turn in zip(ROW, TURN, strict=True)]
    units = turns if config.unit == "turn" else ROW
    old = torch.full_like(RATIO, -1.0)
    batch = Batch(
        layout=PaddedRows(torch.zeros(0, dtype=torch.long), torch.zeros(4, 6, dtype=torch.long)),
        row=torch.tensor(ROW),
        state=torch.arange(len(ROW)),
        target=TOKEN,
        rows=tuple(range(4)),
        columns={
            "advantage": ADVANTAGE,
            "logprob_rollout": old - RHO.log(),
            "loss_weight": torch.tensor(
                token_weights(np.array(units), config.mean, config.norm_length), dtype=torch.float64
            ),
            "turn": torch.tensor(turns),
            "turn_index": torch.tensor(TURN),
            "unit": torch.tensor(units),
            "demonstrated": torch.tensor(ROW) == 3,
            **{"trajectory": torch.tensor(ROW), "group": torch.zeros(len(ROW), dtype=torch.long), "reward": REWARD},
            **{"siblings": STATES, "logprob_teacher": torch.where(torch.tensor(ROW) < 2, old - 0.3, torch.nan)},
            **{"replayed": (torch.tensor(ROW) == 1).long(), "policy_version": torch.zeros(len(ROW), dtype=torch.long)},
        },
    )
    logprob_old = batch["logprob_rollout"] if config.mode == "bypass" else old
    logprob, entropy = (old + RATIO.log()).requires_grad_(), ENTROPY.clone().requires_grad_()
    logits, every = LOGITS.clone().requires_grad_(), torch.arange(len(ROW))
    terms = {name: term(logits.log_softmax(-1), every) for name, term in vocabulary_terms(batch, config).items()}
    of_reference = old + REFERENCE.log()
    frozen = BatchLogprobs(
        logprob=logprob.detach(),
        logprob_old=logprob_old,
        entropy=ENTROPY,
        logprob_ref=of_reference,
        terms={name: term.detach() for name, term in terms.items()},
    )
    facts = update_facts([batch], [frozen], config, MEMORY)
    scores = BatchLogprobs(
        logprob=logprob, logprob_old=logprob_old, entropy=entropy, logprob_ref=of_reference, terms=terms
    )
    loss = policy_loss(scores, batch, config, facts, HISTORY).loss + 0 * (entropy.sum() + logits.sum())
    of_logprob, of_entropy, of_logits = torch.autograd.grad(loss, (logprob, entropy, logits))
    return torch.cat((of_logprob, of_entropy, of_logits.abs().sum(-1))) * facts.lr_scale


def changed(config: LossConfig, other: LossConfig) -> list[int]:
    """Return the tokens that the two configurations train differently."""
    difference = (outcome(config) - outcome(other)).abs().reshape(3, -1).amax(0)
    return (difference > 1e-7).nonzero().flatten().tolist()


def loss(kind: Any, **settings: Any) -> LossConfig:
    """Return a loss alone, without corrections."""
    return LossConfig(kind=kind, corrections=(), **settings)


def corrected(*corrections: Any) -> LossConfig:
    """Return corrections of a loss that clips nothing, so that every token counts."""
    return LossConfig(clip_low=1.0, clip_high=99.0, corrections=corrections)


def regularised(*regularisers: Any) -> LossConfig:
    """Return PPO-clip with regularisers."""
    return LossConfig(corrections=(), regularisers=regularisers, num_updates=2)


def options_of(registry: Mapping[str, LossComponent]) -> dict[str, Any]:
    """Return the option classes of a stage by kind."""
    return {kind: component.options for kind, component in registry.items() if component.options is not None}


LOSSES = options_of(POLICY_LOSSES)
OPTIONS = LOSSES | options_of(CORRECTIONS) | options_of(REGULARISERS)


def made(kind: Any, **settings: Any) -> LossConfig:
    """Return the configuration that shows a component: with its options, and with what it needs beside it."""
    options = OPTIONS[kind](**settings)
    if kind in LOSSES:
        return loss(kind, options=options)
    if kind in REGULARISERS:
        return regularised(options)
    return corrected(*([of.TokenTisOptions()] if kind == "batch_normalise" else []), options)


# ---------------------------------------------------------------------------------------- no two are the same

PARTS: dict[str, LossConfig] = {
    **{kind: loss(kind) for kind in sorted(POLICY_LOSSES)},
    **{kind: made(kind) for kind in sorted(OPTIONS) if kind not in POLICY_LOSSES},
    **{f"kl {name}": made("kl", estimator=name) for name in ("k1", "k2", "k3+")},
    "gspo by row": loss("gspo", ratio_level="sequence"),
    "ppo_clip with dual_clip=3": loss("ppo_clip", dual_clip=3.0),
    "cispo with clip_high=1": loss("cispo", clip_high=1.0),
    "llds by row": made("llds", gate="sequence"),
}
EQUAL = {
    ("dapo", "ppo_clip with dual_clip=3"): "DAPO's loss is PPO-clip with a dual clip and a wider upper bound",
    ("cispo with clip_high=1", "reinforce"): "both weigh -A log pi by the detached ratio, at most 2",
    ("kl k2", "kl k3+"): "k3+ is the value of k3 with the gradient of k2",
    ("kl k1", "kl k2"): "k1 is the value of k1 with the gradient of k2",
    ("kl k1", "kl k3+"): "both have the gradient of k2",
}


def test_no_two_parts_have_the_same_gradient() -> None:
    outcomes = {name: outcome(config) for name, config in PARTS.items()}
    same = {
        tuple(sorted((one, other)))
        for one, other in combinations(outcomes, 2)
        if torch.allclose(outcomes[one], outcomes[other])
    }
    assert same == {tuple(sorted(pair)) for pair in EQUAL}


def test_every_kind_is_in_the_grid() -> None:
    ours = {name for name, loss in POLICY_LOSSES.items() if not loss.is_own}  # other tests may have loaded a user's
    assert {*ours, *OPTIONS} <= set(PARTS)


# ------------------------------------------------------------------------------------- every gate and bound acts

Where = Callable[[float, float, float], bool]
"""Whether a bound acts on a token, by advantage, ratio of the policies, and ratio to the engine."""


def tokens_where(acts: Where) -> list[int]:
    values = zip(ADVANTAGE.tolist(), RATIO.tolist(), RHO.tolist(), strict=True)
    return [at for at, token in enumerate(values) if acts(*token)]


TIS, ICEPOP = of.TokenTisOptions(), of.IcepopOptions()
GATES: dict[str, tuple[LossConfig, LossConfig, Where]] = {
    "ppo_clip, upper": (loss("ppo_clip"), loss("ppo_clip", clip_high=99.0), lambda a, r, _: a > 0 and r > 1.28),
    "ppo_clip, lower": (loss("ppo_clip"), loss("ppo_clip", clip_low=1.0), lambda a, r, _: a < 0 and r < 0.8),
    "dapo, dual clip": (loss("dapo"), loss("dapo", dual_clip=0.0), lambda a, r, _: a < 0 and r > 3),
    "cispo, upper": (loss("cispo"), loss("cispo", clip_high=99.0), lambda a, r, _: a != 0 and r > 1.28),
    "cispo, lower": (loss("cispo", clip_low=0.2), loss("cispo"), lambda a, r, _: a != 0 and r < 0.8 - 1e-9),
    "bapo, dual clip": (loss("bapo"), loss("bapo", dual_clip=0.0), lambda a, r, _: a < 0 and r > 3),
    "aepo_clip, gradient": (
        loss("aepo_clip"),
        loss("dapo", clip_high=0.2),
        lambda a, r, _: a > 0 and r > 1.2,
    ),
    "aepo_clip, dual clip": (
        loss("aepo_clip"),
        loss("aepo_clip", dual_clip=0.0),
        lambda a, r, _: a < 0 and r > 3,
    ),
    "reinforce, cap": (
        loss("reinforce"),
        loss("reinforce", options=of.ReinforceOptions(cap=99.0)),
        lambda a, r, _: a != 0 and r > 2,
    ),
    "reinforce, ratio": (
        loss("reinforce"),
        loss("reinforce", options=of.ReinforceOptions(cap=0.0)),
        lambda a, r, _: a != 0 and r != 1,
    ),
    "sapo, gate": (
        loss("sapo"),
        loss("sapo", options=of.SapoOptions(tau_positive=1e-6, tau_negative=1e-6)),
        lambda a, r, _: a != 0 and abs(r - 1) > 1e-3,
    ),
    "token_tis, cap": (
        corrected(TIS),
        corrected(of.TokenTisOptions(cap=99.0)),
        lambda a, _, rho: a != 0 and rho > 2,
    ),
    "icepop, upper": (
        corrected(ICEPOP),
        corrected(replace(ICEPOP, high=99.0)),
        lambda a, _, rho: a != 0 and rho > 5,
    ),
    "icepop, lower": (
        corrected(ICEPOP),
        corrected(replace(ICEPOP, low=0.01)),
        lambda a, _, rho: a != 0 and rho < 0.5,
    ),
    "divergence_rejection, threshold": (
        corrected(of.DivergenceRejectionOptions(denominator="all")),
        corrected(),
        lambda a, _, rho: a != 0 and rho - 1 - math.log(rho) > 0.1,
    ),
}


@pytest.mark.parametrize("name", sorted(GATES))
def test_a_gate_acts_on_the_tokens_beyond_it_and_on_no_other(name: str) -> None:
    on, off, acts = GATES[name]
    assert tokens_where(acts), "no token of the grid reaches the bound"
    assert changed(on, off) == tokens_where(acts)


CLIPPED = sorted(kind for kind, defaults in POLICY_LOSSES.items() if defaults.clip_low is not None)


@pytest.mark.parametrize("kind", CLIPPED)
def test_both_clips_of_a_loss_act(kind: str) -> None:
    narrow = loss(kind, clip_low=0.2) if kind == "cispo" else loss(kind)  # CISPO has no lower bound by default
    low, high = narrow.clip
    assert changed(narrow, loss(kind, clip_low=low, clip_high=99.0))
    assert changed(narrow, loss(kind, clip_low=1.0, clip_high=high))


@pytest.mark.parametrize("kind", sorted(kind for kind, defaults in POLICY_LOSSES.items() if defaults.may_dual_clip))
def test_the_dual_clip_of_a_loss_acts(kind: str) -> None:
    assert changed(loss(kind, dual_clip=2.0), loss(kind, dual_clip=0.0))


OTHER_MODES = [mode for mode in get_args(Aggregation) if mode != "token-mean"]
ACTS: dict[str, tuple[LossConfig, LossConfig]] = {
    "gspo by turn, upper": (loss("gspo"), loss("gspo", clip_high=99.0)),
    "gspo by turn, lower": (loss("gspo"), loss("gspo", clip_low=1.0)),
    "gspo by row, upper": (loss("gspo", ratio_level="sequence"), loss("gspo", ratio_level="sequence", clip_high=99.0)),
    "gspo by row, lower": (loss("gspo", ratio_level="sequence"), loss("gspo", ratio_level="sequence", clip_low=1.0)),
    "minpro, prefix": (loss("minpro"), loss("ppo_clip")),
    "bapo, search": (loss("bapo"), loss("bapo", options=of.BapoOptions(target=0.0))),
    "ppo_clip by turn": (loss("ppo_clip", ratio_level="turn"), loss("ppo_clip")),
    "cispo by row": (loss("cispo", ratio_level="sequence"), loss("cispo")),
    "bypass": (loss("ppo_clip", mode="bypass"), loss("ppo_clip")),
    **{f"aggregation {mode}": (loss("ppo_clip", aggregation=mode), loss("ppo_clip")) for mode in OTHER_MODES},
    "aggregation over turns": (
        loss("ppo_clip", aggregation="seq-mean-token-mean", aggregation_unit="turn"),
        loss("ppo_clip", aggregation="seq-mean-token-mean"),
    ),
    "norm_length": (
        loss("ppo_clip", aggregation="seq-mean-token-sum-norm", norm_length=7),
        loss("ppo_clip", aggregation="seq-mean-token-sum-norm"),
    ),
    **{f"correction {kind}": (made(kind), corrected()) for kind in CORRECTIONS},
    **{f"regulariser {kind}": (made(kind), regularised()) for kind in REGULARISERS},
    "batch_normalise alone": (made("batch_normalise"), corrected(TIS)),
    "kept denominators, by row": (
        LossConfig(corrections=(of.SequenceMisOptions(),), aggregation="seq-mean-token-mean"),
        LossConfig(corrections=(of.SequenceMisOptions(denominator="all"),), aggregation="seq-mean-token-mean"),
    ),
}


@pytest.mark.parametrize("name", sorted(ACTS))
def test_a_setting_acts(name: str) -> None:
    assert changed(*ACTS[name])


# ------------------------------------------------------------------------------------- every option does something

OTHER: dict[str, dict[str, Any]] = {
    "sapo": {"tau_positive": 2.0, "tau_negative": 2.0},
    "minpro": {"surrogate": "cispo", "cap_min_at_1": True},
    "bapo": {"low": 0.75, "high": 1.55, "low_max": 0.95, "high_max": 1.29, "step": 0.4, "target": 0.5},
    "reinforce": {"cap": 1.2},
    "refuel": {"eta": 0.5},
    "opmd": {"tau": 0.5},
    "rl_plus": {"gamma": 2.0},
    "opmd_squared": {"tau": 0.5, "level": "turn"},
    "pacs": {"beta": 2.0, "score": "logprob", "baseline": "none", "balanced": False, "right_from": 0.3},
    "disco": {
        **{"score": "ratio", "negatives": "mean", "tau": 1.0, "beta": 1.0, "delta": 0.1, "kl": "k3"},
        "right_from": 0.3,
    },
    "drpo": {
        **{"temperature": 1.0, "max_tokens": 8, "tau": 1.0, "beta": 1.0, "delta": 0.1, "kl": "k3"},
        "right_from": 0.3,
    },
    "dppo": {"divergence": "kl", "low": 0.5, "high": 0.9, "cap": 1.2},
    "unlikeliness": {"penalty": 1.0},
    "steer": {"mapping": "linear", "least": 0.5, "most": 1.5},
    "hapo": {"pivot": 0.3, "clip_scale": 0.2, "advantage_scale": 0.2, "signed": False},
    "gtpo": {"right_weight": 3.0, "most_entropy": 0.9, "entropy_penalty": 0.5, "shares_weight": False},
    "ace": {"alpha": 3.0},
    "flash_reinforce": {"delta": 9.0, "failed_share": 0.4, "right_from": 0.3},
    "arbitrary_entropy": {"target": 0.9, "hot": 1.5, "cold": 0.5, "right_above": 0.7, "most": 0.05},
    "lp_reg": {"coef": 0.5, "noise": 0.4, "relative": False, "share": 0.5},
    "dph": {"coef": 0.5, "divergence": "js"},
    "reg_grpo": {"scale": 2.0},
    "one_token": {"coef": 0.5, "beta": 0.3, "temperature": 2.0},
    "entropy_band": {"coef": 0.1, "share": 0.5, "low": 0.2, "high": 1.0},
    "siren": {"coef": 0.1, "top_p": 0.95, "most_tokens": 2, "quantile": 0.3},
    "token_tis": {"cap": 1.2},
    "seq_tis": {"cap": 9.0, "level": "turn"},
    "icepop": {"low": 0.1, "high": 8.0, "denominator": "kept"},
    "seq_mis": {"low": 0.1, "high": 6.0, "level": "turn", "weight": "ratio", "denominator": "all"},
    "geometric": {"low": 0.5, "high": 2.0, "level": "turn", "denominator": "all"},
    "divergence_rejection": {
        "estimator": "k2",
        "level": ("sequence_mean", "sequence_max"),
        "threshold": 0.5,
        "denominator": "all",
    },
    "m2po": {"threshold": 0.3, "denominator": "all"},
    "decoupled": {"cap": 2.0, "level": ("turn", "sequence"), "action": "clamp"},
    "batch_normalise": {},
    "vcpo": {"scale": "linear", "base_ratio": 0.5},
    "kl": {"coef": 0.1, "estimator": ("k1", "k2", "k3+")},
    "kl_first": {"coef": 0.5, "num_turns": 2, "estimator": ("k1", "k2", "k3+")},
    "kl_convex": {"coef": 0.1, "base_share": 0.9, "estimator": ("k1", "k2", "k3+")},
    "distill": {"coef": 0.1},
    "self_distill": {"coef": 0.1},
    "entropy": {"coef": 0.1},
    "epo": {
        "coef": 0.1,
        "smoothing": 2.0,
        "alpha": 0.5,
        "low": 0.9,
        "high": 1.1,
        "phase_steps": 4,
        "from_turn": 2,
        "has_gradient": False,
    },
    "llds": {"coef": 0.5, "gate": "sequence", "preserve_only_correct": False},
}
"""Of every option another value than the default, or several."""
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("bapo", "low"): {"target": 0.5},
    ("pacs", "balanced"): {"right_from": 0.3},
    **{(kind, name): {"kl": "k3"} for kind in ("disco", "drpo") for name in ("beta", "delta")},
    ("steer", "most"): {"mapping": "linear"},
    ("lp_reg", "relative"): {"noise": 0.2},
    **{("gtpo", name): {"most_entropy": 9.0} for name in ("right_weight", "entropy_penalty", "shares_weight")},
    ("hapo", "clip_scale"): {"pivot": 0.0},
    ("flash_reinforce", "failed_share"): {"delta": 9.0},
    ("flash_reinforce", "right_from"): {"delta": 9.0, "failed_share": 0.4},
    ("arbitrary_entropy", "target"): {"most": 9.0},
    ("arbitrary_entropy", "hot"): {"target": 9.0},
}
"""What an option needs beside it: BAPO's search, where it runs, moves the lower bound to its limit; a group with as
many right as wrong episodes is balanced; the mean log-ratio of these tokens is no divergence; all rows are more unsure
than GTPO trains; the entropy is far above its target, so that the policy is drawn to the cold one."""


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_every_option_changes_the_outcome(kind: str) -> None:
    names = {option.name for option in fields(OPTIONS[kind])} - {"kind", "teacher"}  # which is scored before the loss
    names -= {"max_chars"}  # of what the teacher sees: see test_self_distillation.py
    names -= {"restart_at"}  # it changes the reference, before the loss: see test_remix_training.py
    if kind == "vcpo":
        names -= {"baseline"}  # it changes advantages, before the loss: see test_opob.py
    assert set(OTHER[kind]) == names, "give every option another value here"
    for name, value in OTHER[kind].items():
        for other in value if isinstance(value, tuple) else (value,):
            beside = BESIDE.get((kind, name), {})
            assert changed(made(kind, **beside), made(kind, **beside, **{name: other})), f"{name}={other!r} is idle"
