"""A policy that runs on vLLM servers: token ids in and out as in training, but without a trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from agentgym.errors import UsageError, unknown_name
from agentgym.render.chat import ChatRenderer
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.facts import facts_of, witness
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.engines.vllm.weights import FolderSync
from agentgym.trainers.models.model import end_ids, load_model, save_weights
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.models.vocabulary import check_ids
from agentgym.trainers.placement.policy import Policy, context_limit, load_chat, load_context

EXPECTED = "vllm:http://HOST:PORT?model=SOURCE, several addresses with commas between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The servers of a policy, and their model."""

    urls: tuple[str, ...]
    model: str
    """A source that :func:`~agentgym.trainers.models.sources.local_model` reads."""
    weight_dir: str = ""
    """Folder for the weights, under a path that the servers see too; empty: a temporary folder."""


def parse_served(text: str) -> Served:
    """Parse the servers of a command's ``vllm:`` policy.

    Raises:
        UsageError: the text does not have the form ``HOST[,HOST]?model=SOURCE``.

    Example:
        >>> parse_served("http://127.0.0.1:8000,http://127.0.0.1:8001?model=smollm2").urls
        ('http://127.0.0.1:8000', 'http://127.0.0.1:8001')
    """
    urls, _, query = text.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := next((name for name in given if name not in ("model", "weight_dir")), None):
        raise unknown_name("option of servers", unknown, ["model", "weight_dir"])
    if not given.get("model"):
        raise UsageError(f"expected {EXPECTED}; got vllm:{text}, which names no model")
    made = EngineConfig(
        kind="vllm", urls=tuple(url.rstrip("/") for url in urls.split(","))
    )  # rejects invalid addresses
    return Served(urls=made.urls, model=given["model"], weight_dir=given.get("weight_dir", ""))


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
        UsageError, CorruptDataError: the model is missing, cannot be read, or has no chat template.
        ConfigError: a server serves another model, or no server became ready in time.
        EngineError: no server accepted the weights.
    """
    folder = Path(local_model(served.model))
    model, tokenizer = load_model(str(folder), say=say)
    renderer = ChatRenderer(tokenizer, load_chat(folder).changed(chat or {}), end_ids(folder))
    check_ids(model, tokenizer, renderer)
    facts = facts_of(model.config)
    root = Path(served.weight_dir or tempfile.mkdtemp(prefix="agentgym-weights-"))
    sync = FolderSync(root, partial(save_weights, model), witness(model), facts.vocab_size)
    config = EngineConfig(kind="vllm", urls=served.urls)
    engine = VllmEngine(config, sync, facts, max_context_tokens=max_context_tokens or context_limit(model.config))
    try:
        await engine.connect(say)
        await engine.update_weights(0)
    except BaseException:
        await engine.close()
        raise
    return Policy(engine, renderer, load_context(folder).changed(context or {}))
