"""What a newcomer meets in the first hour, by command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

NAN = '''
from agentgym import ToolEnv, register, tool


class Nan(ToolEnv):
    """Awards a number that is none."""

    def start(self, task):
        return "Press."

    @tool
    def press(self) -> str:
        """Press the button."""
        self.award(float(VALUE), "score")
        return "Pressed."


register("Nan-v0", Nan, max_turns=2)
'''


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_reward_that_is_not_finite_fails_with_its_turn(run: Command, tmp_path: Path, value: str) -> None:
    (tmp_path / "nan.py").write_text(NAN.replace("VALUE", repr(value)))
    error = run("eval", "nan.py:Nan-v0", "--policy", "random", "--episodes", "2").assert_one_line_error(1)
    assert f"Nan-v0 turn 1: the reward part 'score' is {value}, expected a finite number" in error
