"""The loop of training knows no component by name: what it must know of one, the component says of itself."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from agentgym.credit.component import credit_table
from agentgym.rollout.strategies.component import strategy_table
from agentgym.trainers.losses.component import loss_table

ROOT = Path(__file__).parents[1]
TRUNK = (
    *("trainers/*.py", "trainers/run/*.py", "trainers/phases/*.py", "trainers/data/*.py", "trainers/config/*.py"),
    *("trainers/losses/loss.py", "trainers/losses/facts.py", "trainers/losses/batch_columns.py"),
    "agentgym/rollout/*.py",
)
COMMON = {
    *(
        "decoupled",
        "demonstration",
        "entropy",
        "even",
        "extending",
        "feedback",
        "fixed",
        "kl",
        "loop",
        "order",
        "pairs",
    ),
    *("returns", "rubric", "rules", "score", "shared_prefix", "success", "teacher", "unaided"),
}
"""Names of components that are also words, keys, metrics or functions."""
REPORTED = {
    "agentgym/rollout/recredit.py": {"information_gain", "gigpo", "grpo"},  # advice to users, and a default to compare
    "trainers/run/env.py": {"information_gain"},
}
"""Names that a file may know, by file."""


def test_the_trunk_names_no_component() -> None:
    names = {one.name for table in (credit_table(), loss_table(), strategy_table()) for one in table} - COMMON
    assert {"epo", "vcpo", "kl_convex", "rl_plus", "self_distill", "refuel", "bapo", "spo"} <= names
    found = []
    files = [path for pattern in TRUNK for path in sorted(ROOT.glob(pattern))]
    assert len(files) > 60
    for path in files:
        own = names - REPORTED.get(str(path.relative_to(ROOT)), set())
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            is_code = token.type in (tokenize.STRING, tokenize.NAME) and not token.string.startswith('"""')
            words = re.findall(r"\w+", token.string) if is_code and not token.line.lstrip().startswith(">>>") else ()
            found += [f"{path.relative_to(ROOT)}:{token.start[0]}: {word}" for word in own.intersection(words)]
    assert not found, "\n".join(found)
