from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import TopKLogitsWarper, TopPLogitsWarper

from agentgym.engine import SamplingParams
from agentgym.trainers.engines.torch.sampling import RowSettings, distribution, draw_uniforms, invert_cdf, sample

CPU = torch.device("cpu")


def random_logits(num_rows: int, vocab_size: int, *, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def settings(*params: SamplingParams, vocab_size: int) -> RowSettings:
    return RowSettings.build(params, vocab_size, CPU)


def one_distribution(logits: list[float], params: SamplingParams) -> list[float]:
    row = torch.tensor([logits])
    probs: list[float] = distribution(row, settings(params, vocab_size=len(logits)))[0].tolist()
    return probs


# ------------------------------------------------------------------------------------------------ random streams


def test_a_longer_stream_begins_with_the_shorter_one() -> None:
    assert draw_uniforms(5, 100)[:7] == draw_uniforms(5, 7)
    assert draw_uniforms(5, 7) != draw_uniforms(6, 7)
    assert all(0 <= u < 1 for u in draw_uniforms(-1, 1000))


def test_no_global_generator_is_read_or_moved() -> None:
    np.random.seed(0)
    torch_before, numpy_before = torch.get_rng_state(), str(np.random.get_state())
    sample(random_logits(2, 50), settings(*[SamplingParams(top_k=5)] * 2, vocab_size=50), draw_uniforms(0, 2))
    assert torch.equal(torch_before, torch.get_rng_state())
    assert numpy_before == str(np.random.get_state())


# -------------------------------------------------------------------------------------------------- inverse CDF


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 64, 65, 200, 4096])
def test_inverse_cdf_agrees_with_numpy(vocab_size: int) -> None:
    probs = random_logits(50, vocab_size).softmax(dim=-1)
    uniforms = draw_uniforms(1, 50)
    expected = []
    for row, uniform in zip(probs.double().numpy(), uniforms, strict=True):
        cumulative = row.cumsum()
        expected.append(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")))
    assert invert_cdf(probs, torch.tensor(uniforms, dtype=torch.float64)).tolist() == expected


@pytest.mark.parametrize("vocab_size", [3, 64, 130, 1000])
def test_probability_zero_is_never_returned(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    probs = torch.rand(400, vocab_size, generator=generator) * 10.0 ** torch.randint(-30, 2, (400, 1))
    probs[torch.rand(400, vocab_size, generator=generator) < 0.9] = 0.0
    probs[:, int(torch.randint(vocab_size, (), generator=generator))] = 1e-20
    for uniform in (0.0, 1e-300, 0.25, 0.5, 1 - 2**-53):
        tokens = invert_cdf(probs, torch.full((400,), uniform, dtype=torch.float64))
        assert (probs.gather(1, tokens[:, None]) > 0).all()


def test_extreme_uniforms_give_the_first_and_the_last_possible_token() -> None:
    probs = torch.zeros(2, 300)
    probs[:, [7, 130, 270]] = torch.tensor([0.2, 0.5, 0.3])
    assert invert_cdf(probs, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [7, 270]


@pytest.mark.parametrize("vocab_size", [8, 300])
def test_frequencies_follow_the_distribution(vocab_size: int) -> None:
    num_draws = 40_000
    row = random_logits(1, vocab_size, seed=3, scale=1.0)
    params = SamplingParams(temperature=0.7)
    batch = settings(*[params] * num_draws, vocab_size=vocab_size)
    tokens, _ = sample(row.expand(num_draws, -1), batch, draw_uniforms(11, num_draws))
    observed = np.bincount(tokens.numpy(), minlength=vocab_size)
    expected = (row / 0.7).softmax(dim=-1)[0].double().numpy() * num_draws
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = vocab_size - 1
    assert abs(chi_square - degrees) < 4 * (2 * degrees) ** 0.5


# -------------------------------------------------------------------------------------------------- distributions


def test_temperature_divides_the_logits() -> None:
    logits = random_logits(1, 40)
    probs = distribution(logits, settings(SamplingParams(temperature=0.3), vocab_size=40))
    assert torch.allclose(probs, (logits / 0.3).softmax(dim=-1), atol=1e-6)


def test_the_smallest_temperature_is_a_point_mass() -> None:
    assert one_distribution([1.0, 3.0, 2.0], SamplingParams(temperature=1e-40)) == [0.0, 1.0, 0.0]


def test_greedy_takes_the_peak_and_reports_the_unscaled_logprob() -> None:
    logits = random_logits(3, 40)
    params = SamplingParams(temperature=0.0, top_k=2, top_p=0.1)
    tokens, logprobs = sample(logits, settings(*[params] * 3, vocab_size=40), [0.0, 0.5, 0.99])
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()
    assert torch.allclose(logprobs, logits.log_softmax(dim=-1).amax(dim=-1), atol=1e-5)


@pytest.mark.parametrize("top_k", [1, 2, 5, 39, 40, 1000])
def test_top_k_agrees_with_transformers(top_k: int) -> None:
    logits = random_logits(6, 40)
    warper = TopKLogitsWarper(top_k=top_k)
    expected = warper(torch.zeros(6, 1, dtype=torch.long), logits).softmax(dim=-1)
    probs = distribution(logits, settings(*[SamplingParams(top_k=top_k)] * 6, vocab_size=40))
    assert torch.allclose(probs, expected, atol=1e-6)


@pytest.mark.parametrize("vocab_size", [40, 2000])
@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.05, 0.5, 0.9, 0.999])
def test_top_p_agrees_with_transformers(top_p: float, scale: float, vocab_size: int) -> None:
    logits = random_logits(6, vocab_size, scale=scale)
    warper = TopPLogitsWarper(top_p=top_p)
    expected = warper(torch.zeros(6, 1, dtype=torch.long), logits.double()).softmax(dim=-1).float()
    probs = distribution(logits, settings(*[SamplingParams(top_p=top_p)] * 6, vocab_size=vocab_size))
    # in a long flat tail the rounding of the sum decides on the last token, whose probability is tiny
    assert torch.allclose(probs, expected, atol=1e-6 if vocab_size == 40 else 1e-4)
    assert ((probs > 0).sum(dim=-1) - (expected > 0).sum(dim=-1)).abs().max() <= 1


def test_top_p_applies_to_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    # top-k leaves 0.4 and 0.3, that is 0.57 and 0.43: the first alone reaches 0.5, not so of the full distribution
    assert one_distribution(logits, SamplingParams(top_k=2, top_p=0.5)) == [1.0, 0.0, 0.0, 0.0]
    probs = one_distribution(logits, SamplingParams(top_p=0.5))
    assert probs == pytest.approx([4 / 7, 3 / 7, 0.0, 0.0])


def test_a_tiny_top_p_keeps_one_token() -> None:
    assert one_distribution([0.1, 0.3, 0.2], SamplingParams(top_p=1e-12)) == [0.0, 1.0, 0.0]


def test_tokens_tied_with_the_last_kept_one_stay() -> None:
    assert one_distribution([2.0, 1.0, 1.0, 0.0], SamplingParams(top_k=2))[1:3] == pytest.approx([0.2119] * 2, abs=1e-4)


def test_rows_with_different_settings_do_not_touch_each_other() -> None:
    logits = random_logits(6, 600)
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.7, top_k=3),
        SamplingParams(top_p=0.6),
        SamplingParams(temperature=0.4, top_k=20, top_p=0.8),
        SamplingParams(top_k=400),
    ]
    uniforms = draw_uniforms(9, 6)
    together = sample(logits, settings(*params, vocab_size=600), uniforms)
    for row, row_params in enumerate(params):
        alone = sample(logits[row : row + 1], settings(row_params, vocab_size=600), uniforms[row : row + 1])
        assert alone[0].item() == together[0][row].item()
        assert alone[1].item() == pytest.approx(together[1][row].item(), abs=1e-6)


def test_logprobs_are_those_of_the_filtered_distribution() -> None:
    logits = random_logits(4, 130).bfloat16()
    batch = settings(*[SamplingParams(temperature=0.5, top_k=10, top_p=0.7)] * 4, vocab_size=130)
    tokens, logprobs = sample(logits, batch, draw_uniforms(4, 4))
    expected = distribution(logits, batch).gather(1, tokens[:, None])[:, 0].log()
    assert torch.allclose(logprobs, expected)
    assert torch.isfinite(logprobs).all()
