"""An engine that answers with one of some texts, for rollouts without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import MakeAgent, ModelAgent
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import Completion, FinishReason, Task
from testkit.tokenizers_for_tests import trained

TASK = Task(id="t", split="train", seed=0)
SUMMARISED = ContextConfig(policy="summarise", summary_tokens=24, max_summaries=20)


class DrawingEngine:
    """An engine that draws one of some texts from seed and prompt, and records the prompts."""

    def __init__(self, texts: Sequence[str], template: str = CHAT_TEMPLATE) -> None:
        self._tokenizer = trained(template)
        self.renderer = ChatRenderer(self._tokenizer)
        end = self.renderer.turn_end_ids[0]
        self._said = [[*trained(template).encode(text, add_special_tokens=False), end] for text in texts]
        self.prompts: list[tuple[int, ...]] = []
        self.policy_version, self.max_context_tokens = 0, 4096

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Completion:
        self.prompts.append(tuple(prompt_ids))
        drawn = derive_seed(sampling.seed, *prompt_ids)
        ids = self._said[drawn % len(self._said)]
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(-0.01 * (1 + (drawn >> at) % 97) for at in range(len(ids))),
            policy_versions=(0,) * len(ids),
            finish_reason=FinishReason.STOP,
        )

    async def release(self, session_id: str) -> None:
        pass

    async def score(self, prompt_ids: Any, continuation_ids: Any) -> tuple[float, ...]:
        """Return a number per token that depends on the whole context before it."""
        ids = [*prompt_ids, *continuation_ids]
        ends = range(len(prompt_ids), len(ids))
        return tuple(-0.01 * (1 + derive_seed(*ids[: end + 1]) % 97) for end in ends)

    async def update_weights(self, version: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def text(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids)))

    def agents(self, context: ContextConfig = FULL, env: Env | None = None) -> MakeAgent:
        """Return a factory of agents with a context policy; a window to be summarised holds a few turns of ``env``."""
        sampling = SamplingParams(max_new_tokens=40)
        if context is SUMMARISED and env is not None:
            first = self.renderer.prompt_ids(env.reset(options={"task": TASK})[0], env.tools)
            context = replace(context, window_tokens=len(first) + 250)

        def make(env: Env, seed: int) -> ModelAgent:
            return ModelAgent(self, self.renderer, sampling, seed, context, env.max_turns)

        return make
