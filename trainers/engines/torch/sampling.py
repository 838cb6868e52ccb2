"""Seeded sampling of one token per row, every row with its own temperature, top-k, top-p and random stream.

Each request has its own stream of uniform numbers. Inverting the cumulative distribution turns them into tokens.
A token therefore depends only on its row's logits and seed, not on the batch or a global generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentgym.engine import SamplingParams
from agentgym.trainers.engines.torch.transfer import on_device

_BLOCK_WIDTH = 64
_NUM_SORTED_FIRST = 64
"""Number of largest logits that top-p tries first, before it sorts the whole vocabulary."""
_MIN_TEMPERATURE = 1e-6
"""Below this a float32 quotient overflows; the distribution is a point mass long before."""


def draw_uniforms(seed: int, num_draws: int) -> list[float]:
    """Return the first ``num_draws`` numbers in [0, 1) of the stream of ``seed``.

    A longer draw begins with the shorter one, so that a request's tokens do not depend on its token limit.
    """
    uniforms: list[float] = np.random.Generator(np.random.Philox(seed % 2**64)).random(num_draws).tolist()
    return uniforms


@dataclass(frozen=True, slots=True)
class RowSettings:
    """The sampling settings of a batch as tensors; None if every row has the default.

    They are built once for a set of rows, and used until a row joins or leaves.
    """

    temperature_B: Tensor | None
    """Float32; 1 for greedy rows."""
    greedy_rows: Tensor | None
    """Indices of the rows that take the most likely token."""
    filtered_rows: Tensor | None
    """Indices of the rows that have a top-k or a top-p."""
    top_k: Tensor | None
    """One entry per filtered row, at least 1 and at most the vocabulary size."""
    top_p: Tensor | None
    """One entry per filtered row, float64."""
    num_sorted: int
    """Number of largest logits that the filter tries first; at least every top-k below the vocabulary size."""

    @classmethod
    def build(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> RowSettings:
        """Build the settings of rows with these ``params``, in order."""
        greedy = [row for row, p in enumerate(params) if p.temperature == 0]
        temperatures = [max(p.temperature, _MIN_TEMPERATURE) if p.temperature else 1.0 for p in params]
        filtered = [row for row, p in enumerate(params) if p.temperature and (p.top_k or p.top_p < 1)]
        top_ks = [min(params[row].top_k or vocab_size, vocab_size) for row in filtered]
        top_ps = [params[row].top_p for row in filtered]
        is_tempered = any(t != 1.0 for t in temperatures)
        return cls(
            temperature_B=on_device(temperatures, device) if is_tempered else None,
            greedy_rows=on_device(greedy, device) if greedy else None,
            filtered_rows=on_device(filtered, device) if filtered else None,
            top_k=on_device(top_ks, device) if filtered else None,
            top_p=on_device(top_ps, device, torch.float64) if filtered else None,
            num_sorted=max((k if k < vocab_size else min(_NUM_SORTED_FIRST, k) for k in top_ks), default=0),
        )


def sample(logits_BV: Tensor, settings: RowSettings, uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Sample one token per row; return the tokens and their log-probabilities.

    Args:
        logits_BV: shape ``[B, V]``, any floating dtype.
        settings: settings of the same ``B`` rows.
        uniforms: one number in [0, 1) per row; greedy rows ignore theirs.

    Returns:
        token ids ``[B]`` (int64) and natural-log probabilities ``[B]`` (float32) under the sampling distribution, which
        is after temperature, top-k and top-p; for greedy rows the full distribution at temperature 1.
    """
    probs_BV = distribution(logits_BV, settings)
    uniforms_B = on_device(uniforms, logits_BV.device, torch.float64)
    tokens_B = invert_cdf(probs_BV, uniforms_B)
    if settings.greedy_rows is not None:
        tokens_B[settings.greedy_rows] = logits_BV[settings.greedy_rows].argmax(dim=-1)
    return tokens_B, probs_BV.gather(1, tokens_B[:, None])[:, 0].log_()


def distribution(logits_BV: Tensor, settings: RowSettings) -> Tensor:
    """Return each row's sampling distribution ``[B, V]`` (float32): temperature, then top-k, then top-p."""
    logits_BV = logits_BV.float()
    if settings.temperature_B is not None:
        peak_B1 = logits_BV.amax(dim=-1, keepdim=True)  # dividing what is at most 0 cannot overflow upwards
        logits_BV = (logits_BV - peak_B1) / settings.temperature_B[:, None]
    if settings.filtered_rows is not None:
        assert settings.top_k is not None and settings.top_p is not None
        rows = settings.filtered_rows
        kept = _filter(logits_BV[rows], settings.top_k, settings.top_p, settings.num_sorted)
        logits_BV = logits_BV.index_copy(0, rows, kept)
    return torch.softmax(logits_BV, dim=-1)


def _filter(logits_RV: Tensor, top_k_R: Tensor, top_p_R: Tensor, num_sorted: int) -> Tensor:
    """Set logits outside top-k and top-p to -inf.

    Both limits become one threshold on the logit, so tokens tied with the last kept token stay too. The result depends
    only on the values, not on the order in which a sort returns equal ones.
    """
    vocab_size = logits_RV.shape[1]
    sorted_RK = logits_RV.topk(num_sorted, dim=-1).values
    is_unlimited_R = top_k_R == vocab_size
    threshold_R = sorted_RK.gather(1, top_k_R.clamp(max=num_sorted)[:, None] - 1)[:, 0]
    threshold_R1 = threshold_R.masked_fill(is_unlimited_R, -torch.inf)[:, None]
    probs_RV = logits_RV.masked_fill(logits_RV < threshold_R1, -torch.inf).softmax(dim=-1)
    norm_R1 = sorted_RK[:, :1] - probs_RV.amax(dim=-1, keepdim=True).log()  # softmax is far faster than logsumexp
    probs_RK = _sorted_probs(sorted_RK, threshold_R1, norm_R1)
    if num_sorted < vocab_size and bool((is_unlimited_R & (probs_RK.sum(dim=-1) < top_p_R)).any()):
        sorted_RK = logits_RV.sort(dim=-1, descending=True).values
        probs_RK = _sorted_probs(sorted_RK, threshold_R1, norm_R1)
    mass_before_RK = probs_RK.cumsum(dim=-1) - probs_RK
    num_kept_R = (mass_before_RK < top_p_R[:, None]).logical_and_(probs_RK > 0).sum(dim=-1).clamp_(min=1)
    threshold_R1 = torch.maximum(threshold_R1, sorted_RK.gather(1, num_kept_R[:, None] - 1))
    return logits_RV.masked_fill(logits_RV < threshold_R1, -torch.inf)


def _sorted_probs(sorted_RK: Tensor, threshold_R1: Tensor, norm_R1: Tensor) -> Tensor:
    """Return float64 probabilities of sorted logits, 0 below the threshold."""
    return (sorted_RK - norm_R1).double().exp_().masked_fill_(sorted_RK < threshold_R1, 0.0)


def invert_cdf(probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Return for each row the first index at which the cumulative probability exceeds its uniform number.

    The index never has probability zero. The search has two levels, a block and then an index in the block, because a
    cumulative sum over the whole vocabulary costs as much as the softmax.

    Args:
        probs_BV: non-negative float32 weights with a positive sum per row; they need not sum to 1.
        uniforms_B: float64 in [0, 1).
    """
    num_rows, num_tokens = probs_BV.shape
    padding = -num_tokens % _BLOCK_WIDTH
    if padding:
        probs_BV = torch.nn.functional.pad(probs_BV, (0, padding))
    blocks = probs_BV.view(num_rows, -1, _BLOCK_WIDTH)
    if blocks.shape[1] == 1:
        return _first_above(probs_BV, uniforms_B, is_fraction=True)[0]
    # a float32 sum of 64 terms is the block's weight by definition: the remainder below is clamped into the block
    block_B, rest_B = _first_above(blocks.sum(dim=-1), uniforms_B, is_fraction=True)
    inside = blocks[torch.arange(num_rows, device=probs_BV.device), block_B]
    return block_B * _BLOCK_WIDTH + _first_above(inside, rest_B, is_fraction=False)[0]


def _first_above(weights_BN: Tensor, target_B: Tensor, *, is_fraction: bool) -> tuple[Tensor, Tensor]:
    """Return the first index whose cumulative weight exceeds the target, and the rest of the target at its start.

    With ``is_fraction`` the target is a share of the row's total, else a weight. A target at or above the total is
    moved just below it. Indices of weight zero are never returned, whatever the rounding of the sum.
    """
    zero = weights_BN.new_zeros((), dtype=torch.float64)
    cumulative_BN = weights_BN.cumsum(dim=-1, dtype=torch.float64)
    reach_BN = torch.where(weights_BN > 0, cumulative_BN, zero)
    total_B = reach_BN.amax(dim=-1)
    target_B = target_B * total_B if is_fraction else target_B
    target_B = torch.minimum(target_B, torch.nextafter(total_B, zero))
    index_B = (reach_BN > target_B[:, None]).to(torch.uint8).argmax(dim=-1)
    start_B = (cumulative_BN - weights_BN).gather(1, index_B[:, None])[:, 0]
    return index_B, (target_B - start_B).clamp_(min=0.0)
