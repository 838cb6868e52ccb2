"""An environment whose observation reveals the answer at a known turn."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool

WORDS = ("red", "blue", "green", "black", "white", "pink", "gold", "grey")


class Clue(ToolEnv):
    """Look until you hear the word, then say it."""

    max_turns = 4

    def __init__(self, *, num_tasks: int = 1000, max_turns: int | None = None, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.num_tasks = num_tasks

    def tasks(self, split: str) -> Sequence[Task]:
        first = {"train": 0, "valid": 10_000, "test": 20_000}[split]
        return [
            Task(id=f"{split}-{n}", split=split, seed=first + n, data={"answers": [WORDS[n * 5 % 8]], "at": n // 8 % 3})
            for n in range(self.num_tasks)
        ]

    def start(self, task: Task) -> str:
        self.word, self.at = task.data["answers"][0], task.data["at"]
        self.looks = 0
        return "Find the word."

    def state_key(self) -> str:
        return f"{self.looks}/{self.at}/{self.word}"

    def oracle(self) -> Message:
        if self.looks <= self.at:
            return Message("assistant", "look:", (ToolCall("look", {}),))
        return Message("assistant", f"say: {self.word}", (ToolCall("say", {"word": self.word}),))

    @tool
    def look(self) -> str:
        """Look around."""
        self.looks += 1
        return f"The word is {self.word}." if self.looks - 1 == self.at else "You see nothing."

    @tool
    def say(self, word: str) -> str:
        """Say the word."""
        self.finish(float(word == self.word))
        return "So be it."


register("Clue-v0", Clue)
