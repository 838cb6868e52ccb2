"""Feedback by a teacher: after a turn that earned nothing, a second model says what was wrong with it.

Source: "MINT: Evaluating LLMs in Multi-turn Interaction with Tools and Language Feedback", where a model plays the user
who comments on failed attempts. Unlike a hint, feedback is a message of the conversation: later prompts hold it, and so
do the prompts that are trained. Sampled tokens therefore need no correction for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.rollout.strategies.component import guidance
from agentgym.rollout.strategies.fading import FadingOptions, fading
from agentgym.rollout.strategies.teacher import TeacherOptions
from agentgym.settings import Count


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
    return fading(rate, group_size, FadingOptions(share=options.share, most=options.most, target=options.target))
