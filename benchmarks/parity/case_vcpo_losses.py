"""VCPO's scale of the learning rate compared with its authors' code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from released import Case, Release, gap, load, run_lines
from token_rows import draw_rows

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import update_facts
from agentgym.trainers.losses.options import VcpoOptions

RELEASE = Release("mit-han-lab/vcpo", "c7f030f")
RATIO_FILE = "recipe/fully_async_policy/staleness_utils.py"
RATE_FILE = "verl/workers/actor/megatron_actor.py"


def vcpo(folder: Path, rng: np.random.Generator) -> float:
    """Compare the factor of the learning rate over one minibatch.

    The release reads the log-probabilities from before the update; at the first update they are the policy's.
    """
    rows = draw_rows(rng, gap=0.2)
    rule: Any = rng.choice(["sqrt", "linear"])
    base = float(rng.choice([0.55, 0.9, 1.0]))
    # one rank alone: nothing is gathered, and a record is the dict that would have been sent
    scope = load(
        folder / RATIO_FILE,
        "compute_is_info",
        "compute_ess_info",
        namespace={
            "torch": torch,
            "mpu": _OneRank(),
            "asdict": vars,
            "allgather_dict_into_list": lambda records, group: records,
        },
    )
    records = [
        scope["compute_is_info"](SimpleNamespace(rollout_seq_is_clipped=None), rollout, new, mask, None)
        for rollout, new, mask in zip(rows.rollout, rows.logprob, rows.mask, strict=True)
        if mask.any()  # the release has no rows without sampled tokens
    ]
    ratio = scope["compute_ess_info"](records, None)["ess_ratio"]
    settings = SimpleNamespace(base_ess_ratio=base, scaling_rule=rule)
    group = {"lr": 1.0}
    self = SimpleNamespace(
        config=SimpleNamespace(ess_scaling=settings), actor_optimizer=SimpleNamespace(param_groups=[group])
    )
    lines: dict[str, Any] = {"self": self, "ess_ratio_for_scaling": ratio, "base_lrs": [1.0]}
    run_lines(folder / RATE_FILE, "base_ess_ratio = max(", "lrs_now = self.get_lr()", lines)

    config = LossConfig(corrections=(VcpoOptions(scale=rule, base_ratio=base),))
    return gap(update_facts([rows.batch(config)], [rows.frozen()], config).lr_scale, group["lr"])


class _OneRank:
    """Megatron's parallel state with a single process."""

    def __getattr__(self, name: str) -> Any:
        return lambda **_: 0 if name.endswith("rank") else None


CASES = (Case(component="vcpo", release=RELEASE, file=f"{RATIO_FILE}, {RATE_FILE}", largest_gap=vcpo),)
