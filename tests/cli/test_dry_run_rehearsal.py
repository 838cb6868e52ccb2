"""A dry run refuses what a start would refuse: components, environments, prompts, and blocks for ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import UsageError
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.run.rehearsal import _check_blocks

Command = Callable[..., Any]

BROKEN = """from agentgym.trainers.losses.component import regulariser


@regulariser("broken")
def broken(logprob):
    raise RuntimeError("no value")
"""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("env.num_train_tasks=2000000", "agentgym/GuessNumber-v0 has 1,000,000 training tasks; lower it, or set 0"),
        ('loss.regularisers=[{"kind": "broken.py:broken"}]', "regulariser broken: RuntimeError: no value"),
    ],
)
def test_a_start_that_would_fail_fails_on_paper(run: Command, tmp_path: Path, override: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    planned = run("train", "tiny", "env.id=agentgym/GuessNumber-v0", override, "--dry-run")
    assert said in planned.assert_one_line_error()


def test_blocks_are_found_before_ranks_start(tmp_path: Path) -> None:
    for kind, sizes in (("gpt2", {"n_embd": 8, "n_layer": 1, "n_head": 2}), ("qwen2", {"hidden_size": 8})):
        folder = tmp_path / kind
        folder.mkdir()
        more = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8}
        (folder / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 32, **more, **sizes}))
    _check_blocks(ModelConfig(path=str(tmp_path / "qwen2")))
    with pytest.raises(UsageError, match="GPT2Model has none under layers: train on one rank"):
        _check_blocks(ModelConfig(path=str(tmp_path / "gpt2")))
