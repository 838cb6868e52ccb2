"""Hints by a teacher: a second policy reads the episode so far and says what to do next, for tasks that fail.

It gives to environments without an oracle what ``fading`` gives to the others. Hints end prompts as the oracle's do:
they are in no prompt that is trained, and in no later one. Sources: "Scaf-GRPO: Scaffolded Group Relative Policy
Optimization for Enhancing LLM Reasoning" (hints by a stronger model, where the policy fails), "GHPO: Adaptive Guidance
for Stable and Efficient LLM Reinforcement Learning" (strength by difficulty). Both make hints from a reference solution
before training. This teacher writes them from the episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from agentgym.engine import ENDPOINT
from agentgym.plugins import Options
from agentgym.rollout.strategies.component import guidance
from agentgym.rollout.strategies.fading import FadingOptions, fading
from agentgym.settings import Count, NonNegative, PositiveFraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherOptions(Options):
    """Settings of the teacher and its hints."""

    kind: str = "teacher"
    model: str = ""
    """An OpenAI-compatible endpoint, ``openai:URL?model=NAME``; ``agentgym serve-model MODEL`` starts one."""
    share: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of a group's episodes with hints."""
    most: Count = 4
    """Number of turns with a hint at success rate 0."""
    target: PositiveFraction = 0.5
    """Success rate from which a task gets no hints. Below it, the number of hints falls linearly."""
    temperature: NonNegative = 0.7
    max_new_tokens: Count = 512
    """Most tokens of an answer, thinking included."""
    num_tries: Count = 2
    """Answers until one is a valid hint."""
    max_chars: Annotated[int, Range(at_least=1000)] = 8000
    """Largest length of an episode's transcript; longer ones lose turns in the middle."""
    num_requests: Count = 16
    """Number of concurrent requests."""

    def check_together(self) -> None:
        message = f"needs the model that writes hints: model=openai:URL?model=NAME, got {self.model!r}"
        self.check(is_ok=self.model.startswith(ENDPOINT), message=message)


@guidance(
    "teacher",
    paper="Scaf-GRPO; GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning",
    status="experimental",
    limits="the teacher is behind an OpenAI-compatible endpoint; no Ray cluster; the embedded engine repeats bits with "
    "engine.batch_invariant=true alone",
    test="tests/trainers/test_teacher_hints.py",
)
def teacher(rate: float | None, group_size: int, options: TeacherOptions) -> tuple[int, int]:
    """Return the number of episodes with hints and the number of their turns with a hint, as ``fading`` does.

    Example:
        >>> options = TeacherOptions(model="openai:http://127.0.0.1:8000/v1")
        >>> [teacher(rate, 8, options) for rate in (None, 0.0, 0.25, 0.5)]
        [(0, 0), (4, 4), (4, 2), (0, 0)]
    """
    return fading(rate, group_size, FadingOptions(share=options.share, most=options.most, target=options.target))


# ------------------ feedback by a teacher: after a turn that earned nothing, a second model says what was wrong with it
# Source: "MINT: Evaluating LLMs in Multi-turn Interaction with Tools and Language Feedback", where a model plays the
# user who comments on failed attempts. Unlike a hint, feedback is a message of the conversation: later prompts hold it,
# and so do the prompts that are trained. Sampled tokens therefore need no correction for it.


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackOptions(TeacherOptions):
    """Settings of the teacher and its feedback: those of ``teacher``, with ``most`` for turns with feedback."""

    kind: str = "feedback"
    most: Count = 2
    """Number of turns of an episode with feedback at success rate 0."""


@guidance(
    "feedback",
    paper="MINT: Evaluating LLMs in Multi-turn Interaction with Tools and Language Feedback",
    status="experimental",
    limits="feedback follows turns without a positive reward; the teacher is behind an OpenAI-compatible endpoint; no "
    "Ray cluster; the embedded engine repeats bits with engine.batch_invariant=true alone",
    test="tests/trainers/test_feedback.py",
)
def feedback(rate: float | None, group_size: int, options: FeedbackOptions) -> tuple[int, int]:
    """Return the number of episodes with feedback and the number of their turns with it, as ``fading`` does for hints.

    Example:
        >>> options = FeedbackOptions(model="openai:http://127.0.0.1:8000/v1")
        >>> [feedback(rate, 8, options) for rate in (None, 0.0, 0.25, 0.5)]
        [(0, 0), (4, 2), (4, 1), (0, 0)]
    """
    return teacher(rate, group_size, options)
