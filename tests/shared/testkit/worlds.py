"""A small environment for tests of rollouts."""

from __future__ import annotations

from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.types import Message, RewardRole, Task, ToolCall


class Counter(ToolEnv):
    """Count to the task's number by calling add; five turns at most."""

    max_turns = 5

    def start(self, task: Task) -> str:
        self.at, self.goal = 0, 2 + task.seed % 2
        return f"Count to {self.goal}."

    def state_key(self) -> str:
        return f"{self.at}/{self.goal}"

    def oracle(self) -> Message:
        return Message("assistant", "add: 1", (ToolCall("add", {"number": 1}),))

    @tool
    def add(self, number: int) -> str:
        """Add a number between 1 and 3 to the count."""
        if not 1 <= number <= 3:
            raise ToolError("number must be between 1 and 3")
        self.at += number
        self.award(-0.01, "effort", RewardRole.COST)
        if self.at >= self.goal:
            self.finish(1.0 if self.at == self.goal else 0.0)
        return f"The count is {self.at}."


class LongCounter(Counter):
    """Count to 24: an episode of some hundreds of tokens."""

    max_turns = 30

    def start(self, task: Task) -> str:
        super().start(task)
        self.goal = 24
        return "Count to 24."
