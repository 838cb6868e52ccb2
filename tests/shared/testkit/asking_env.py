"""An environment in a user's own file whose tool asks a sub-agent."""

from __future__ import annotations

from agentgym import Message, Task, ToolEnv, register, tool
from agentgym.env.sub_agents import AsksAgents


class Clerk(ToolEnv):
    """Look a number up in a drawer and hand it over."""

    def __init__(self, number: int, *, max_turns: int = 3) -> None:
        self.number = number
        self.handed: int | None = None
        super().__init__(max_turns=max_turns)

    def start(self, task: Task) -> str:
        return f"The drawer holds {self.number}. Hand it over."

    def state_key(self) -> str:
        return str(self.turn)

    def oracle(self) -> Message:
        return self.parse_action(f"hand: {self.number}")

    @tool
    def hand(self, number: int) -> str:
        """Hand a number over."""
        self.handed = number
        self.finish(float(number == self.number))
        return "Thanks."


class Manager(AsksAgents, ToolEnv):
    """Ask the clerk for a number and say it."""

    max_turns = 4
    agents = ("clerk",)

    def start(self, task: Task) -> str:
        self.number = 3 + task.seed % 4
        self.known: int | None = None
        return "Which number is in the drawer?"

    def state_key(self) -> str:
        return f"{self.number} {self.known}"

    def oracle(self) -> Message:
        return self.parse_action("ask_clerk:" if self.known is None else f"say: {self.known}")

    @tool
    async def ask_clerk(self) -> str:
        """Ask the clerk."""
        clerk = Clerk(self.number)
        task = Task(id=f"{self.task.id}-clerk", split=self.task.split, seed=self.task.seed)
        await self.ask("clerk", clerk, task)
        self.known = clerk.handed
        return f"The clerk hands you {clerk.handed}."

    @tool
    def say(self, number: int) -> str:
        """Say the number."""
        self.finish(float(number == self.number))
        return "So be it."


register("Manager-v0", Manager)
