"""The tool ``submit``: hand in the work or an answer for grading."""

from __future__ import annotations

from typing import Protocol

from agentgym.tool import tool


class HandsIn(Protocol):
    """An environment with the mixin :class:`SubmitTool`."""

    def hand_in(self) -> str:
        """Grade the work, end the episode and return the message for the agent."""
        ...


class TakesAnswers(Protocol):
    """An environment with the mixin :class:`SubmitAnswerTool`."""

    def hand_in_answer(self, answer: str) -> str:
        """Grade the answer, end the episode and return the message for the agent."""
        ...


class SubmitTool:
    """``submit`` without arguments; the files in the workspace are the work."""

    @tool
    def submit(self: HandsIn) -> str:
        """Hand in your work as it is now; this ends the task."""
        return self.hand_in()


class SubmitAnswerTool:
    """``submit`` with an answer."""

    @tool
    def submit(self: TakesAnswers, answer: str) -> str:
        """Hand in your answer; this ends the task.

        Args:
            answer: the answer alone, without words around it.
        """
        return self.hand_in_answer(answer)
