"""A free-text environment in which a model with random weights already gets different returns, and such a model."""

from __future__ import annotations

from typing import Any

from agentgym.env.env import Env
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.types import Message, RewardRole, Task


class Parity(Env):
    """Say something of odd length; three turns at most."""

    max_turns = 3

    def start(self, task: Task) -> str:
        self.last = 0
        return f"Say {task.seed % 3}."

    def state_key(self) -> str:
        return f"{self.turn} {self.last}"

    def respond(self, action: Message) -> str:
        self.last = len(action.text) % 2
        self.award(float(self.last))
        self.award(-0.1 * len(action.text), "length", RewardRole.COST)
        if len(action.text) % 5 == 0:
            self.finish()
        return "Odd." if self.last else "Even."


class OneTurn(Parity):
    """Say something of odd length in a single turn."""

    max_turns = 1

    def respond(self, action: Message) -> str:
        self.finish(float(len(action.text) % 2))
        return "Done."


def spoken_model(seed: int = 0) -> tuple[Any, Any]:
    """Return a model of about ten thousand weights and its tokenizer; equal seeds give equal models."""
    tokenizer = train_tokenizer(["Say 0. Say 1. Say 2. Odd. Even. abcde"] * 5, 280)
    sizes = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, max_context_tokens=128)
    return build_model(tokenizer, sizes, seed), tokenizer
