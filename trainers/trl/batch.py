"""Training rows as the dict of tensors that TRL's GRPO loss reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentgym.errors import UsageError
from agentgym.trainers.data.row import Row

CorrectionMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def to_trl(samples: Sequence[Row], pad_id: int, *, multiple_of: int = 1) -> dict[str, Tensor]:
    """Convert rows to TRL's ``inputs``: prompts padded on the left, completions on the right.

    A row's prompt ends before its first sampled token. Its completion is the rest: sampled tokens, and the replies of
    the environment between them. TRL splits a batch into ``multiple_of`` pieces of equal size and drops the remainder,
    so rows without trained tokens fill the last piece. Such a row has two tokens, neither of them in the loss: a row
    without tokens to attend to would give NaN.

    Returns:
        a dict of tensors (integers int64, floats float32):

        * ``[B, P]``: ``prompt_ids`` and ``prompt_mask``;
        * ``[B, R]``: ``completion_ids``, ``completion_mask`` (1 on tokens), ``tool_mask`` (1 on sampled tokens that
          train), ``advantages`` and ``sampling_per_token_logps``;
        * ``num_items_in_batch``: the number of tokens that train.

    Raises:
        UsageError: a row has no sampled token.

    Example:
        >>> columns = {"is_trained": [1, 1], "advantage": [0.5, 0.5], "logprob_rollout": [-1.0, -2.0]}
        >>> columns = {name: np.array(column) for name, column in columns.items()}
        >>> row = Row(token_ids=(7, 8, 9, 2), positions=np.array([2, 3]), columns=columns)
        >>> batch = to_trl([row], pad_id=0, multiple_of=2)
        >>> batch["completion_ids"].tolist(), batch["tool_mask"].tolist(), batch["advantages"].tolist()
        ([[9, 2], [0, 0]], [[1, 1], [0, 0]], [[0.5, 0.5], [0.0, 0.0]])
        >>> batch["completion_mask"].tolist(), batch["num_items_in_batch"].item()
        ([[1, 1], [1, 0]], 2)
    """
    num_rows = max(1, math.ceil(len(samples) / multiple_of)) * multiple_of
    rows = [*samples, *[_filling(pad_id)] * (num_rows - len(samples))]
    starts = [_prompt_length(row) for row in rows]

    ids, there = [row.token_ids for row in rows], [(1,) * len(row.token_ids) for row in rows]

    def prompts(values: Sequence[Sequence[int]], fill: int) -> Tensor:
        return _padded([row[:start] for row, start in zip(values, starts, strict=True)], fill, on_left=True)

    def completions(values: Sequence[Sequence[float] | NDArray[Any]], fill: float) -> Tensor:
        return _padded([row[start:] for row, start in zip(values, starts, strict=True)], fill)

    def column(name: str, fill: float) -> Tensor:
        return completions([row.over_tokens(name) for row in rows], fill)

    tool_mask = column("is_trained", 0)
    return {
        "prompt_ids": prompts(ids, pad_id),
        "prompt_mask": prompts(there, 0),
        "completion_ids": completions(ids, pad_id),
        "completion_mask": completions(there, 0),
        "tool_mask": tool_mask,
        "advantages": column("advantage", 0.0),
        "sampling_per_token_logps": column("logprob_rollout", 0.0),
        "num_items_in_batch": tool_mask.sum(),
    }


def _prompt_length(row: Row) -> int:
    """Return the number of tokens before the first sampled token, even if that token does not train."""
    if not len(row.positions):
        raise UsageError("a row has no sampled token; episodes of scripted policies have no tokens to train on")
    return int(row.positions[0])


def _padded(rows: Sequence[Sequence[float] | NDArray[Any]], fill: float, *, on_left: bool = False) -> Tensor:
    """Pad to ``[B, longest]``; the dtype is float32 if the padding value is a float, else int64."""
    width = max(map(len, rows))
    block = np.full((len(rows), width), fill)
    for row, values in zip(block, rows, strict=True):
        row[width - len(values) if on_left else 0 :][: len(values)] = values
    return torch.from_numpy(block).float() if isinstance(fill, float) else torch.from_numpy(block)


def _filling(pad_id: int) -> Row:
    names = ("is_trained", "advantage", "logprob_rollout")
    return Row(token_ids=(pad_id, pad_id), positions=np.array([1]), columns={name: np.zeros(1) for name in names})


def engine_ratio(
    logprob_old: Tensor,
    logprob_rollout: Tensor,
    mask: Tensor,
    mode: CorrectionMode,
    low: float | None,
    high: float | None,
) -> Tensor:
    """Return TRL's weight of each token for the mismatch between the trainer's and the engine's probabilities.

    ``rho = pi_old / pi_engine`` of the token, or the product over the row's trained tokens (``sequence_*``). It is
    clamped to ``[low, high]`` (``*_truncate``), or 0 outside (``*_mask``). Shape ``[B, R]``, or ``[B, 1]`` for
    sequences.

    Source: TRL 1.16 ``GRPOTrainer._generate_and_score_completions``, which has it for rollouts by vLLM alone.

    Example:
        >>> rho, mask = torch.tensor([[0.5, 2.0, 5.0, 9.0]]), torch.tensor([[1, 1, 1, 0]])
        >>> engine_ratio(rho.log(), torch.zeros(1, 4), mask, "token_truncate", None, 3.0).tolist()
        [[0.5, 2.0, 3.0, 1.0]]
        >>> engine_ratio(rho.log(), torch.zeros(1, 4), mask, "sequence_mask", None, 3.0).tolist()
        [[0.0]]
    """
    log_ratio = (logprob_old - logprob_rollout) * mask
    if mode in ("sequence_truncate", "sequence_mask"):
        log_ratio = log_ratio.sum(dim=-1, keepdim=True)
    ratio = log_ratio.exp()
    inside = ratio.clamp(-math.inf if low is None else low, math.inf if high is None else high)
    if mode in ("token_truncate", "sequence_truncate"):
        return inside
    return torch.where(inside == ratio, ratio, torch.zeros_like(ratio))
