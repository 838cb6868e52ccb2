"""Completions with separate token budgets for thinking and for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentgym.engine import Engine, SamplingParams
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Completion, FinishReason

if TYPE_CHECKING:
    from agentgym.render.chat import ChatRenderer


async def generate_in_budget(
    engine: Engine, renderer: ChatRenderer, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
) -> Completion:
    """Sample a completion of at most ``max_thinking_tokens`` of thinking and ``max_new_tokens`` after it.

    A completion that is still thinking when the budget is spent ends there, as at the token limit. The turn then has no
    call, and the policy learns from that. Without a thinking budget, thinking and answer share ``max_new_tokens``.
    """
    budget = sampling.max_thinking_tokens
    plain = replace(sampling, max_thinking_tokens=0)
    if not budget:
        return await engine.generate(prompt_ids, plain, session_id=session_id)
    thought = await engine.generate(prompt_ids, replace(plain, max_new_tokens=budget), session_id=session_id)
    if thought.finish_reason is not FinishReason.LENGTH or len(thought.token_ids) < budget:
        return thought
    num_thinking = renderer.num_thinking_tokens(thought.token_ids, is_open=renderer.opens_after(prompt_ids))
    num_left = sampling.max_new_tokens - (budget - num_thinking)
    if num_thinking == budget or num_left < 1:
        return thought
    rest = await engine.generate(
        (*prompt_ids, *thought.token_ids),
        replace(plain, max_new_tokens=num_left, seed=derive_seed(sampling.seed, "answer")),
        session_id=session_id,
    )
    return Completion(
        token_ids=(*thought.token_ids, *rest.token_ids),
        logprobs=(*thought.logprobs, *rest.logprobs),
        policy_versions=(*thought.policy_versions, *rest.policy_versions),
        finish_reason=rest.finish_reason,
        queued_s=None if thought.queued_s is None or rest.queued_s is None else thought.queued_s + rest.queued_s,
    )
