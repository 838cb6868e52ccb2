"""Demonstrations beside RL: the gradient they add, its schedule, and runs that are resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights
from testkit.killed_runs import resume

from agentgym.errors import ConfigError, UsageError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig, SftMixConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.plan import RowOutline, plan_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.weighted_row import WeightedRow
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.phases.added_loss import SftMix
from agentgym.trainers.phases.sft import sft_sums
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

MIX = SftMixConfig(weight=0.5, schedule="linear", batch_size=6)


def mixed(mix: SftMixConfig = MIX, **changes: Any) -> TrainConfig:
    sft = SftConfig(num_demos=24, num_epochs=1, batch_size=8, mix=mix)
    return config(sft=sft, num_steps=4, checkpoint_every=2, **changes)


def made_rows() -> list[Row]:
    rng = np.random.default_rng(0)
    rows = []
    for length in (5, 9, 4, 12, 7, 6):
        is_sampled = rng.random(length) < 0.5
        is_sampled[-1] = True
        row_weights = np.where(is_sampled, 1.0, 0.3).astype(np.float32)
        rows.append(WeightedRow(tuple(rng.integers(1, 32, length).tolist()), row_weights, is_sampled))
    return rows


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("tokens_per_microbatch", [8, 20, 1000])
def test_the_gradient_does_not_depend_on_micro_batches(small_model: Any, tokens_per_microbatch: int) -> None:
    rows = made_rows()
    made = mixed(loss=LossConfig(tokens_per_microbatch=tokens_per_microbatch))
    (batch,) = build_batches(rows)
    total, sums = sft_sums(small_model, batch)
    loss = total / sums.weight
    assert loss.item() == pytest.approx(sums.mean)
    (0.25 * loss).backward()  # type: ignore[no-untyped-call]
    expected = gradients(small_model)
    small_model.zero_grad()
    step = SftMix(made, small_model, rows).at_step(2)  # half of the way: half of the weight
    step.add_gradient(0)
    for name, gradient in gradients(small_model).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5)
    assert step.metrics() == {"sft/weight": 0.25, "sft/loss": pytest.approx(loss.item(), abs=1e-5)}


@pytest.mark.parametrize(("count", "room"), [(1, 20), (2, 20), (3, 1000), (8, 1000)])
def test_ranks_share_a_batch_by_length(count: int, room: int) -> None:
    rows = made_rows()
    plan = plan_batches([RowOutline.of(row) for row in rows], tokens_per_microbatch=room, num_lanes=count)
    shares = [Ranks(rank, count).share(len(plan.batches)) for rank in range(count)]
    assert len({len(share) for share in shares}) == 1, "all make as many forward passes"
    trained = [row for share in shares for at, factor in share if factor for row in plan.batches[at].rows]
    assert sorted(trained) == list(range(len(rows))), "each row once"
    assert {factor for share in shares for _, factor in share} <= {0, count}
    sizes = [sum(plan.batches[at].num_forwarded for at, factor in share if factor) for share in shares]
    assert max(sizes) - min(sizes) <= 2 * max(len(row.token_ids) for row in rows)
    assert all(batch.num_forwarded <= room for batch in plan.batches)


def test_a_step_without_groups_learns_from_demonstrations_alone(small_model: Any) -> None:
    optimizer = torch.optim.SGD(small_model.parameters(), lr=0.1)
    step = SftMix(mixed(), small_model, made_rows()).at_step(0)
    before = {name: value.clone() for name, value in small_model.state_dict().items()}
    result = update_policy(
        small_model,
        optimizer,
        [],
        LossConfig(),
        temperature=1.0,
        max_grad_norm=1e9,
        add_gradient=step.add_gradient,
    )
    assert result.metrics["grad_norm"] > 0
    for name, gradient in gradients(small_model).items():
        torch.testing.assert_close(small_model.state_dict()[name], before[name] - 0.1 * gradient)


def test_every_optimizer_step_has_a_batch_of_its_own(small_model: Any) -> None:
    made = mixed(replace(MIX, batch_size=2), loss=LossConfig(num_updates=3))
    mix = SftMix(made, small_model, made_rows())

    def losses(step: int) -> list[float]:
        each = []
        for number in range(3):
            one = mix.at_step(step)
            one.add_gradient(number)
            each.append(one.metrics()["sft/loss"])
        return each

    assert len(set(losses(0))) == 3, "an epoch of six rows is three batches of two"
    assert losses(0) == losses(0)


def test_a_mixed_run_resumes_bit_for_bit_and_logs_its_loss(tmp_path: Path) -> None:
    train(mixed(), tmp_path / "whole")
    rows = [row for row in read_json_lines(tmp_path / "whole" / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["sft/weight"] for row in rows] == [0.5, 0.375, 0.25, 0.125]
    assert all(row["sft/loss"] > 0 for row in rows)

    stopped = tmp_path / "stopped"
    train(mixed(), stopped)
    drop_checkpoint(stopped, 4)
    (stopped / "model" / "model.safetensors").unlink()
    resume(stopped)
    assert weights(stopped) == weights(tmp_path / "whole")


def test_left_out_it_changes_nothing_and_present_it_does(tmp_path: Path) -> None:
    def trained(name: str, mix: SftMixConfig) -> str:
        made = apply_overrides(mixed(mix), ["num_steps=2"])
        train(made, tmp_path / name)
        return weights(tmp_path / name)

    plain = trained("plain", SftMixConfig())
    assert trained("off", SftMixConfig(weight=0.0, schedule="linear", batch_size=2)) == plain
    assert trained("on", MIX) != plain


def test_demonstrations_may_be_for_the_mix_alone(tmp_path: Path) -> None:
    made = apply_overrides(mixed(), ["sft.num_epochs=0", "num_steps=1"])
    train(made, tmp_path / "run")
    phases = [row["phase"] for row in read_json_lines(tmp_path / "run" / "metrics.jsonl")]
    assert phases == ["eval", "rl", "eval"]


def test_too_few_demonstrations_for_a_batch_are_said(tmp_path: Path) -> None:
    made = apply_overrides(mixed(), ["sft.num_demos=3", "sft.mix.batch_size=9"])
    with pytest.raises(UsageError, match=r"3 rows, fewer than sft\.mix\.batch_size=9"):
        train(made, tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sft.num_demos=0", "sft.mix.weight=0.5"], "there are none"),
        (["sft.num_demos=4", "sft.num_epochs=0"], "would not be used"),
        (["sft.num_demos=4", "sft.mix.weight=-1"], "at least 0"),
        (["sft.num_demos=4", "sft.trainer=trl"], "set it to 0 or 1"),
        (["sft.teacher=http://h/v1", "sft.num_demos=4"], "must be openai:URL"),
        (["sft.num_demos=0", "sft.teacher=openai:http://h/v1"], "set sft.num_demos"),
        (["sft.num_demos=4", "sft.episodes_per_task=2"], "set sft.teacher too"),
        (["sft.loss_roles=[]", "sft.observation_weight=0"], "above 0 where sft.loss_roles is empty"),
        (['sft.loss_roles=["robot"]'], "loss_roles"),
    ],
)
def test_settings_that_cannot_be_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        apply_overrides(load_recipe("tiny"), overrides)
