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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["env.kwargs.blank=maybe"], "blank='maybe': expected a valid boolean"),
        (["env.kwargs.size=2.5"], "size=2.5: expected a whole number"),
        (["env.kwargs.size=99"], "size must be between 2 and 16"),
        (["env.kwargs.coordinates=inches"], "unknown scale of coordinates 'inches'"),
        (["env.kwargs.picture=65"], "picture 65 x 65 would be resized by every processor"),
        (["env.kwargs.actions=clicks"], "unknown set of actions 'clicks'"),
        (["eval.kwargs.blank=maybe"], "blank='maybe': expected a valid boolean"),
        (["loss.layout=packed"], "loss.layout=packed takes no images: use loss.layout=prefix or rows"),
    ],
)
def test_wrong_arguments_of_environments_fail_on_paper(run: Command, settings: list[str], said: str) -> None:
    """They were a note, since an environment whose data is on another machine cannot be made either."""
    planned = run("train", "see-tiny", *settings, "--dry-run")
    assert said in planned.assert_one_line_error() and planned.code == 2


def test_data_of_an_environment_on_another_machine_is_a_note(run: Command) -> None:
    planned = run(
        "train", "tiny", "env.id=agentgym/PictureQuestions-v0", "env.kwargs.questions=/there/q.jsonl", "--dry-run"
    )
    told = " ".join((planned.out + planned.err).split())
    assert planned.code == 0 and "cannot be made here, so its start was not tried: /there/q.jsonl is no file" in told


def test_files_on_another_machine_are_named(run: Command) -> None:
    planned = run("train", "tiny", "env.id=agentgym/GuessNumber-v0", 'sft.files=["/there/rows.jsonl"]', "--dry-run")
    told = " ".join((planned.out + planned.err).split())
    assert planned.code == 0 and "not on this machine, so not read: /there/rows.jsonl" in told


AUXILIARY = """import numpy as np

from agentgym.trainers.data.weighted_row import WeightedRow
from agentgym.trainers.losses.component import auxiliary_loss


@auxiliary_loss("best")
def best(episodes):
    BODY
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [WeightedRow(one.tokens, np.ones(3), np.ones(3)) for one in episodes]", "has no attribute 'tokens'"),
        ("return [max(episodes, key=lambda one: one.reward)] if episodes else []", "expected a list of WeightedRow"),
        ("scale = 1 / sum(one.reward for one in episodes) if episodes else 1\n    return []", "ZeroDivisionError"),
        ("return [one.task.data['goal'] for one in episodes][:0]", "KeyError: 'goal'"),
    ],
)
@pytest.mark.parametrize("more", [["--dry-run"], []], ids=["dry run", "start"])
def test_an_auxiliary_loss_is_tried_with_episodes(
    run: Command, tmp_path: Path, body: str, said: str, more: list[str]
) -> None:
    """Its first call with episodes was that of the first step, after the warm start and the rollouts."""
    (tmp_path / "best.py").write_text(AUXILIARY.replace("BODY", body))
    chosen = 'loss.auxiliaries=[{"kind": "best.py:best"}]'
    done = run("train", "tiny", "env.id=agentgym/GuessNumber-v0", "sft.num_demos=8", chosen, *more)
    line = done.assert_one_line_error()
    assert done.code == 2 and said in line and "auxiliary loss" in line and "best" in line
    assert "tried on made-up episodes" in line and not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("unit='turn')\ndef x(turn): return 1 / (turn.index - 1)", "column 'x' failed: ZeroDivisionError"),
        ("unit='trajectory', phase='step')\ndef x(reward): return [1.0]", "column 'x' returned"),
        ("unit='group')\ndef x(group): return max(t.reward for t in group.valid if t.success)", "failures alone"),
    ],
)
def test_a_column_is_tried_with_episodes(run: Command, tmp_path: Path, declared: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentgym.trainers.data.columns import column\n"
        "from agentgym.trainers.losses.component import policy_loss\n"
        f"@column('x', {declared}\n"
        "@policy_loss('mine', paper='ours', clip_low=None, clip_high=None)\n"
        "def mine(logprob, x): return -logprob * x, x > 1\n"
    )
    chosen = ("loss.kind=mine.py:mine", "loss.corrections=[]")
    for more in (["--dry-run"], ["sft.num_demos=8"]):
        done = run("train", "tiny", "env.id=agentgym/GuessNumber-v0", *chosen, *more)
        assert done.code == 2 and said in done.err and "tried on made-up episodes" in done.err
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_sound_auxiliary_loss_passes_the_dry_run_also_with_data_of_tasks(run: Command, tmp_path: Path) -> None:
    rows = "[WeightedRow(part.token_ids, np.array(part.loss_mask, dtype=float), part.loss_mask)"
    body = f"return {rows} for one in episodes if one.success and one.task.split for part in one.segments]"
    (tmp_path / "best.py").write_text(AUXILIARY.replace("BODY", body))
    chosen = 'loss.auxiliaries=[{"kind": "best.py:best"}]'
    assert run("train", "tiny", "env.id=agentgym/GuessNumber-v0", chosen, "--dry-run").code == 0
