"""A policy that runs on vLLM servers: token ids in and out as in training, but without a trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from agentgym.errors import UsageError
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.facts import facts_of, witness
from agentgym.trainers.engines.vllm.address import EXPECTED, ON_RAY, Served
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.engines.vllm.weights import FolderSync
from agentgym.trainers.models.model import load_model, save_weights
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.models.vocabulary import check_ids, renderer_for
from agentgym.trainers.placement.policy import Policy, context_limit, load_chat, load_context


async def open_served(
    served: Served,
    *,
    max_context_tokens: int = 0,
    chat: Mapping[str, object] | None = None,
    context: Mapping[str, object] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Policy:
    """Load the model's weights into the servers, and return their policy.

    As in training, the servers prove by checksum that they have these weights. They may have been started with any
    model of the same shape.

    Args:
        max_context_tokens: largest length of a conversation; 0 means the model's own limit, at most 4096.
        chat, context: settings that override those of training.

    Raises:
        UsageError, CorruptDataError: no server is named, or the model is missing, cannot be read, or has no template.
        ConfigError: a server serves another model, or no server became ready in time.
        EngineError: no server accepted the weights.
    """
    if not served.urls:
        raise UsageError(
            f"vllm:{ON_RAY}: Ray starts servers for the roles of a training run alone; expected {EXPECTED}"
        )
    folder = Path(local_model(served.model))
    model, tokenizer = load_model(str(folder), say=say, route="vllm")
    renderer = renderer_for(folder, tokenizer, load_chat(folder).changed(chat or {}), route="vllm")
    check_ids(model, tokenizer, renderer)
    facts = facts_of(model.config)
    root = Path(served.weight_dir or tempfile.mkdtemp(prefix="agentgym-weights-"))
    sync = FolderSync(root, partial(save_weights, model), witness(model), facts.vocab_size)
    config = EngineConfig(kind="vllm", urls=served.urls)
    longest = max_context_tokens or context_limit(model.config)
    engine = VllmEngine(config, sync, facts, max_context_tokens=longest, vision=vision_of(model))
    try:
        await engine.connect(say)
        await engine.update_weights(0)
    except BaseException:
        await engine.close()
        raise
    return Policy(engine, renderer, load_context(folder).changed(context or {}))
