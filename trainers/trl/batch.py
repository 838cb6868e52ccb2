"""Training rows as the dict of tensors that TRL's GRPO loss reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from agentgym.trainers.data.padded import pad_rows
from agentgym.trainers.data.samples import TrainingSample

CorrectionMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def to_trl(samples: Sequence[TrainingSample], pad_id: int, *, multiple_of: int = 1) -> dict[str, Tensor]:
    """Rows as TRL's ``inputs``, filled up with rows that train nothing.

    TRL cuts a batch into ``multiple_of`` pieces of one size and loses what is left over. A filling row has two tokens,
    both in no loss: a row that attends to nothing would give probabilities that are not numbers.

    Returns:
        of shape ``[B, P]`` ``prompt_ids`` and ``prompt_mask``; of shape ``[B, R]`` ``completion_ids``,
        ``completion_mask`` (1 on tokens), ``tool_mask`` (1 on sampled tokens that train), ``advantages`` and
        ``sampling_per_token_logps``; and ``num_items_in_batch``, the number of tokens that train.

    Example:
        >>> row = TrainingSample(token_ids=(7, 8, 9, 2), loss_mask=np.array([False, False, True, True]),
        ...     advantages=np.array([0.0, 0.0, 0.5, 0.5]), rollout_logprobs=np.array([0.0, 0.0, -1.0, -2.0]),
        ...     policy_versions=np.array([-1, -1, 3, 3]), turns=np.array([-1, -1, 0, 0]), trajectory=0, ordinal=0)
        >>> batch = to_trl([row], pad_id=0, multiple_of=2)
        >>> batch["completion_ids"].tolist(), batch["tool_mask"].tolist(), batch["advantages"].tolist()
        ([[9, 2], [0, 0]], [[1, 1], [0, 0]], [[0.5, 0.5], [0.0, 0.0]])
        >>> batch["completion_mask"].tolist(), batch["num_items_in_batch"].item()
        ([[1, 1], [1, 0]], 2)
    """
    num_rows = max(1, math.ceil(len(samples) / multiple_of)) * multiple_of
    rows = pad_rows([*samples, *[_filling(pad_id)] * (num_rows - len(samples))], pad_id)
    return {
        "prompt_ids": rows.prompts,
        "prompt_mask": rows.prompt_mask,
        "completion_ids": rows.responses,
        "completion_mask": rows.response_attention,
        "tool_mask": rows.loss_mask,
        "advantages": rows.advantages,
        "sampling_per_token_logps": rows.rollout_logprobs,
        "num_items_in_batch": rows.loss_mask.sum(),
    }


def _filling(pad_id: int) -> TrainingSample:
    return TrainingSample(
        token_ids=(pad_id, pad_id),
        loss_mask=np.zeros(2, np.bool_),
        advantages=np.zeros(2),
        rollout_logprobs=np.zeros(2),
        policy_versions=np.array([-1, 0]),
        turns=np.array([-1, -1]),
        trajectory=-1,
        ordinal=-1,
    )


def engine_ratio(
    logprob_old: Tensor,
    logprob_rollout: Tensor,
    mask: Tensor,
    mode: CorrectionMode,
    low: float | None,
    high: float | None,
) -> Tensor:
    """Weight of each token for the gap between the trainer's and the engine's probabilities, as TRL defines it.

    ``rho = pi_old / pi_engine`` of the token, or their product over the row's trained tokens (``sequence_*``); cut to
    ``[low, high]`` (``*_truncate``), or 0 outside it (``*_mask``). Shape ``[B, R]``, or ``[B, 1]`` for sequences.

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
