"""The unlikeliness reward compared with its authors' advantages."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from credit_inputs import batch_of
from group_rows import draw_groups
from released import Case, Release, gap, load
from token_rows import masked_mean

from agentgym.trainers.losses.published.unlikeliness import UnlikelinessOptions, prepare_unlikeliness

RELEASE = Release("AndreHe02/rewarding-unlikely-release", "ca1cff0")
FILE = "verl/trainer/ppo/ray_lean_trainer.py"


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the advantages of all tokens."""
    rows = draw_groups(rng)
    options = UnlikelinessOptions(penalty=float(rng.choice([0.1, 0.25, 1.0])))
    name = "RayLeanTrainer._compute_advantages"
    scope = load(
        folder / FILE, name, namespace={"torch": torch, "defaultdict": defaultdict, "masked_mean": masked_mean}
    )
    batch = batch_of(
        {
            "rewards": rows.reward.clone(),
            "old_log_probs": rows.old,
            "responses": rows.old,
            "attention_mask": rows.mask.double(),
        },
        uid=rows.group.tolist(),
    )
    own = SimpleNamespace(config=SimpleNamespace(lean={"rank_penalty": options.penalty}))
    released = scope["_compute_advantages"](own, batch).batch["advantages"][rows.mask]
    columns = rows.columns()
    kept = {key: columns[key] for key in ("logprob_old", "reward", "trajectory", "group")}
    return gap(prepare_unlikeliness(**kept, options=options)["unlikely_advantage"], released)


CASES = (Case(component="unlikeliness", release=RELEASE, file=FILE, largest_gap=largest_gap),)
