"""A trained policy, ready to decide: the embedded engine and the renderer of one model folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentgym.engine import Engine
from agentgym.render.chat import ChatRenderer
from agentgym.trainers.engines.torch_engine import TorchEngine
from agentgym.trainers.model import load_model


@dataclass(frozen=True, slots=True)
class Policy:
    """What :class:`~agentgym.rollout.actor.ModelActor` needs."""

    engine: Engine
    renderer: ChatRenderer


def open_policy(model_dir: Path, *, num_slots: int, max_context_tokens: int = 0, codec: str = "auto") -> Policy:
    """Load a model folder into the embedded engine.

    Args:
        num_slots: episodes whose keys and values are kept at a time.
        max_context_tokens: longest conversation; 0 takes the model's own limit, at most 4096.

    Raises:
        UsageError, CorruptDataError: the folder is missing, broken, or has no chat template.
    """
    model, tokenizer = load_model(model_dir)
    own_limit = int(getattr(model.config, "max_position_embeddings", 4096))
    context = max_context_tokens or min(own_limit, 4096)
    renderer = ChatRenderer(tokenizer, codec)
    return Policy(TorchEngine(model, num_slots=num_slots, max_context_tokens=context), renderer)
