"""A world in which a word is typed letter by letter, so that rewards of a chain of tasks can be computed by hand."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool
from agentgym.errors import ToolError

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WORDS = {
    "short_1": "ab",
    "long_1": "abc",
    "short_2": "cd",
    "long_2": "def",
    "short_3": "ef",
    "lone_4": "a",
    "broken_5": "b",
    "broken_6": "!",
}


class Typing(ToolEnv):
    """Type a word. A right letter earns 0.1, the whole word 1. The letter ``!`` breaks the world."""

    num_resets: ClassVar[int] = 0

    def __init__(self, **others: Any) -> None:
        super().__init__(**{"max_turns": 4, **others})

    def start(self, task: Task) -> str:
        type(self).num_resets += 1
        self.word, self.typed = str(task.data["word"]), ""
        if self.word == "!":
            raise RuntimeError("there is no keyboard")
        return f"Type {', '.join(self.word)}."

    @tool
    def press(self, letter: str) -> str:
        """Press a letter."""
        if letter == "!":
            raise RuntimeError("the keyboard is gone")
        if not self.word.startswith(self.typed + letter):
            raise ToolError(f"{letter!r} is not the next letter", "wrong")
        self.typed += letter
        self.award(0.1, "press", "process")
        if self.typed == self.word:
            self.finish(1.0)
        return f"You have typed {self.typed}."

    @tool
    def photo(self) -> bytes:
        """Take a photo of the screen."""
        return PNG

    @tool
    def give_up(self) -> str:
        """End the task without success."""
        self.finish()
        return "You give up."

    def tasks(self, split: str) -> Sequence[Task]:
        kinds = [(name, word, name.partition("_")[0]) for name, word in WORDS.items()]
        return [
            Task(id=f"{name}", split=split, seed=number, data={"word": word, "task_type": kind})
            for number, (name, word, kind) in enumerate(kinds)
            if split == "train"
        ]

    def state_key(self) -> str:
        return f"{self.word} {self.typed}"

    def oracle(self) -> Message:
        return Message("assistant", "", (ToolCall("press", {"letter": self.word[len(self.typed)]}, "0"),))


class Kept(Typing):
    """The same world with native snapshots, so that the oracle of a chain plans."""

    def dump_state(self) -> tuple[str, str]:
        return self.word, self.typed

    def load_state(self, state: tuple[str, str]) -> None:
        self.word, self.typed = state


class Saver(Typing):
    """A world that has a tool of a skill chain."""

    @tool
    def save_skill(self) -> str:
        """Save something else."""
        return ""


register("Typing-v0", Typing)
register("Kept-v0", Kept)
register("Saver-v0", Saver)
