"""An environment in a user's file that trains in seconds."""

from __future__ import annotations

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool


class Counting(ToolEnv):
    """Count to the task's number by calling add."""

    max_turns = 4

    def start(self, task: Task) -> str:
        self.at, self.goal = 0, 2 + task.seed % 3
        return f"Count to {self.goal}."

    def state_key(self) -> str:
        return f"{self.at}/{self.goal}"

    def oracle(self) -> Message:
        return Message("assistant", "add: 1", (ToolCall("add", {"number": 1}),))

    @tool
    def add(self, number: int) -> str:
        """Add a number to the count."""
        self.at += number
        if self.at >= self.goal:
            self.finish(1.0 if self.at == self.goal else 0.0)
        return f"The count is {self.at}."


register("Counting-v0", Counting)
