"""Two environments in one file whose tasks have equal ids, for runs that mix them."""

from __future__ import annotations

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool


class Adding(ToolEnv):
    """Count up to the task's number by calling add."""

    max_turns = 4

    def start(self, task: Task) -> str:
        self.at, self.goal = 0, 2 + task.seed % 3
        return f"Count up to {self.goal}."

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


class Picking(ToolEnv):
    """Pick the colour that is named."""

    max_turns = 2

    def start(self, task: Task) -> str:
        self.colour = ("red", "green", "blue")[task.seed % 3]
        return f"Pick {self.colour}."

    def oracle(self) -> Message:
        return Message("assistant", f"pick: {self.colour}", (ToolCall("pick", {"colour": self.colour}),))

    @tool
    def pick(self, colour: str) -> str:
        """Pick a colour."""
        self.finish(1.0 if colour == self.colour else 0.0)
        return "Thank you."


register("Adding-v0", Adding)
register("Picking-v0", Picking)
