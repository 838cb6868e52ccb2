"""An engine that answers with given texts one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym.engine import SamplingParams
from agentgym.types import Completion, FinishReason
from testkit.drawing_engine import DrawingEngine
from testkit.tokenizers_for_tests import HERMES


class ScriptedEngine(DrawingEngine):
    """An engine that answers with its texts in order, and repeats the last one."""

    def __init__(self, texts: Sequence[str], template: str = HERMES) -> None:
        super().__init__(texts, template)
        self.max_context_tokens = 65_536

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Completion:
        said = self._said[min(len(self.prompts), len(self._said) - 1)]
        self.prompts.append(tuple(prompt_ids))
        return Completion(
            token_ids=tuple(said),
            logprobs=tuple(-0.1 * (1 + at % 7) for at in range(len(said))),
            policy_versions=(0,) * len(said),
            finish_reason=FinishReason.STOP,
        )
