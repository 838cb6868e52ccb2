"""Sessions of an engine whose completions are checked against a plain transformers forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
import torch

from agentgym.engine import SamplingParams
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.torch.sampling import RowSettings, distribution
from agentgym.types import Completion
from testkit.tiny_models import VOCAB_SIZE

T = TypeVar("T")
TOLERANCE = 1e-4


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, timeout=60))


def prompt(seed: int, num_tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(VOCAB_SIZE, (num_tokens,), generator=generator).tolist()
    return ids


def full_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits ``[T, V]`` of a plain transformers forward pass without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits[0].float()
    return logits


def full_logprobs(model: Any, ids: Sequence[int], completion: Completion, sampling: SamplingParams) -> list[float]:
    """Return the expected log-probabilities of a completion, from a plain forward pass over prompt and completion."""
    sampled = list(completion.token_ids)
    logits = full_logits(model, [*ids, *sampled])[len(ids) - 1 : -1]
    settings = RowSettings.build([sampling] * len(sampled), logits.shape[1], logits.device)
    logprobs: list[float] = distribution(logits, settings).log()[range(len(sampled)), sampled].tolist()
    return logprobs


async def play(
    engine: TorchEngine, model: Any, number: int, *, num_turns: int = 3, **sampling: Any
) -> list[Completion]:
    """Play one session with turns of different lengths, and check each against a plain forward pass."""
    ids, completions = prompt(number, 3 + 5 * number), []
    for turn in range(num_turns):
        params = SamplingParams(max_new_tokens=4 + number, seed=10 * number + turn, stop_token_ids=(5, 6), **sampling)
        completion = await engine.generate(ids, params, session_id=f"session-{number}")
        assert completion.logprobs == pytest.approx(full_logprobs(model, ids, completion, params), abs=TOLERANCE)
        completions.append(completion)
        ids = [*ids, *completion.token_ids, *prompt(100 * number + turn, 1 + (number + turn) % 4)]
    await engine.release(f"session-{number}")
    return completions


async def play_all(engine: TorchEngine, model: Any, num_sessions: int = 5, **sampling: Any) -> list[list[Completion]]:
    return await asyncio.gather(*(play(engine, model, number, **sampling) for number in range(num_sessions)))


def generate(engine: TorchEngine, ids: Sequence[int], *, session_id: str = "", **sampling: Any) -> Completion:
    return run(engine.generate(ids, SamplingParams(**sampling), session_id=session_id))
