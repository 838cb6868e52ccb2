"""A trained policy for rollouts: the embedded engine and the renderer of a model folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from agentgym.canonical import read_json
from agentgym.endpoint.harness import HarnessConfig
from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.errors import CorruptDataError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.rollout.agent import MakeAgent, ModelAgent
from agentgym.rollout.context import CONTEXT_FILE, FULL, ContextConfig, check_turns_left
from agentgym.rollout.first_prompt import check_tools_fit
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.model import CHAT_FILE, load_model
from agentgym.trainers.models.model_shapes import check_positions
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.models.vocabulary import check_ids, renderer_for
from agentgym.trainers.types import CausalLM


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with an engine and a renderer, from which agents sample."""

    engine: Engine
    renderer: ChatRenderer
    context: ContextConfig = FULL

    def agents(self, sampling: SamplingParams, harness: HarnessConfig = HarnessConfig()) -> MakeAgent:  # noqa: B008
        """Return a factory of agents that sample from the policy, in agentgym's own loop or in a harness.

        Raises:
            ConfigError: a turn does not fit into the context.
        """
        self.context.check_room(self.engine.max_context_tokens, sampling.max_completion_tokens)
        window = self.context.window(self.engine.max_context_tokens)

        if harness.name:
            from agentgym.endpoint.play import HarnessAgents

            return HarnessAgents(self.engine, self.renderer, sampling, harness, self.context)

        def make_agent(env: Env, seed: int) -> ModelAgent:
            check_turns_left(self.context, env)
            check_tools_fit(self.renderer, env, window, sampling.max_completion_tokens)
            return ModelAgent(
                self.engine, self.renderer.for_words(env.takes_words), sampling, seed, self.context, env.max_turns
            )

        return make_agent


class MakeEngine(Protocol):
    """Type of a function that makes an engine over a model."""

    def __call__(self, model: CausalLM, *, max_context_tokens: int) -> Engine:
        """Return an engine whose prompts and completions have at most these tokens."""
        ...


def open_policy(
    source: str | Path,
    *,
    num_slots: int,
    max_context_tokens: int = 0,
    chat: Mapping[str, object] | None = None,
    context: Mapping[str, object] | None = None,
    say: Callable[[str], None] = lambda line: None,
    make_engine: MakeEngine | None = None,
) -> Policy:
    """Load a model into the embedded engine, or into another.

    Args:
        source: a source that :func:`~agentgym.trainers.models.sources.local_model` reads.
        num_slots: number of episodes whose keys and values are cached at the same time.
        max_context_tokens: largest length of a conversation; 0 means the model's own limit, at most 4096.
        chat, context: settings that override those of training.
        say: receives a note if conversations may be longer than the model was made for.
        make_engine: makes another engine.

    Raises:
        UsageError, CorruptDataError: the model is missing, cannot be read, has no chat template, or has positions for
            fewer tokens.
    """
    folder = Path(local_model(source))
    model, tokenizer = load_model(str(folder), say=say)
    longest = max_context_tokens or context_limit(model.config)
    if note := check_positions(model.config.to_dict(), longest):
        say(note)
    renderer = renderer_for(folder, tokenizer, load_chat(folder).changed(chat or {}))
    check_ids(model, tokenizer, renderer)
    if make_engine is None:
        make_engine = partial(TorchEngine, num_slots=num_slots)
    engine = make_engine(model, max_context_tokens=longest)
    return Policy(engine, renderer, load_context(folder).changed(context or {}))


def context_limit(shape: object) -> int:
    """Return the default length limit of conversations: the model's own limit, at most 4096 tokens.

    Args:
        shape: the model's transformers configuration.
    """
    return min(int(getattr(shape, "max_position_embeddings", 4096)), 4096)


def load_context(model_dir: Path) -> ContextConfig:
    """Return the context policy that a model was trained with; by default the full history.

    Raises:
        CorruptDataError: the file in the model's folder is not a context policy.
    """
    return FULL.changed(_saved(model_dir / CONTEXT_FILE, FULL.changed))


def load_chat(model_dir: Path) -> ChatConfig:
    """Return the chat settings that a model was trained with; the defaults if its folder has none.

    Raises:
        CorruptDataError: the file in the model's folder has unknown keys or values.
    """
    return ChatConfig().changed(_saved(model_dir / CHAT_FILE, ChatConfig().changed))


def _saved(path: Path, check: Callable[[Mapping[str, object]], object]) -> Mapping[str, object]:
    if not path.is_file():
        return {}
    try:
        values: Mapping[str, object] = read_json(path.read_text(encoding="utf-8"))
        check(values)
    except (UsageError, ValueError, TypeError) as error:
        raise CorruptDataError(f"{path} cannot be read ({error})") from error
    return values
