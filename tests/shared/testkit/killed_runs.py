"""Training runs in a separate process, which tests kill and then resume in their own process."""

from __future__ import annotations

import os
from pathlib import Path

from agentgym.trainers.config.overrides import load_config
from agentgym.trainers.train import train
from testkit.warm_python import Command

SCRIPT = "import sys; from pathlib import Path; from agentgym.trainers.train import train; \
from agentgym.trainers.config.overrides import load_config; d = Path(sys.argv[1]); \
train(load_config(d / 'config.json'), d, resume=True)"


def start(address: str, run_dir: Path) -> Command:
    """Start or resume a run in a separate process, which can be killed."""
    with open(os.devnull, "wb") as nowhere:
        return Command(address, ["-c", SCRIPT, str(run_dir)], (0, nowhere.fileno(), nowhere.fileno()))


def resume(run_dir: Path) -> None:
    train(load_config(run_dir / "config.json"), run_dir, resume=True)
