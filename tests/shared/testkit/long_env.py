"""An environment in a user's file with long episodes."""

from __future__ import annotations

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool


class Stairs(ToolEnv):
    """Climb 24 steps by calling up; each step has a reward, so that returns of random policies differ."""

    max_turns = 30

    def start(self, task: Task) -> str:
        self.at = 0
        return f"Climb the stairs of house {task.seed % 3}."

    def state_key(self) -> str:
        return str(self.at)

    def oracle(self) -> Message:
        return Message("assistant", "up", (ToolCall("up", {}),))

    async def arespond(self, action: Message) -> str:
        self.award(0.01 * (len(action.text) % 5), "step")
        if action.text.startswith("up"):
            self.at += 1
        if self.at == 24:
            self.finish(1.0)
        return f"You are on step {self.at}."

    @tool
    def up(self) -> str:
        """Climb a step."""
        return ""


register("Stairs-v0", Stairs)
