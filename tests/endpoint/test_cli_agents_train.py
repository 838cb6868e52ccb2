"""Command-line agents, unmodified, through which the model ``tiny`` is trained one step.

The model is not taught anything, so what it writes to the agents is noise, which each of them answers in its own way.
The credit is 1 for every turn: whatever an agent does, each token sampled through it must be trained.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from testkit import errand_env
from testkit.cli_agents import LONG, folder_of, played
from testkit.trained_runs import assert_one_step_trained_every_token

ENV = f"{errand_env.__file__}:Errand-v0"

SETTINGS = """
    env.kwargs={"sandbox":"process"} sft.num_demos=0 num_steps=1 groups_per_step=1 group.group_size=2 group.num_envs=2
    sampling.max_new_tokens=64 model.max_context_tokens=65536 eval.num_episodes=1 eval.base=false
    harness.max_calls=3 harness.options.memory_mb=200000000
"""

ONES = """
import numpy as np
from agentgym.credit.component import estimator
from agentgym.credit.table import TurnAdvantages

@estimator("ones", paper="ours")
def ones(table):
    return TurnAdvantages(advantage=np.ones(len(table)), return_to_go=np.ones(len(table)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", played(long=(*LONG, "qwen_code", "terminus_2")))
def test_its_rollouts_train_a_model_from_scratch(name: str, tmp_path: Path) -> None:
    credit, run = tmp_path / "credit.py", tmp_path / "run"
    credit.write_text(ONES, encoding="utf-8")
    command = [sys.executable, "-m", "agentgym", "train", "tiny", f"env.id={ENV}", *SETTINGS.split()]
    command += [f"credit.estimator={credit}:ones", f"harness.name={name}"]
    command += [f"harness.options.folder={folder_of(name)}", "--run-dir", str(run)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_one_step_trained_every_token(run)
