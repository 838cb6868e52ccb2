"""The tool ``submit``: hands the work, or an answer, over to be graded."""

from __future__ import annotations

from abc import abstractmethod

from agentgym.tool import tool


class SubmitTool:
    """``submit`` without arguments: the files are the work."""

    @tool
    def submit(self) -> str:
        """Hand in your work as it is now; this ends the task."""
        return self.submitted()

    @abstractmethod
    def submitted(self) -> str:
        """Grade the work and say what came of it."""


class SubmitAnswerTool:
    """``submit`` with an answer."""

    @tool
    def submit(self, answer: str) -> str:
        """Hand in your answer; this ends the task.

        Args:
            answer: the answer alone, without words around it.
        """
        return self.submitted(answer)

    @abstractmethod
    def submitted(self, answer: str) -> str:
        """Grade the answer and say what came of it."""
