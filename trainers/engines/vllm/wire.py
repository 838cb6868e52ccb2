"""Requests to vLLM servers, and checks of their answers before anything is trained on them.

Requests and answers are those of ``/v1/completions`` with token ids. An invalid answer is the server's failure
(:class:`ServerFaultError`): the server is excluded until it has passed its checks again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from agentgym.canonical import is_number, is_whole
from agentgym.engine import MAX_LOGPROB, SamplingParams
from agentgym.errors import EngineError
from agentgym.types import Completion, FinishReason, Json, JsonObject

MIN_TEMPERATURE = 0.01
"""Smallest temperature that vLLM supports. It silently raises lower ones, which changes the distribution."""

_NEVER = -100.0
"""Smallest bias of a logit that vLLM takes: a probability below 1e-40 beside logits of ordinary size."""


class ServerFaultError(EngineError):
    """A server did not answer, or its answer is invalid; another server may succeed."""


def completion_body(
    model: str,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    max_new_tokens: int,
    cache_salt: str,
    name: str,
    banned: Sequence[int] = (),
) -> JsonObject:
    """Return the request body of one completion.

    It sets every field for which a server could have its own default. The model's end-of-sequence token does not end
    the completion (``ignore_eos``); the caller's stop tokens do.

    Args:
        banned: token ids whose probability is 0, such as placeholders of images.
    """
    return {
        "model": model,
        "prompt": list(prompt_ids),
        "max_tokens": max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "cache_salt": cache_salt,
        "request_id": name,
        **({"logit_bias": {str(token): _NEVER for token in banned}} if banned else {}),
    }


def read_completion(
    answer: Json,
    *,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    max_new_tokens: int,
    vocab_size: int,
    version: int,
    changes: Sequence[tuple[int, int]] = (),
) -> Completion:
    """Parse the completion in an answer to :func:`completion_body`.

    Args:
        version: version of the weights at the beginning of the request.
        changes: the first token of each later version, and that version.

    Raises:
        ServerFaultError: the answer is invalid: ids out of range, too many or too few tokens, log-probabilities that
            are not finite, another prompt, or an unexpected end.

    Example:
        >>> choice = {"token_ids": [5, 2], "logprobs": {"token_logprobs": [-0.1, -0.7]}, "finish_reason": "stop"}
        >>> read_completion(
        ...     {"choices": [choice]}, prompt_ids=[1], sampling=SamplingParams(stop_token_ids=(2,)),
        ...     max_new_tokens=8, vocab_size=10, version=3,
        ... ).policy_versions
        (3, 3)
    """
    choice = _choice(answer, prompt_ids)
    tokens = _list(choice, "token_ids")
    listed = _list(_mapping(choice, "logprobs"), "token_logprobs")
    token_ids = [token for token in tokens if is_whole(token) and 0 <= token < vocab_size]
    logprobs = [value for value in listed if _is_logprob(value)]
    if not 1 <= len(tokens) <= max_new_tokens:
        raise ServerFaultError(f"it gave {len(tokens)} tokens, asked for 1 to {max_new_tokens}")
    if len(token_ids) != len(tokens):
        raise ServerFaultError(f"it gave a token id outside the vocabulary of 0 to {vocab_size - 1}")
    if not len(logprobs) == len(listed) == len(token_ids):
        raise ServerFaultError("its log-probabilities are not one finite number up to 0 for each token")
    finish = choice.get("finish_reason")
    stopped = token_ids[-1] in sampling.stop_token_ids
    if any(token in sampling.stop_token_ids for token in token_ids[:-1]):
        raise ServerFaultError("it went on after a stop token")
    if finish == "stop" and stopped:
        reason = FinishReason.STOP
    elif finish == "length" and len(token_ids) == max_new_tokens and not stopped:
        reason = FinishReason.LENGTH
    else:
        raise ServerFaultError(f"it ended after {len(token_ids)} tokens with {finish!r}, which was not asked for")
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=tuple(float(value) for value in logprobs),
        policy_versions=_versions(len(token_ids), version, changes),
        finish_reason=reason,
    )


def _versions(num_tokens: int, version: int, changes: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the version of each token.

    Example:
        >>> _versions(5, 3, [(2, 4), (4, 5), (7, 6)])
        (3, 3, 4, 4, 5)
    """
    versions = [version] * num_tokens
    for start, later in changes:
        versions[start:] = [later] * max(0, num_tokens - start)
    return tuple(versions)


def score_body(model: str, token_ids: Sequence[int], cache_salt: str) -> JsonObject:
    """Return the request body for log-probabilities (temperature 1) of tokens; a server samples at least one more."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
        "cache_salt": cache_salt,
    }


def read_scores(answer: Json, token_ids: Sequence[int], num_prompt: int) -> tuple[float, ...]:
    """Parse the log-probabilities of ``token_ids[num_prompt:]`` in an answer to :func:`score_body`.

    Raises:
        ServerFaultError: some are missing or not finite.

    Example:
        >>> scores = [None, {"7": {"logprob": -0.5}}, {"8": {"logprob": -1.5}}]
        >>> read_scores({"choices": [{"prompt_logprobs": scores}]}, [1, 7, 8], 2)
        (-1.5,)
    """
    entries = _list(_choice(answer, token_ids), "prompt_logprobs")
    if len(entries) != len(token_ids):
        raise ServerFaultError(f"it scored {len(entries)} tokens of {len(token_ids)}")
    scores: list[float] = []
    for token, entry in zip(token_ids[num_prompt:], entries[num_prompt:], strict=True):
        value = _mapping(entry if isinstance(entry, Mapping) else {}, str(token)).get("logprob")
        if not _is_logprob(value):
            raise ServerFaultError("its log-probabilities are not one finite number up to 0 for each token")
        scores.append(float(value))
    return tuple(scores)


def _choice(answer: Json, prompt_ids: Sequence[int]) -> JsonObject:
    choices = _list(answer if isinstance(answer, Mapping) else {}, "choices")
    choice = choices[0] if len(choices) == 1 else None
    if not isinstance(choice, Mapping):
        raise ServerFaultError(f"it gave {len(choices)} completions, asked for 1")
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and (echoed != list(prompt_ids) or not all(map(is_whole, echoed))):
        raise ServerFaultError("it read another prompt than it was sent")
    return choice


def _list(parent: JsonObject, key: str) -> list[Json]:
    value = parent.get(key)
    if not isinstance(value, list):
        raise ServerFaultError(f"its answer has no list {key!r}")
    return value


def _mapping(parent: JsonObject, key: str) -> JsonObject:
    value = parent.get(key)
    if not isinstance(value, Mapping):
        raise ServerFaultError(f"its answer has no {key!r}")
    return value


def _is_logprob(value: Json) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value) and value <= MAX_LOGPROB
