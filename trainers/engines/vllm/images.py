"""Prompts with images for vLLM servers: token ids with one placeholder an image, and the images' bytes.

The server expands each placeholder to the image's vectors and returns the ids that it read. They are compared with ours
for every completion, since another image processor would give other numbers of vectors.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from agentgym.media import MEDIA
from agentgym.trainers.engines.vllm.wire import ServerFaultError
from agentgym.types import Json, JsonObject

WITH_IMAGES: Final = "/inference/v1/generate"
"""Route that takes token ids together with images; servers have it by ``--enable-scale-out``."""
PlacedImage = tuple[int, str, int]
"""Place of an image in a prompt, its digest and the number of its vectors."""


class PromptImages(Protocol):
    """The part of a model's vision that an engine needs."""

    pad_id: int
    """Token id of the placeholder of an image."""
    suppressed: tuple[int, ...]
    """Token ids that may not be sampled."""

    def images_in(self, token_ids: Sequence[int]) -> list[PlacedImage]:
        """Return the images of a prompt, in order."""
        ...


def with_images(body: JsonObject, prompt_ids: Sequence[int], images: Sequence[PlacedImage], pad_id: int) -> JsonObject:
    """Return the request body of one completion after images, from that of :func:`completion_body`.

    An image's name at the server is a digest of its bytes and of the weights' version. vLLM keeps what its tower made
    of an image under that name, also when new weights have come.

    Args:
        prompt_ids: the prompt, in which an image fills a place for each of its vectors.
        images: the images of the prompt.
        pad_id: token id of the placeholder.
    """
    own = {"model", "prompt", "cache_salt", "request_id", "return_token_ids"}
    ids: list[int] = []
    parts: list[Json] = []
    at = 0
    for place, digest, count in images:
        ids += [*prompt_ids[at:place], pad_id]
        at = place + count
        png = MEDIA.get(digest)
        name = hashlib.sha256(f"{body['cache_salt']} ".encode() + png).hexdigest()
        url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        parts.append({"type": "image_url", "url": url, "uuid": name})
    return {
        "model": body["model"],
        "token_ids": [*ids, *prompt_ids[at:]],
        "content_parts": parts,
        "sampling_params": {name: value for name, value in body.items() if name not in own},
        "cache_salt": body["cache_salt"],
        "request_id": body["request_id"],
        "return_token_ids": True,
    }


def as_completion(answer: Json) -> JsonObject:
    """Return an answer of :data:`WITH_IMAGES` in the form of those of ``/v1/completions``.

    Raises:
        ServerFaultError: it has not the form of such an answer, or lacks the ids that the server read.

    Example:
        >>> entry = {"token_id": 5, "logprob": -0.1}
        >>> choice = {"token_ids": [5], "finish_reason": "stop", "logprobs": {"content": [entry]}}
        >>> as_completion({"prompt_token_ids": [1], "choices": [choice]})["choices"][0]["logprobs"]
        {'token_logprobs': [-0.1]}
    """
    given = answer if isinstance(answer, Mapping) else {}
    choices, read = given.get("choices"), given.get("prompt_token_ids")
    if not isinstance(choices, list) or not isinstance(read, list):
        raise ServerFaultError("its answer to a prompt with images lacks 'choices' or 'prompt_token_ids'")
    made: list[Json] = []
    for choice in choices:
        scored = choice.get("logprobs") if isinstance(choice, Mapping) else None
        content = scored.get("content") if isinstance(scored, Mapping) else None
        if not isinstance(choice, Mapping) or not isinstance(content, list):
            raise ServerFaultError("its answer to a prompt with images has no log-probabilities")
        logprobs = [entry.get("logprob") if isinstance(entry, Mapping) else None for entry in content]
        made.append({**choice, "prompt_token_ids": read, "logprobs": {"token_logprobs": logprobs}})
    return {"choices": made}
