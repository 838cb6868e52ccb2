"""Teacher-forced log-probabilities over the engine's forward and cache."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from agentgym.errors import EngineError
from agentgym.trainers.engines.torch.forward import Chunk, KVCache, build_batch, forward
from agentgym.trainers.engines.torch.slots import Slot
from agentgym.trainers.engines.torch.weights import Weights

_MAX_LOGIT_ROWS = 256
"""Positions whose logits exist at once; with a large vocabulary each of them is large."""


def score_continuation(
    weights: Weights, cache: KVCache, slot: Slot, token_ids: list[int], num_prompt: int, max_chunk_tokens: int
) -> list[float]:
    """Log-probability, temperature 1, of each of ``token_ids[num_prompt:]`` after those before it.

    The tokens stay in ``slot``, so that the next call reads only what differs. Call it in
    ``torch.inference_mode()``.

    Raises:
        EngineError: the logits are not finite.
    """
    logprobs: list[float] = []
    slot.adopt(token_ids, num_prompt - 1)
    device = weights.norm.device
    while slot.num_cached < len(token_ids) - 1:
        start = slot.num_cached
        stop = min(len(token_ids) - 1, start + max_chunk_tokens)
        cache.reserve(slot.index + 1, stop)
        hidden = forward(weights, cache, build_batch([Chunk(slot.index, start, token_ids[start:stop])], device))
        slot.num_cached = stop
        # a hidden state predicts the token after it: the continuation begins at the prompt's last position
        for first in range(max(start, num_prompt - 1), stop, _MAX_LOGIT_ROWS):
            last = min(first + _MAX_LOGIT_ROWS, stop)
            logits = F.linear(hidden[first - start : last - start], weights.head).float()
            targets = torch.tensor(token_ids[first + 1 : last + 1], device=device)
            logprobs += torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0].tolist()
    if not all(map(math.isfinite, logprobs)):
        raise EngineError("the model's logits are not finite")
    return logprobs
