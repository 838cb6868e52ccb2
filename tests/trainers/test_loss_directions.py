"""Every policy loss with every correction and aggregation at its defaults: a step goes where the advantages point.

The rows are successes and failures of one group, with advantages of both signs. A step of gradient descent must raise
the log-probability of tokens with a positive advantage and lower that of the others, or leave it. No gradient may be
infinite, or larger than ``LARGEST`` times the token's share of the loss, unless the configuration warns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from agentgym.errors import ConfigError
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.layout import PaddedRows
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses.component import CORRECTIONS, POLICY_LOSSES, Aggregation
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, update_facts
from agentgym.trainers.losses.loss import policy_loss
from agentgym.trainers.losses.options import TokenTisOptions

LARGEST = 50.0
"""A correction that keeps one of 21 tokens gives it the share of all."""
LENGTHS = ((3, 2), (2, 4), (5,), (1, 1, 3))
"""Tokens of each turn, by row. Rows 0 and 1 are successes, the others failures."""
ROW = [row for row, turns in enumerate(LENGTHS) for n in turns for _ in range(n)]
TURN = [number for number, n in enumerate(n for turns in LENGTHS for n in turns) for _ in range(n)]
TURN_INDEX = [at for turns in LENGTHS for at, n in enumerate(turns) for _ in range(n)]
ADVANTAGE = torch.where(torch.tensor(ROW) < 2, 1.0, -1.0).double()
SPREADS = (0.0, 0.05, 0.5, 4.0, 40.0)
"""Deviations of the log-ratio to the engine: equal kernels, other kernels, older weights, much older ones, any."""
MOVED = 0.3
"""Deviation of the log-ratio to the policy before the step, after a first update."""
MODES: dict[str, dict[str, Any]] = {
    "one update": {"mode": "decoupled"},
    "second update": {"mode": "decoupled", "num_updates": 2},
    "bypass": {"mode": "bypass"},
}
PULLED_BACK = ("opmd_squared", "refuel")
"""Regressions on the log-ratio. Off-policy they also move it back to its aim, against the advantage if it is beyond,
and their gradient grows with the log-ratio."""


def directions(config: LossConfig, spread: float, mean: float = 0.0) -> Tensor:
    """Return the change of each token's log-probability by a step, over its share of the loss, ``[N]``.

    Args:
        spread, mean: deviation and mean of the log-ratio to the engine.
    """
    rng = np.random.default_rng(0)
    units = TURN if config.unit == "turn" else ROW
    before = torch.full((len(ROW),), -1.0, dtype=torch.float64)
    gap, moved = (torch.tensor(rng.normal(at, scale, len(ROW))) for at, scale in ((mean, spread), (0, MOVED)))
    weight = torch.tensor(token_weights(np.array(units), config.mean, config.norm_length), dtype=torch.float64)
    batch = Batch(
        layout=PaddedRows(torch.zeros(0, dtype=torch.long), torch.zeros(4, 6, dtype=torch.long)),
        row=torch.tensor(ROW),
        state=torch.arange(len(ROW)),
        target=torch.zeros(len(ROW), dtype=torch.long),
        rows=tuple(range(4)),
        columns={
            "advantage": ADVANTAGE,
            "logprob_rollout": before - gap,
            "loss_weight": weight,
            "turn": torch.tensor(TURN),
            "turn_index": torch.tensor(TURN_INDEX),
            "unit": torch.tensor(units),
            **{"siblings": torch.where(torch.tensor(TURN_INDEX) == 0, 0, -1)},
        },
    )
    logprob_old = batch["logprob_rollout"] if config.mode == "bypass" else before
    logprob = (before + moved if config.has_several_updates else before.clone()).requires_grad_()
    entropy = torch.ones_like(before)
    frozen = BatchLogprobs(logprob=logprob.detach(), logprob_old=logprob_old, entropy=entropy)
    facts = update_facts([batch], [frozen], config)
    scores = BatchLogprobs(logprob=logprob, logprob_old=logprob_old, entropy=entropy)
    (gradient,) = torch.autograd.grad(policy_loss(scores, batch, config, facts).loss, logprob)
    share = torch.ones_like(weight) if config.component.compares_siblings else weight
    return -gradient * facts.lr_scale / share


def configs(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a loss with every correction and aggregation in every mode, each at its defaults."""
    corrections: dict[str, Any] = {
        "no correction": (),
        **{name: (component.options(),) for name, component in CORRECTIONS.items() if component.options is not None},
    }
    corrections["batch_normalise"] = (TokenTisOptions(), *corrections["batch_normalise"])
    for correction, mean, mode in product(corrections, get_args(Aggregation), MODES):
        keys = {"kind": kind, "corrections": corrections[correction], "aggregation": mean, **MODES[mode]}
        yield f"{correction}, {mean}, {mode}", keys


def verdict(config: LossConfig, spread: float) -> str:
    """Return what is wrong with the directions of tokens, empty if nothing is."""
    found = directions(config, spread)
    if not found.isfinite().all():
        return "not finite"
    if found.abs().max() > LARGEST + (max(map(max, LENGTHS)) * spread if config.kind in PULLED_BACK else 0):
        return f"a gradient of {found.abs().max():g}"
    is_first = spread == 0 and not config.has_several_updates
    if config.kind in PULLED_BACK and not is_first:
        return ""
    along = found * ADVANTAGE
    if is_first and not config.component.compares_siblings and along.min() <= 0:
        return f"tokens {(along <= 0).nonzero().flatten().tolist()} are not trained"
    return f"tokens {(along < 0).nonzero().flatten().tolist()} go the wrong way" if along.min() < 0 else ""


WHOLE_EPISODES = [name for name, one in POLICY_LOSSES.items() if "trajectory" in one.read_by_prepare()]
"""Losses that read outcomes in place of advantages, and hold the policy near the last one; each has its own tests."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", sorted(name for name, one in POLICY_LOSSES.items() if not one.is_own and name not in WHOLE_EPISODES)
)
def test_every_loss_at_its_defaults_goes_where_the_advantages_point(kind: str) -> None:
    wrong, counts = [], {"cells": 0, "warned": 0, "refused": 0}
    for label, keys in configs(kind):
        try:
            config = LossConfig(**keys)
        except ConfigError:  # two parts that do not go together: rules of composition
            counts["refused"] += 1
            continue
        is_warned = any("without a bound" in one.message for one in config.findings())
        for spread in SPREADS:
            counts["cells"] += 1
            found = verdict(config, spread)
            counts["warned"] += bool(found and is_warned)
            if found and not (is_warned and "a gradient of" in found):
                wrong.append(f"{label}, spread {spread:g}: {found}")
    assert not wrong, "\n".join(wrong)
    assert tuple(counts.values()) == COUNTS.get(kind, (480, 0, 36))


COUNTS = {
    "gspo": (120, 0, 108),
    "ppo_clip": (480, 12, 36),
    "refuel": (60, 0, 120),
    "rl_plus": (480, 12, 36),
    "sapo": (440, 0, 44),
}
"""Cells of a loss, cells whose loss warns instead, and combinations of parts that are refused, where they differ."""


@pytest.mark.parametrize("kind", ["gspo", "minpro", "ppo_clip", "rl_plus"])
def test_a_loss_without_a_bound_says_so_in_bypass_mode(kind: str) -> None:
    config = LossConfig(kind=kind, mode="bypass", corrections=())
    assert directions(config, 0.0, mean=6.0).abs().max() > LARGEST
    (told,) = (one.message for one in config.findings() if "without a bound" in one.message)
    assert kind in told and "set loss." in told
    if config.component.may_dual_clip:
        mended = LossConfig(kind=kind, mode="bypass", corrections=(), dual_clip=3.0)
        assert not verdict(mended, 40.0) and not any("without a bound" in one.message for one in mended.findings())


def test_the_mean_of_refuel_is_its_own() -> None:
    """See the idle settings: an aggregation changes nothing, and the configuration says so."""
    found = [
        directions(LossConfig(kind="refuel", corrections=(), aggregation=mean), 0.5) for mean in get_args(Aggregation)
    ]
    assert all(torch.allclose(one, found[0]) for one in found)
