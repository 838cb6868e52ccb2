"""The architecture page's new estimator: its diff is one file, and nothing else has to change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = """
from agentgym.credit.compose import credit_turns
from agentgym.credit.config import CreditConfig
from agentgym.credit.component import ESTIMATORS
from agentgym.credit.table import TurnTable

table = TurnTable.from_lists(rewards=[[0.0, 1.0], [0.25]], group_of_trajectory=[0, 0])
config = CreditConfig(estimator="best_of_group", shapers=(), gamma=0.5)
print(ESTIMATORS["best_of_group"].status, credit_turns(table, config).advantage.tolist())
"""


def test_a_new_estimator_is_one_file(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shutil.copytree(ROOT / "agentgym", tmp_path / "agentgym", symlinks=True)
    for folder in ("envs", "tools", "sandboxes", "trainers"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    patched = subprocess.run(
        ["git", "apply", "-v", "-"], input=diff, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert patched.returncode == 0, patched.stderr
    assert len(re.findall(r"^diff|^\+\+\+ ", diff, re.MULTILINE)) == 1
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("-c", CODE) == "experimental [-0.5, 0.0, -0.75]\n"
    assert "best_of_group" in said("-m", "agentgym", "list", "--credit", "--json")
