"""An environment in which even an untrained policy wins about every second episode, in two turns."""

from __future__ import annotations

from agentgym import Message, Task, ToolEnv, register


class Parity(ToolEnv):
    """Write texts whose lengths add up to an odd number; the outcome is 0 or 1."""

    max_turns = 2

    def start(self, task: Task) -> str:
        self.length, self.num_texts = 0, 0
        return "Write."

    def state_key(self) -> str:
        return f"{self.num_texts}/{self.length % 2}"

    def oracle(self) -> Message:
        return Message("assistant", "a" if self.num_texts else "ab")

    def no_call(self, action: Message) -> str:
        self.length, self.num_texts = self.length + len(action.text), self.num_texts + 1
        if self.num_texts == self.max_turns:
            self.finish(float(self.length % 2))
        return "Write on."


register("Parity-v0", Parity)
