"""A trained policy, ready to decide: the embedded engine and the renderer of one model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.errors import ConfigError, CorruptDataError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import MakeAgent, ModelAgent
from agentgym.rollout.context import FULL, ContextConfig, check_turns_left
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.model import CONTEXT_FILE, load_model


@dataclass(frozen=True, slots=True)
class Policy:
    """A model that can play."""

    engine: Engine
    renderer: ChatRenderer
    context: ContextConfig = FULL

    def agents(self, sampling: SamplingParams) -> MakeAgent:
        """Agents that sample from the policy.

        Raises:
            ConfigError: the context has no room for a turn.
        """
        self.context.check_room(self.engine.max_context_tokens, sampling.max_new_tokens)

        def make_agent(env: Env, seed: int) -> ModelAgent:
            check_turns_left(self.context, env)
            return ModelAgent(self.engine, self.renderer, sampling, seed, self.context, env.max_turns)

        return make_agent


def open_policy(
    model_dir: Path,
    *,
    num_slots: int,
    max_context_tokens: int = 0,
    codec: str = "auto",
    context: Mapping[str, Any] | None = None,
) -> Policy:
    """Load a model folder into the embedded engine.

    Args:
        num_slots: episodes whose keys and values are kept at a time.
        max_context_tokens: longest conversation; 0 takes the model's own limit, at most 4096.
        context: values in place of those the model was trained with.

    Raises:
        UsageError, CorruptDataError: the folder is missing, broken, or has no chat template.
    """
    model, tokenizer = load_model(model_dir)
    own_limit = int(getattr(model.config, "max_position_embeddings", 4096))
    longest = max_context_tokens or min(own_limit, 4096)
    engine = TorchEngine(model, num_slots=num_slots, max_context_tokens=longest)
    return Policy(engine, ChatRenderer(tokenizer, codec), load_context(model_dir).changed(context or {}))


def load_context(model_dir: Path) -> ContextConfig:
    """The context a model was trained with; the whole history where its folder says nothing.

    Raises:
        CorruptDataError: what the folder says is not a context.
    """
    path = model_dir / CONTEXT_FILE
    if not path.is_file():
        return FULL
    try:
        return FULL.changed(json.loads(path.read_text(encoding="utf-8")))
    except (ConfigError, ValueError, TypeError) as error:
        raise CorruptDataError(f"{path} is not a context ({error})") from error
