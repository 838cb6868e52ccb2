"""Training rows as two padded blocks, prompts on the left and responses on the right: the layout of TRL and of verl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.errors import UsageError
from agentgym.types import TrainingSample


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
        >>> row = TrainingSample(token_ids=(7, 8, 9, 2), loss_mask=(0, 0, 1, 1), advantages=(0.0, 0.0, 0.5, 0.5),
        ...     rollout_logprobs=(0.0, 0.0, -1.0, -2.0), policy_versions=(-1, -1, 3, 3), turns=(-1, -1, 0, 0),
        ...     trajectory=0, ordinal=0)
        >>> rows = pad_rows([row], pad_id=0, num_prompt_tokens=3, num_response_tokens=3)
        >>> rows.prompts.tolist(), rows.responses.tolist(), rows.loss_mask.tolist()
        ([[0, 7, 8]], [[9, 2, 0]], [[1, 1, 0]])
    """
    starts = [prompt_length(sample) for sample in samples]
    prompts = [sample.token_ids[:start] for sample, start in zip(samples, starts, strict=True)]
    tails = list(zip(samples, starts, strict=True))
    num_prompt = _width([len(prompt) for prompt in prompts], num_prompt_tokens, "prompt")
    num_response = _width([len(sample.token_ids) - start for sample, start in tails], num_response_tokens, "response")
    responses = [sample.token_ids[start:] for sample, start in tails]
    return PaddedRows(
        prompts=_left(prompts, num_prompt, pad_id),
        prompt_mask=_left([[1] * len(prompt) for prompt in prompts], num_prompt, 0),
        responses=_right(responses, num_response, pad_id),
        response_attention=_right([[1] * len(response) for response in responses], num_response, 0),
        loss_mask=_right([sample.loss_mask[start:] for sample, start in tails], num_response, 0),
        advantages=_right([sample.advantages[start:] for sample, start in tails], num_response, 0.0),
        rollout_logprobs=_right([sample.rollout_logprobs[start:] for sample, start in tails], num_response, 0.0),
    )


def prompt_length(sample: TrainingSample) -> int:
    """Tokens before the first sampled one, whether that one trains or not.

    Raises:
        UsageError: the row has none.
    """
    for at, version in enumerate(sample.policy_versions):
        if version >= 0:
            return at
    raise UsageError("a row has no sampled token; episodes of scripted policies have no tokens to train on")


def _width(lengths: Sequence[int], asked: int, block: str) -> int:
    longest = max(lengths, default=0)
    if asked and longest > asked:
        raise UsageError(
            f"a {block} has {longest} tokens, more than the {asked} of num_{block}_tokens; raise it, or limit the "
            "context of the rollouts"
        )
    return asked or longest


def _left(rows: Sequence[Sequence[Any]], width: int, pad: int) -> Tensor:
    padded = [[pad] * (width - len(row)) + list(row) for row in rows]
    return torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width)


def _right(rows: Sequence[Sequence[Any]], width: int, pad: float) -> Tensor:
    dtype = torch.float32 if isinstance(pad, float) else torch.int64
    padded = [list(row) + [pad] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=dtype).reshape(len(rows), width)
