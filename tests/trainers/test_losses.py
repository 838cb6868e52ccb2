"""Losses, corrections and denominators against worked numbers and against each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentgym.trainers.batch import TrainBatch, build_batches, token_weights
from agentgym.trainers.config import LossConfig
from agentgym.trainers.correction import token_tis
from agentgym.trainers.loss import kl_k3, policy_loss, ppo_clip, token_logprobs
from agentgym.types import TrainingSample


def sample(num_prompt: int, num_sampled: int, advantage: float = 1.0, logprob: float = -1.0) -> TrainingSample:
    length = num_prompt + num_sampled
    return TrainingSample(
        token_ids=tuple(3 + i % 7 for i in range(length)),
        loss_mask=(0,) * num_prompt + (1,) * num_sampled,
        advantages=(0.0,) * num_prompt + (advantage,) * num_sampled,
        rollout_logprobs=(0.0,) * num_prompt + (logprob,) * num_sampled,
        policy_versions=(-1,) * num_prompt + (0,) * num_sampled,
        ordinal=0,
    )


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 0.666667),
        ("seq-mean-token-mean", 0.75),
        ("seq-mean-token-sum", 2.0),
        ("seq-mean-token-sum-norm", 0.5),
    ],
)
def test_aggregation(aggregation: str, expected: float) -> None:
    rows = [[1.0, 1.0], [0.0, 0.0, 0.0, 2.0]]
    weights = token_weights([len(row) for row in rows], aggregation, norm_length=8)
    total = sum(weight * value for weight, row in zip(weights, rows, strict=True) for value in row)
    assert total == pytest.approx(expected, abs=1e-5)


def test_rows_without_sampled_tokens_are_no_rows() -> None:
    assert token_weights([2, 0], "seq-mean-token-mean", 8) == [0.5, 0.0]


def test_ppo_clip() -> None:
    log_ratio, advantage = torch.tensor([0.3, -0.4, 0.05, -0.1]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, was_clipped = ppo_clip(log_ratio, torch.zeros(4), advantage, 0.2, 0.28)
    torch.testing.assert_close(loss, torch.tensor([-1.28, -0.670320, 1.051271, 0.904837]), atol=1e-5, rtol=0)
    assert was_clipped.tolist() == [True, False, False, False]


def test_token_tis() -> None:
    rho = torch.tensor([0.3, 0.9, 1.2, 4.0, 6.0])
    expected = torch.tensor([0.3, 0.9, 1.2, 2.0, 2.0])
    torch.testing.assert_close(token_tis(rho.log(), torch.zeros(5), 2.0), expected)
    assert token_tis(rho.log(), torch.zeros(5), 0).tolist() == [1.0] * 5


def test_tis_weights_are_one_on_policy_and_carry_no_gradient() -> None:
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    weights = token_tis(logprob, logprob.detach(), 2.0)
    assert weights.tolist() == [1.0, 1.0]
    assert not weights.requires_grad


def test_kl_k3() -> None:
    assert kl_k3(torch.tensor(-1.0), torch.tensor(-1.2)).item() == pytest.approx(0.018731, abs=1e-6)
    assert kl_k3(torch.tensor(-1.0), torch.tensor(-1.0)).item() == 0.0


def one_batch(*samples: TrainingSample) -> TrainBatch:
    (batch,) = build_batches(samples)
    return batch


def test_on_policy_gradient_is_that_of_reinforce() -> None:
    batch = one_batch(sample(2, 3, advantage=2.0), sample(1, 2, advantage=-1.0))
    logprob = torch.full((5,), -1.0, requires_grad=True)
    output = policy_loss(logprob, torch.zeros(5), logprob.detach(), batch, LossConfig())
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, -batch.advantage / 5)
    assert output.sums["clip_fraction"] == 0


def test_logprob_gap_is_reported() -> None:
    batch = one_batch(sample(1, 2, logprob=-1.0))
    output = policy_loss(torch.tensor([-1.5, -1.0]), torch.zeros(2), torch.tensor([-1.5, -1.0]), batch, LossConfig())
    assert output.maxima["logprob_gap_max"] == pytest.approx(0.5)
    assert output.sums["logprob_gap_mean"] == pytest.approx(0.5)


# ---------------------------------------------------------------------------------------------------- with a model


def gradients(model: Any, samples: list[TrainingSample], tokens_per_microbatch: int, aggregation: str) -> torch.Tensor:
    model.zero_grad()
    for batch in build_batches(samples, aggregation=aggregation, tokens_per_microbatch=tokens_per_microbatch):
        logprob, entropy = token_logprobs(model, batch, 1.0)
        policy_loss(logprob, entropy, logprob.detach(), batch, LossConfig()).loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_gradients_do_not_depend_on_micro_batches(small_model: Any, aggregation: str) -> None:
    model = small_model.double()
    rows = [sample(3, 2, 1.0), sample(5, 9, -0.5), sample(2, 1, 2.0), sample(4, 4, 0.3)]
    whole, split = gradients(model, rows, 10_000, aggregation), gradients(model, rows, 8, aggregation)
    # the advantages and weights are float32, so a term differs by rounding of its products alone
    torch.testing.assert_close(whole, split, atol=1e-9, rtol=1e-6)


def test_logprobs_are_those_of_a_full_forward_at_the_sampling_temperature(small_model: Any) -> None:
    batch = one_batch(sample(3, 4), sample(2, 7))
    logprob, entropy = token_logprobs(small_model, batch, 0.7)
    logits = small_model(input_ids=batch.input_ids).logits / 0.7
    full = torch.log_softmax(logits, -1)
    for n, (row, position) in enumerate(zip(batch.row.tolist(), batch.position.tolist(), strict=True)):
        distribution = full[row, position - 1]
        assert logprob[n].item() == pytest.approx(distribution[batch.targets[n]].item(), abs=1e-5)
        assert entropy[n].item() == pytest.approx(-(distribution.exp() * distribution).sum().item(), abs=1e-4)


def test_padding_and_neighbours_change_nothing(small_model: Any) -> None:
    alone = token_logprobs(small_model, one_batch(sample(3, 4)), 1.0)[0]
    beside = token_logprobs(small_model, one_batch(sample(3, 4), sample(6, 20)), 1.0)[0]
    torch.testing.assert_close(alone, beside[:4], atol=1e-5, rtol=0)
