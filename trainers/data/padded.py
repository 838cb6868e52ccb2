"""Training rows as two padded blocks, prompts on the left and responses on the right: the layout of TRL and of verl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentgym.errors import UsageError
from agentgym.trainers.data.samples import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRows:
    """``B`` rows of a prompt block of ``P`` tokens and a response block of ``R`` tokens; integers are int64.

    A row's prompt is what came before its first sampled token. Its response is everything after: what the policy
    sampled and what the environment said in between.
    """

    prompts: Tensor
    """``[B, P]`` token ids, padded on the left."""
    prompt_mask: Tensor
    """``[B, P]`` 1 on tokens, 0 on padding."""
    responses: Tensor
    """``[B, R]`` token ids, padded on the right."""
    response_attention: Tensor
    """``[B, R]`` 1 on tokens, 0 on padding."""
    loss_mask: Tensor
    """``[B, R]`` 1 exactly on the sampled tokens that train."""
    advantages: Tensor
    """``[B, R]`` float32, 0 outside sampled tokens."""
    rollout_logprobs: Tensor
    """``[B, R]`` float32, 0 outside sampled tokens."""


def pad_rows(
    samples: Sequence[TrainingSample], pad_id: int, *, num_prompt_tokens: int = 0, num_response_tokens: int = 0
) -> PaddedRows:
    """Lay rows out in two blocks.

    Args:
        samples: rows that hold a sampled token each.
        num_prompt_tokens: width of the prompt block; 0 takes the longest prompt.
        num_response_tokens: width of the response block; 0 takes the longest response.

    Raises:
        UsageError: a row is longer than a block (cutting it would cut an episode), or has no sampled token.

    Example:
        >>> row = TrainingSample(token_ids=(7, 8, 9, 2), loss_mask=np.array([False, False, True, True]),
        ...     advantages=np.array([0.0, 0.0, 0.5, 0.5]), rollout_logprobs=np.array([0.0, 0.0, -1.0, -2.0]),
        ...     policy_versions=np.array([-1, -1, 3, 3]), turns=np.array([-1, -1, 0, 0]), trajectory=0, ordinal=0)
        >>> rows = pad_rows([row], pad_id=0, num_prompt_tokens=3, num_response_tokens=3)
        >>> rows.prompts.tolist(), rows.responses.tolist(), rows.loss_mask.tolist()
        ([[0, 7, 8]], [[9, 2, 0]], [[1, 1, 0]])
    """
    pairs = [(sample, prompt_length(sample)) for sample in samples]
    lengths = [len(sample.token_ids) - start for sample, start in pairs]
    num_prompt = _width([start for _, start in pairs], num_prompt_tokens, "prompt")
    num_response = _width(lengths, num_response_tokens, "response")

    def responses(name: str, fill: float) -> Tensor:
        return _padded([getattr(sample, name)[start:] for sample, start in pairs], num_response, fill)

    return PaddedRows(
        prompts=_padded([sample.token_ids[:start] for sample, start in pairs], num_prompt, pad_id, on_left=True),
        prompt_mask=_padded([[1] * start for _, start in pairs], num_prompt, 0, on_left=True),
        responses=responses("token_ids", pad_id),
        response_attention=_padded([[1] * length for length in lengths], num_response, 0),
        loss_mask=responses("loss_mask", 0),
        advantages=responses("advantages", 0.0),
        rollout_logprobs=responses("rollout_logprobs", 0.0),
    )


def prompt_length(sample: TrainingSample) -> int:
    """Tokens before the first sampled one, whether that one trains or not.

    Raises:
        UsageError: the row has none.
    """
    sampled = np.flatnonzero(sample.policy_versions >= 0)
    if not len(sampled):
        raise UsageError("a row has no sampled token; episodes of scripted policies have no tokens to train on")
    return int(sampled[0])


def _width(lengths: Sequence[int], asked: int, block: str) -> int:
    longest = max(lengths, default=0)
    if asked and longest > asked:
        raise UsageError(
            f"a {block} has {longest} tokens, more than the {asked} of num_{block}_tokens; raise it, or limit the "
            "context of the rollouts"
        )
    return asked or longest


def _padded(rows: Sequence[Sequence[float]], width: int, fill: float, *, on_left: bool = False) -> Tensor:
    """Return ``[B, width]``, float32 if the filling is a float."""
    block = np.full((len(rows), width), fill)
    for row, values in zip(block, rows, strict=True):
        row[width - len(values) if on_left else 0 :][: len(values)] = values
    return torch.from_numpy(block).float() if isinstance(fill, float) else torch.from_numpy(block)
