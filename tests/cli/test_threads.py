"""How threads of torch wait for each other in commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENV = """
import os
from pathlib import Path

from agentgym import ToolEnv, register

Path(__file__).with_suffix(".seen").write_text(os.environ["OMP_WAIT_POLICY"])


class Quiet(ToolEnv):
    def start(self, task):
        return "?"


register("Quiet-v0", Quiet)
"""


@pytest.mark.parametrize(("own", "seen"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(own: str | None, seen: str, tmp_path: Path) -> None:
    """Two threads that spin on busy cores are many times slower than one."""
    (tmp_path / "quiet.py").write_text(ENV, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if own is None else {"OMP_WAIT_POLICY": own}
    command = [sys.executable, "-m", "agentgym", "describe", f"{tmp_path}/quiet.py:Quiet-v0"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert (tmp_path / "quiet.seen").read_text(encoding="utf-8") == seen
