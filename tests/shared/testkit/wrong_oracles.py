"""Environments whose oracle does not do what its episodes ask for."""

from __future__ import annotations

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool


class Off(ToolEnv):
    """Say the task's number; the oracle says the next one in some tasks."""

    max_turns = 2
    num_wrong = 3
    """Number of tasks out of each four that the oracle fails."""

    def start(self, task: Task) -> str:
        self.wanted, self.is_wrong = task.seed % 4, task.seed % 4 < self.num_wrong
        return f"Say {self.wanted}."

    def oracle(self) -> Message:
        return Message("assistant", calls=(ToolCall("say", {"number": self.wanted + self.is_wrong}),))

    @tool
    def say(self, number: int) -> str:
        """Say a number."""
        self.finish(float(number == self.wanted))
        return "Right." if number == self.wanted else "Wrong."


class OffRarely(Off):
    """Say the task's number; the oracle is wrong in one task of four."""

    num_wrong = 1


class Endless(Off):
    """The oracle never ends an episode."""

    def oracle(self) -> Message:
        return Message("assistant", calls=(ToolCall("wait", {}),))

    @tool
    def wait(self) -> str:
        """Wait."""
        return "You wait."


register("Off-v0", Off)
register("OffRarely-v0", OffRarely)
register("Endless-v0", Endless)
