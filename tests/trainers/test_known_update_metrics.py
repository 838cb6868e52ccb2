"""Numbers of updates and warm starts, computed again by one plain forward pass for each row.

Whole rows are compared, so a new number needs an answer here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from testkit import counting_runs
from testkit.made_groups import group, trajectory, turn

from agentgym.credit.credited import credit_columns
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.data.weighted_row import WeightedRow
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import EntropyOptions, ForkingTokensOptions, KlOptions
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.phases.added_loss import AddedLoss
from agentgym.trainers.phases.rollouts import PrefixHits, Rollouts
from agentgym.trainers.phases.sft import sft_steps
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.reporting.clock import Clock
from agentgym.types import TurnCredit

PROMPT = (1, 2)
ROWS: Sequence[tuple[tuple[int, ...], tuple[float, ...], float]] = (
    ((3, 4, 5), (-0.5, 0.3, 0.1), 1.0),
    ((6,), (0.6,), -1.0),
    ((7, 8), (0.05, -0.9), -0.5),
)
"""Sampled tokens of each episode, by how much the engine's log-probabilities exceed the model's, and the advantage."""
NUM = 6


@dataclass(frozen=True)
class Token:
    """One sampled token by a plain forward pass: what the engine and the model say of it, and its advantage."""

    engine: float
    logprob: float
    entropy: float
    advantage: float

    @property
    def gap(self) -> float:
        return abs(self.logprob - self.engine)

    @property
    def weight(self) -> float:
        """The weight of `token_tis` with its published bound of 2."""
        return min(math.exp(self.logprob - self.engine), 2.0)


def plain(model: Any, prompt: Sequence[int], sampled: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return log-probabilities and entropies of sampled tokens, from one forward pass without padding."""
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0].double().log_softmax(-1)
    at = range(len(prompt) - 1, ids.shape[1] - 1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return [logprobs[k, ids[0, k + 1]].item() for k in at], [entropies[k].item() for k in at]


def tokens_of(model: Any) -> list[Token]:
    """Return the sampled tokens of all episodes."""
    found = []
    for sampled, gaps, advantage in ROWS:
        logprobs, entropies = plain(model, PROMPT, sampled)
        engine = [logprob + gap for logprob, gap in zip(logprobs, gaps, strict=True)]
        found += [Token(*one, advantage) for one in zip(engine, logprobs, entropies, strict=True)]
    return found


def verdicts(known: Sequence[Token]) -> list[FilteredGroup]:
    """Return one group of all episodes, with their advantages."""
    engine = iter([one.engine for one in known])
    episodes = [turn(PROMPT, sampled, logprobs=tuple(next(engine) for _ in sampled)) for sampled, _, _ in ROWS]
    made = group(*(trajectory([one]) for one in episodes))
    credit = tuple((TurnCredit(shaped_reward=0.0, return_to_go=0.0, advantage=own),) for _, _, own in ROWS)
    return [FilteredGroup(made, credit_columns([made], [credit]), None)]


def updated(model: Any, loss: LossConfig, lr: float = 0.0, **more: Any) -> dict[str, float]:
    """Return the metrics of an update by plain gradient descent."""
    optimizer, groups = torch.optim.SGD(model.parameters(), lr=lr), verdicts(tokens_of(model))
    return update_policy(model, optimizer, groups, loss, temperature=1.0, max_grad_norm=1e9, **more).metrics


def norm_of(model: Any) -> float:
    """Return the norm of the gradients that an update left."""
    return math.sqrt(sum(one.grad.double().square().sum().item() for one in model.parameters() if one.grad is not None))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def k3(logprob: float, other: float) -> float:
    return math.exp(other - logprob) - (other - logprob) - 1


def test_numbers_of_an_update(small_model: Any) -> None:
    """One update on the policy's own ratio of 1, with a reference, an entropy bonus and a mask of tokens."""
    reference = copy.deepcopy(small_model)
    for parameter in reference.parameters():
        parameter.data.mul_(1.1)
    known = tokens_of(small_model)
    of_reference = [value for sampled, _, _ in ROWS for value in plain(reference, PROMPT, sampled)[0]]
    divergence = [k3(one.logprob, other) for one, other in zip(known, of_reference, strict=True)]
    loss = LossConfig(regularisers=(KlOptions(coef=0.1), EntropyOptions(coef=0.01)))
    found = updated(small_model, loss, reference=reference)
    of_policy = mean([-one.advantage * one.weight for one in known])
    assert found == pytest.approx(
        {
            "loss": of_policy + 0.1 * mean(divergence) - 0.01 * mean([one.entropy for one in known]),
            "grad_norm": norm_of(small_model),
            "trained_tokens": NUM,
            "entropy": mean([one.entropy for one in known]),
            "entropy_bonus": mean([one.entropy for one in known]),
            "kl": mean(divergence),
            "clip_fraction": 0.0,  # the ratio of a first update is 1
            "correction_weight": mean([one.weight for one in known]),
            "changed/token_tis": 1.0,
            "logprob_gap_max": max(one.gap for one in known),
            "logprob_gap_mean": mean([one.gap for one in known]),
            "kl_old": mean([k3(one.logprob, one.engine) for one in known]),
            "updates_done": 1,
            "stopped_by_kl": 0,
        },
        rel=1e-4,
    )
    assert norm_of(small_model) > 0


def test_numbers_of_a_clipped_update(small_model: Any) -> None:
    """Ratios to the engine's policy (mode bypass); beyond 0.8 and 1.28 they are clipped on the side of their sign."""
    known = tokens_of(small_model)
    found = updated(small_model, LossConfig(mode="bypass", corrections=()))
    ratios = [math.exp(one.logprob - one.engine) for one in known]
    gated = [ratio > 1.28 if one.advantage > 0 else ratio < 0.8 for ratio, one in zip(ratios, known, strict=True)]
    terms = [
        -one.advantage * (min(max(ratio, 0.8), 1.28) if is_gated else ratio)
        for ratio, one, is_gated in zip(ratios, known, gated, strict=True)
    ]
    assert 0 < sum(gated) < NUM, "the situation shows both"
    assert found["clip_fraction"] == pytest.approx(mean(list(map(float, gated))))
    assert found["loss"] == pytest.approx(mean(terms), rel=1e-4)
    assert found["correction_weight"] == 1.0


def test_a_mask_of_tokens_counts_those_it_leaves_out(small_model: Any) -> None:
    found = updated(small_model, LossConfig(token_masks=(ForkingTokensOptions(share=0.5),)))
    assert found["changed/forking_tokens"] == 0.5
    assert found["trained_tokens"] == NUM


def test_several_updates(small_model: Any) -> None:
    """The KL is that of the last update, losses are means, and a limit of the KL ends the step."""
    known = tokens_of(small_model)
    before = [one.logprob for one in known]
    model, plain_loss = copy.deepcopy(small_model), LossConfig(num_epochs=2, corrections=())
    found = updated(model, plain_loss, lr=0.01)
    first = copy.deepcopy(small_model)
    updated(first, LossConfig(corrections=()), lr=0.01)
    then = [value for sampled, _, _ in ROWS for value in plain(first, PROMPT, sampled)[0]]
    assert found["kl_old"] == pytest.approx(
        mean([k3(now, one.engine) for now, one in zip(then, known, strict=True)]), rel=1e-3
    )
    ratios = [math.exp(now - old) for now, old in zip(then, before, strict=True)]
    bounded = [
        max(-one.advantage * ratio, -one.advantage * min(max(ratio, 0.8), 1.28))
        for ratio, one in zip(ratios, known, strict=True)
    ]
    of_first = mean([-one.advantage for one in known])
    assert found["loss"] == pytest.approx((of_first + mean(bounded)) / 2, rel=1e-3)
    assert (found["updates_done"], found["trained_tokens"], found["stopped_by_kl"]) == (2, 2 * NUM, 0)
    stopped = updated(copy.deepcopy(small_model), replace(plain_loss, max_kl=1e-9), lr=0.01)
    assert (stopped["updates_done"], stopped["trained_tokens"], stopped["stopped_by_kl"]) == (1, NUM, 1)


@pytest.mark.parametrize("level", ["token", "turn"])
def test_numbers_do_not_depend_on_how_rows_are_split(small_model: Any, level: Any) -> None:
    """Means are over all tokens, not over means of micro-batches; the largest gap is that of all."""
    rows = []
    for room in (1, 12, 100_000):
        loss = LossConfig(
            ratio_level=level,
            regularisers=(EntropyOptions(),),
            token_masks=(ForkingTokensOptions(share=0.5),),
            tokens_per_microbatch=room,
            num_epochs=2,
        )
        rows.append(updated(copy.deepcopy(small_model), loss, lr=0.01))
    assert rows[0] == pytest.approx(rows[2], rel=1e-3, abs=1e-5) and rows[1] == pytest.approx(
        rows[2], rel=1e-3, abs=1e-5
    )


def test_a_step_that_trains_nothing_has_no_means(small_model: Any) -> None:
    optimizer = torch.optim.SGD(small_model.parameters(), lr=0.0)
    found = update_policy(small_model, optimizer, [], LossConfig(), temperature=1.0, max_grad_norm=1.0).metrics
    counts = {name: value for name, value in found.items() if not math.isnan(value)}
    assert counts == {"trained_tokens": 0, "updates_done": 0, "stopped_by_kl": 0}


# ------------------------------------------------------------------------------------- warm start and auxiliary losses


def row(ids: Sequence[int], weights: Sequence[float], sampled: Sequence[bool]) -> Row:
    return WeightedRow(tuple(ids), np.array(weights, dtype=np.float32), np.array(sampled))


WEIGHTED = (
    row((1, 2, 3, 4), (0.0, 0.5, 1.0, 1.0), (False, False, True, True)),
    row((1, 5, 6), (0.0, 0.25, 1.0), (False, False, True)),
)


def weighted_losses(model: Any) -> tuple[float, float]:
    """Return the mean loss over the weights, and over the sampled tokens alone."""
    found = [
        (-logprob, weight, is_sampled)
        for one in WEIGHTED
        for logprob, weight, is_sampled in zip(
            plain(model, one.token_ids[:1], one.token_ids[1:])[0],
            one.over_tokens("loss_weight")[1:],
            one.over_tokens("is_sampled")[1:],
            strict=True,
        )
    ]
    whole = sum(loss * weight for loss, weight, _ in found) / sum(weight for _, weight, _ in found)
    return float(whole), mean([loss for loss, _, is_sampled in found if is_sampled])


def test_numbers_of_a_warm_start(small_model: Any) -> None:
    of_all, of_actions = weighted_losses(small_model)
    settings = SftConfig(
        num_demos=2, batch_size=2, num_epochs=2, optimizer=OptimizerConfig(lr=0.5, warmup_steps=2, max_grad_norm=1e9)
    )
    optimizer = torch.optim.SGD(small_model.parameters(), lr=1.0)
    first, _ = steps = list(sft_steps(small_model, optimizer, WEIGHTED, settings, 0, 0))
    assert first["loss"] == pytest.approx(of_all, rel=1e-4)
    assert first["action_loss"] == pytest.approx(of_actions, rel=1e-4)
    assert [one["lr"] for one in steps] == [0.25, 0.5], "the rate rises to that of the settings in two steps"
    assert steps[1]["grad_norm"] == pytest.approx(norm_of(small_model), rel=1e-4)
    assert all(set(one) == {"loss", "action_loss", "grad_norm", "lr"} for one in steps)


def test_an_additional_loss_is_the_mean_over_the_steps_updates(small_model: Any) -> None:
    added = AddedLoss(LossConfig(), small_model, lambda number: WEIGHTED, 0.25, "echo")
    assert added.metrics() == {"echo/weight": 0.25}, "no optimizer step, no loss"
    of_all, _ = weighted_losses(small_model)
    added.add_gradient(0)
    gradient = norm_of(small_model)
    with torch.no_grad():
        for parameter in small_model.parameters():
            parameter.mul_(0.9)
    of_then, _ = weighted_losses(small_model)
    added.add_gradient(1)
    assert added.metrics() == pytest.approx({"echo/weight": 0.25, "echo/loss": (of_all + of_then) / 2}, rel=1e-4)
    assert gradient > 0


def test_numbers_of_information_gain() -> None:
    """Gains of 0.7, 0.5 and none; the first reference's probability at the start and end of two episodes of three."""
    levels = [np.log([[0.2, 0.9], [0.4, 0.1]]), np.log([[0.5, 0.9]]), np.empty((0, 0))]
    table = SimpleNamespace(info_gain=np.array([0.7, 0.5, np.nan]), answer_logprobs=levels)
    maker = ColumnMaker(counting_runs.config(), cast("Any", None), cast("Any", None))
    found = maker.learn([], cast("Any", SimpleNamespace(table=table)))
    assert found == pytest.approx({"info_gain": 0.6, "answer_prob_first": 0.35, "answer_prob_last": 0.45})


# ------------------------------------------------------------------------------------------------------- time and speed


def test_times_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 14.0, 15.0, 17.0])
    monkeypatch.setattr("agentgym.trainers.reporting.clock.time.perf_counter", lambda: next(now))
    clock = Clock()
    for name in ("rollout", "credit", "rollout"):
        clock.lap(name)
    assert clock.seconds == {"time/rollout_s": 6.0, "time/credit_s": 1.0}
    rollouts = SimpleNamespace(
        _mode="sync",
        state=SimpleNamespace(next_ordinal=12, num_taken=8),
        _in_flight=SimpleNamespace(limit=24),
        _prefix=PrefixHits(),
        _health=lambda: None,
        _planner=SimpleNamespace(metrics=lambda: {"num_tasks_played": 3.0}),
        _envs=[SimpleNamespace(prefix="a/")],
        _judges=[SimpleNamespace(take_metrics=lambda: {"judge/score": 0.5})],
        _teachers=[None],
    )
    found = Rollouts.metrics(cast("Rollouts", rollouts), 30.0, clock)
    assert found == {
        "tokens_per_s": 5.0,
        "groups_ahead": 4.0,
        "in_flight_limit": 24.0,
        "num_tasks_played": 3.0,
        "a/judge/score": 0.5,
    }
    rollouts._mode = "async"  # the engine samples beside the training: all seconds of the step count
    assert Rollouts.metrics(cast("Rollouts", rollouts), 35.0, clock)["tokens_per_s"] == 5.0
