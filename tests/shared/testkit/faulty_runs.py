"""Training runs whose environments crash at random."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentgym.check.chaos import Chaos
from agentgym.env.env import Env
from agentgym.trainers.run.env import RunEnv


def break_environments(monkeypatch: pytest.MonkeyPatch, *, crash: float) -> None:
    """Let every environment of a run crash in this share of its resets and steps."""
    attempts: Counter[str] = Counter()
    make_env = RunEnv._maker

    def faulty(self: RunEnv, changes: Any) -> Any:
        make = make_env(self, changes)

        def chaotic() -> Env:
            return Chaos(make(), crash=crash, attempts=attempts)

        return chaotic

    monkeypatch.setattr(RunEnv, "_maker", faulty)
