"""Completions with separate token budgets for thinking and answer, and completions that begin with given tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentgym.engine import Engine, SamplingParams, checked_completion
from agentgym.rollout.branch import ForcedTokens
from agentgym.rollout.seeds import derive_seed
from agentgym.types import EMPTY_COMPLETION, Completion, FinishReason

if TYPE_CHECKING:
    from agentgym.render.chat import ChatRenderer


async def generate_in_budget(
    engine: Engine,
    renderer: ChatRenderer,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    session_id: str,
    begun: Completion = EMPTY_COMPLETION,
) -> Completion:
    """Sample a completion of at most ``max_thinking_tokens`` of thinking and ``max_new_tokens`` after it.

    A completion that is still thinking when the budget is spent ends there, as at the token limit. The turn then has no
    call, and the policy learns from that. Without a thinking budget, thinking and answer share ``max_new_tokens``.

    Args:
        begun: tokens that the completion begins with. They count towards the limits, and the result includes them.
    """
    budget = sampling.max_thinking_tokens
    plain = replace(sampling, max_thinking_tokens=0)
    thought = begun
    if (limit := budget or sampling.max_new_tokens) > len(begun.token_ids):
        rest = await engine.generate(
            (*prompt_ids, *begun.token_ids),
            replace(plain, max_new_tokens=limit - len(begun.token_ids)),
            session_id=session_id,
        )
        thought = joined(begun, checked_completion(rest))
    num_tokens = len(thought.token_ids)
    is_spent = thought.finish_reason is FinishReason.LENGTH and num_tokens >= budget
    if not budget or not (is_spent or num_tokens > sampling.max_new_tokens):
        return thought
    num_thinking = renderer.num_thinking_tokens(thought.token_ids, is_open=renderer.opens_after(prompt_ids))
    num_left = sampling.max_new_tokens - (num_tokens - num_thinking)
    if num_left < 0 and renderer.thinks_first:  # the engine did not know where the thinking would end
        return _cut(thought, num_tokens + num_left)
    if not is_spent or num_thinking == num_tokens or num_left < 1:
        return thought
    rest = await engine.generate(
        (*prompt_ids, *thought.token_ids),
        replace(plain, max_new_tokens=num_left, seed=derive_seed(sampling.seed, "answer")),
        session_id=session_id,
    )
    return joined(thought, checked_completion(rest))


def _cut(completion: Completion, num_tokens: int) -> Completion:
    """Return the first tokens of a completion, as if it had met the token limit there."""
    return replace(
        completion,
        token_ids=completion.token_ids[:num_tokens],
        logprobs=completion.logprobs[:num_tokens],
        policy_versions=completion.policy_versions[:num_tokens],
        finish_reason=FinishReason.LENGTH,
    )


def joined(first: Completion, rest: Completion) -> Completion:
    """Return the tokens of two completions as one; ``rest`` was sampled after ``first``."""
    if not first.token_ids:
        return rest
    return Completion(
        token_ids=(*first.token_ids, *rest.token_ids),
        logprobs=(*first.logprobs, *rest.logprobs),
        policy_versions=(*first.policy_versions, *rest.policy_versions),
        finish_reason=rest.finish_reason,
        queued_s=None if first.queued_s is None or rest.queued_s is None else first.queued_s + rest.queued_s,
    )


async def moved_completion(
    engine: Engine, prompt_ids: Sequence[int], given: ForcedTokens, sampling: SamplingParams
) -> Completion:
    """Return a turn that consists of given tokens, with the log-probabilities of the moved ones in this context.

    Raises:
        EngineError: the engine could not compute the log-probabilities.
        ValueError: the temperature is not 1. The engine scores at temperature 1, and the ratio of the loss would
            compare two distributions.
    """
    assert given.moved is not None
    if sampling.temperature != 1:
        raise ValueError(f"copied tokens are scored at temperature 1, got sampling.temperature={sampling.temperature}")
    version = engine.policy_version
    ids = given.moved.token_ids
    scores = await engine.score((*prompt_ids, *given.known.token_ids), ids)
    return joined(given.known, replace(given.moved, logprobs=tuple(scores), policy_versions=(version,) * len(ids)))
