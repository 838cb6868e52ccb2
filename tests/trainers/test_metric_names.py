"""Every number in a run's metrics has a row in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit import counting_runs

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import EvalConfig
from agentgym.trainers.train import train

DOCS = Path(__file__).parents[2] / "docs"
FAMILIES = {"status": "STATUS", "changed": "KIND", "credit/changed": "KIND", "cut": "REASON", "dropped": "REASON"}


def documented(name: str, text: str) -> bool:
    """Return True if the page has a row of the name, or of the family it belongs to, as in ``status/STATUS``."""
    prefix, _, last = name.rpartition("/")
    if prefix == "time":
        return f"`{last.removesuffix('_s')}`" in text
    if prefix in FAMILIES:
        name = f"{prefix}/{FAMILIES[prefix]}"
    if name.startswith("pass_at_"):
        name = "pass_at_K"
    return any(f"`{name}`" in line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("credit.estimator=turn_gae", 'loss.regularisers=[{"kind": "kl", "coef": 0.1}]'),
        ("credit.estimator=spo", "group.group_size=1", "group.min_valid=1", "groups_per_step=8"),
        ("sft.num_demos=16", "sft.mix.weight=0.1", "sft.batch_size=8", "loss.echo=0.05", "eval.repeats=2"),
    ],
)
def test_each_metric_has_a_row_in_the_docs(tmp_path: Path, changes: tuple[str, ...]) -> None:
    config = counting_runs.config(num_steps=1, eval=EvalConfig(num_episodes=2), zero_variance_filter="off")
    entropy = 'loss.regularisers=[{"kind": "entropy", "coef": 0.1}]'
    made = apply_overrides(config, [entropy, 'credit.shapers=[{"kind": "g_ra"}]', *changes])
    train(made, tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    names = dict.fromkeys(name for row in rows for name in row if name not in ("phase", "step"))
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert {row["phase"] for row in rows} >= {"rl", "eval"}
    assert [name for name in names if not documented(name, text)] == []
