"""AEPO's advantage compared with its authors' loss, in which it is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from credit_inputs import by_trajectory, double_precision, random_table, to_tokens
from released import Case, Release, gap, run_lines

from agentgym.credit.modulators.entropy import aepo_advantage

FORK = Release("multi-agent-deep-research/ARPO", "81e3a5d")
"""A fork that holds AEPO; the checkout of dongguanting/ARPO is older than AEPO."""
FILE = "AEPO/verl_aepo_entropy/verl/trainer/ppo/core_algos.py"


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare token advantages of a batch that is one micro-batch, with tokens that are equally uncertain too."""
    table = random_table(rng, smallest=2)
    layout = by_trajectory(table)
    num_tokens = int(table.num_tokens.sum())
    entropy = np.full(num_tokens, 0.5) if rng.random() < 0.2 else rng.exponential(size=num_tokens)
    advantage = rng.normal(size=len(table))
    scope: dict[str, Any] = {
        "enable_entropy_balanced_advantage": True, "entropy": layout.spread(entropy, fill=50.0), "torch": torch,
        "response_mask": layout.mask, "advantages": layout.spread(to_tokens(table, advantage)),
    }  # fmt: skip
    with double_precision():
        start, stop = "if enable_entropy_balanced_advantage", "assert clip_ratio_c"
        run_lines(folder / FILE, start, stop, scope, within="def compute_policy_loss_entropy_balanced_clipping")
    ours = aepo_advantage(table.with_columns(token_entropy=entropy), advantage)
    return gap(ours.token_advantage, layout.read(scope["advantages"]))


CASES = (Case(component="aepo_advantage", release=FORK, file=FILE, largest_gap=largest_gap),)
