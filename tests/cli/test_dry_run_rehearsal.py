"""A dry run refuses what a start would refuse: components, environments, prompts, and blocks for ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
        ('sft.files=["rows.jsonl"]', "rows.jsonl, line 2"),
    ],
)
def test_a_start_that_would_fail_fails_on_paper(run: Command, tmp_path: Path, override: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    sound = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    (tmp_path / "rows.jsonl").write_text(f'{sound}\n{{"messages": 1}}\n')
    planned = run("train", "tiny", "env.id=agentgym/GuessNumber-v0", override, "--dry-run")
    assert said in planned.assert_one_line_error()


def test_files_on_another_machine_are_named(run: Command) -> None:
    planned = run("train", "tiny", "env.id=agentgym/GuessNumber-v0", 'sft.files=["/there/rows.jsonl"]', "--dry-run")
    told = " ".join((planned.out + planned.err).split())
    assert planned.code == 0 and "not on this machine, so not read: /there/rows.jsonl" in told
