"""A scorer that lets a model behind an OpenAI-compatible endpoint rate episodes with a rubric."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.plugins import Component, Options
from agentgym.scoring.component import SCORERS


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions(Options):
    """Settings of the scorer ``judge``, as in :class:`agentgym.trainers.judges.config.JudgeConfig`."""

    kind: str = "judge"
    model: str = ""
    """``openai:URL?model=NAME``."""
    rubric: str = ""
    """Criteria as text; empty to rate how well the agent reaches the goal in its first message."""
    votes: int = 1
    temperature: float = 0.0
    max_new_tokens: int = 1024
    max_chars: int = 12_000
    structured: bool = True

    def check_together(self) -> None:
        found = "is missing" if not self.model else f"is {self.model!r}"
        is_endpoint = self.model.startswith("openai:")
        self.check(is_ok=is_endpoint, message=f"model {found}; name an endpoint, openai:URL?model=NAME")


SCORERS.add(
    Component(
        name="judge",
        family="scorer",
        function="agentgym.trainers.judges.scorer:judged",
        options=JudgeOptions,
        check="agentgym.trainers.judges.scorer:check_judge",
    )
)
