"""Every number that a training step reports is explained in the docs."""

from __future__ import annotations

import re
from pathlib import Path

from testkit import counting_runs

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import EvalConfig
from agentgym.trainers.loop import train

DOCS = Path(__file__).parents[2] / "docs"
KINDS = {"status": "STATUS", "changed": "KIND", "credit/changed": "KIND"}


def documented(name: str, text: str) -> bool:
    """Return True if a page has the name, or the family it belongs to, as in ``status/STATUS``."""
    prefix, _, last = name.rpartition("/")
    names = [name, *([f"{prefix}/{KINDS[prefix]}"] if prefix in KINDS else [])]
    if prefix == "time":
        return f"`{last.removesuffix('_s')}`" in text
    return any(re.search(rf"`[^`]*\b{re.escape(one)}\b[^`]*`", text) for one in names)


def test_each_metric_of_a_step_is_in_the_docs(tmp_path: Path) -> None:
    config = counting_runs.config(num_steps=1, eval=EvalConfig(num_episodes=2), zero_variance_filter="off")
    entropy = 'loss.regularisers=[{"kind": "entropy", "coef": 0.1}]'
    train(apply_overrides(config, [entropy, 'credit.shapers=[{"kind": "g_ra"}]']), tmp_path / "run")
    (row,) = (row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl")
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    assert [name for name in row if name not in ("phase", "step") and not documented(name, text)] == []
