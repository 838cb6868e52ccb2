"""Phases that play episodes say how far they are, also where the output is a file."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from testkit.made_groups import trajectory, turn

from agentgym.trainers.reporting.metrics import QUIET_S, MetricsLog


def test_long_phases_say_how_far_they_are_in_a_file(tmp_path: Path) -> None:
    now, written = [0.0], io.StringIO()
    log = MetricsLog(tmp_path, console=Console(file=written), clock=lambda: now[0])
    log.begin("demos", 6)
    for at in range(6):
        now[0] += QUIET_S / 2
        log.add_episode("demos", trajectory([turn((1,), (2,), reward=1.0)]))
        assert written.getvalue().count("demos") == (at + 1) // 2
    assert "demos 6/6  success" in written.getvalue()
