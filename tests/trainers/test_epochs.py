"""Epochs over a step's rollouts: minibatches, shuffles, the policy that ratios compare with, the stop by KL."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights
from testkit.policy_updates import on_policy, state, verdicts

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.plan import RowOutline
from agentgym.trainers.data.samples import build_samples
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs
from agentgym.trainers.losses.loss import policy_loss, token_logprobs
from agentgym.trainers.phases.minibatches import plan_minibatches
from agentgym.trainers.phases.update import UpdateResult, update_policy
from agentgym.trainers.train import train


def updated(model: Any, loss: LossConfig, *, lr: float = 0.1, seed: int = 0) -> UpdateResult:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return update_policy(model, optimizer, verdicts(), loss, temperature=1.0, max_grad_norm=1.0, seed=seed)


def frozen_logprobs(model: Any, batch: Any) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(model, batch, 1.0)[0]


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------------------------------------------- minibatches


def plan(loss: LossConfig, seed: int = 0) -> tuple[list[list[list[int]]], Sequence[Any]]:
    kept = verdicts()
    samples = build_samples(kept)
    return plan_minibatches(kept, [RowOutline.of(sample) for sample in samples], loss, seed), samples


@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_rows_make_as_many_minibatches_as_there_are_rows_for(size: int) -> None:
    epochs, samples = plan(LossConfig(minibatch="rows", rows_per_update=size, num_epochs=2))
    for epoch in epochs:
        assert sorted(row for rows in epoch for row in rows) == list(range(len(samples)))
        assert len(epoch) == -(-len(samples) // size)
        assert max(map(len, epoch)) <= size and max(map(len, epoch)) - min(map(len, epoch)) <= 1
    if size < len(samples):
        assert epochs[0] != epochs[1]


def test_updates_by_rows_are_made(small_model: Any) -> None:
    made = updated(small_model, LossConfig(minibatch="rows", rows_per_update=4))
    num_rows = len(build_samples([verdict for verdict in verdicts() if verdict.dropped is None]))
    assert made.metrics["updates_done"] == -(-num_rows // 4) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minibatch": "rows"}, "rows_per_update=N"),
        ({"rows_per_update": 4}, "rows_per_update=N"),
        ({"minibatch": "rows", "rows_per_update": -1}, "rows_per_update must be at least 0"),
        ({"minibatch": "rows", "rows_per_update": 4, "num_updates": 2}, "leave num_updates at 1"),
    ],
)
def test_rows_and_their_number_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossConfig(**settings)


def test_one_epoch_deals_groups_out_in_order() -> None:
    (epoch,), samples = plan(LossConfig(num_updates=2))
    kept = verdicts()
    for first, rows in enumerate(epoch):
        expected = build_samples(kept[first::2])
        assert [samples[row].token_ids for row in rows] == [sample.token_ids for sample in expected]
    assert plan(LossConfig(num_updates=2), seed=7)[0] == [epoch]


def test_groups_stay_whole_and_every_epoch_holds_every_row_once() -> None:
    epochs, samples = plan(LossConfig(num_updates=2, num_epochs=6))
    assert len(epochs) == 6
    for epoch in epochs:
        assert sorted(row for rows in epoch for row in rows) == list(range(len(samples)))
        ordinals = [{samples[row].ordinal for row in rows} for rows in epoch]
        assert not set.intersection(*ordinals)
    assert len({str(epoch) for epoch in epochs}) > 1


def test_minibatches_of_tokens_differ_by_one_episode_at_most() -> None:
    epochs, samples = plan(LossConfig(num_updates=3, num_epochs=4, minibatch="tokens"))
    longest = max(
        sum(len(s.in_batch) for s in samples if s.trajectory == number) for number in {s.trajectory for s in samples}
    )
    for epoch in epochs:
        assert sorted(row for rows in epoch for row in rows) == list(range(len(samples)))
        trajectories = [{samples[row].trajectory for row in rows} for rows in epoch]
        assert sum(map(len, trajectories)) == len(set.union(*trajectories)), "windows of an episode stay together"
        sizes = [sum(len(samples[row].in_batch) for row in rows) for rows in epoch]
        assert max(sizes) - min(sizes) <= longest


def test_there_are_no_more_minibatches_than_groups_or_episodes() -> None:
    assert [len(epoch) for epoch in plan(LossConfig(num_updates=99))[0]] == [5]
    assert [len(epoch) for epoch in plan(LossConfig(num_updates=99, minibatch="tokens"))[0]] == [14]
    loss = LossConfig(num_updates=2, num_epochs=2)
    assert plan_minibatches([], [], loss, 0) == []


# ----------------------------------------------------------------------------------------------------------- updates


def test_one_update_is_the_gradient_of_the_loss_bit_for_bit(small_model: Any) -> None:
    loss, literal = LossConfig(), copy.deepcopy(small_model)
    optimizer = torch.optim.SGD(literal.parameters(), lr=0.1)
    for batch in build_batches(build_samples(verdicts()), layout="prefix"):
        logprob, entropy = token_logprobs(literal, batch, 1.0)
        scores = BatchLogprobs(logprob=logprob, logprob_old=logprob.detach(), entropy=entropy)
        policy_loss(scores, batch, loss).loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(literal.parameters(), 1.0)
    optimizer.step()
    metrics = updated(small_model, loss).metrics
    assert are_equal(state(small_model), state(literal))
    assert metrics["updates_done"] == 1 and metrics["clip_fraction"] == metrics["stopped_by_kl"] == 0


def test_ratios_compare_with_the_policy_before_the_first_update(small_model: Any) -> None:
    loss, literal = LossConfig(num_epochs=3, aggregation="seq-mean-token-mean"), copy.deepcopy(small_model)
    optimizer = torch.optim.SGD(literal.parameters(), lr=1.0)
    (batch,) = build_batches(build_samples(verdicts()), aggregation="seq-mean-token-mean", layout="rows")
    before = frozen_logprobs(literal, batch)
    for _ in range(3):
        optimizer.zero_grad()
        logprob, entropy = token_logprobs(literal, batch, 1.0)
        policy_loss(BatchLogprobs(logprob=logprob, logprob_old=before, entropy=entropy), batch, loss).loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(literal.parameters(), 1.0)
        optimizer.step()
    metrics = updated(small_model, replace(loss, layout="rows"), lr=1.0).metrics
    for name, value in literal.state_dict().items():
        torch.testing.assert_close(small_model.state_dict()[name], value, atol=1e-6, rtol=1e-5)
    assert metrics["updates_done"] == 3
    assert 0 < metrics["clip_fraction"] < 1, "ratios have left the clip range by the second or third update"


@pytest.mark.parametrize("layout", ["rows", "prefix", "packed"])
@pytest.mark.parametrize("minibatch", ["episodes", "tokens"])
def test_updates_do_not_depend_on_micro_batches(small_model: Any, layout: Any, minibatch: Any) -> None:
    base = LossConfig(num_updates=2, num_epochs=2, minibatch=minibatch, layout="rows")
    other = copy.deepcopy(small_model)
    updated(small_model, base)
    updated(other, replace(base, layout=layout, tokens_per_microbatch=12))
    for name, value in small_model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, atol=1e-6, rtol=1e-4)


def test_the_shuffle_follows_from_the_seed(small_model: Any) -> None:
    loss = LossConfig(num_updates=2, num_epochs=3)
    ends = []
    for seed in (1, 1, 2):
        model = copy.deepcopy(small_model)
        updated(model, loss, seed=seed)
        ends.append(state(model))
    assert are_equal(ends[0], ends[1])
    assert not are_equal(ends[0], ends[2])


def test_bypass_compares_with_the_policy_that_sampled(small_model: Any) -> None:
    metrics = updated(small_model, LossConfig(mode="bypass", corrections=(), num_updates=2, num_epochs=2)).metrics
    assert metrics["updates_done"] == 4
    assert metrics["clip_fraction"] > 0, "made log-probabilities are far from the model's"
    assert metrics["trained_tokens"] == 2 * sum(len(s.in_batch) for s in build_samples(verdicts()))


# ------------------------------------------------------------------------------------------------------- stop by KL


@pytest.mark.parametrize(("max_kl", "done"), [(None, 6), (1e9, 6), (1e-12, 1)])
def test_a_large_kl_stops_the_remaining_updates(small_model: Any, max_kl: float | None, done: int) -> None:
    loss = LossConfig(num_updates=2, num_epochs=3, max_kl=max_kl)
    groups = on_policy(small_model)
    optimizer = torch.optim.SGD(small_model.parameters(), lr=0.5)
    metrics = update_policy(small_model, optimizer, groups, loss, temperature=1.0, max_grad_norm=1.0).metrics
    assert metrics["updates_done"] == done
    assert metrics["stopped_by_kl"] == float(done < 6)
    assert metrics["kl_old"] > 1e-12, "of the minibatch that stopped it"
    rows = build_samples(groups)
    trained = (
        sum(len(s.in_batch) for s in build_samples(groups[0::2]))
        if done == 1
        else 3 * sum(len(s.in_batch) for s in rows)
    )
    assert metrics["trained_tokens"] == trained, "a minibatch without an optimizer step is not counted"


def test_a_stop_leaves_the_weights_of_the_updates_made(small_model: Any) -> None:
    stopped, short = small_model, copy.deepcopy(small_model)
    groups = on_policy(small_model)
    for model, some, loss in (
        (stopped, groups, LossConfig(num_updates=2, max_kl=1e-12)),
        (short, groups[0::2], LossConfig()),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        update_policy(model, optimizer, some, loss, temperature=1.0, max_grad_norm=1.0)
    for name, value in short.state_dict().items():
        torch.testing.assert_close(stopped.state_dict()[name], value, atol=1e-6, rtol=1e-5)


# ----------------------------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_epochs": 0}, "num_epochs must be at least 1"),
        ({"max_kl": 0.1}, "set num_updates or num_epochs above 1"),
        ({"max_kl": -1.0, "num_epochs": 2}, "max_kl must be above 0"),
        ({"minibatch": "tokens"}, "set num_updates above 1"),
    ],
)
def test_settings_without_effect_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossConfig(**keys)


@pytest.mark.slow
def test_a_resumed_run_with_epochs_ends_in_the_same_weights(tmp_path: Path) -> None:
    loss = LossConfig(num_updates=2, num_epochs=2, minibatch="tokens", max_kl=0.5)
    settings = config(loss=loss, num_steps=4)
    train(settings, tmp_path / "whole")
    rows = [row for row in read_json_lines(tmp_path / "whole" / "metrics.jsonl") if row["phase"] == "rl"]
    assert max(row["updates_done"] for row in rows) == 4
    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "whole", resumed)
    drop_checkpoint(resumed, 4)
    train(settings, resumed, resume=True)
    assert weights(resumed) == weights(tmp_path / "whole")
