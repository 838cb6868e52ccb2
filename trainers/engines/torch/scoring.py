"""Teacher-forced log-probabilities with the engine's forward pass and cache."""

from __future__ import annotations

import math

import torch

from agentgym.errors import EngineError
from agentgym.trainers.engines.torch.forward import Chunk
from agentgym.trainers.engines.torch.requests import after_image
from agentgym.trainers.engines.torch.runner import Runner
from agentgym.trainers.engines.torch.slots import Slot

_MAX_LOGIT_ROWS = 256
"""Largest number of positions whose logits exist at once, which limits memory with a large vocabulary."""


def score_continuation(
    runner: Runner, slot: Slot, token_ids: list[int], num_prompt: int, max_chunk_tokens: int
) -> list[float]:
    """Return the log-probability (temperature 1) of each of ``token_ids[num_prompt:]``, given the tokens before it.

    The tokens stay in ``slot``, so that the next call computes only tokens that differ. Call it in
    ``torch.inference_mode()``.

    Raises:
        EngineError: the logits are not finite.
    """
    logprobs: list[float] = []
    slot.adopt(token_ids, num_prompt - 1)
    while slot.num_cached < len(token_ids) - 1:
        start = slot.num_cached
        is_prompt = start < num_prompt - 1  # its last token is the first that predicts one of the continuation's
        room = min(num_prompt - 1, start + max_chunk_tokens) if is_prompt else start + _MAX_LOGIT_ROWS
        stop = after_image(token_ids, min(len(token_ids) - 1, room))
        chunk = Chunk(slot.index, start, token_ids[start:stop])
        if is_prompt:
            runner.logits([chunk], [False])
        else:
            targets = torch.tensor(token_ids[start + 1 : stop + 1], device=runner.device)
            logits = runner.token_logits(chunk).float()
            logprobs += torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0].tolist()
        slot.num_cached = stop
    if not all(map(math.isfinite, logprobs)):
        raise EngineError("the model's logits are not finite")
    return logprobs
