"""PACS compared with its authors' loss over whole groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from group_rows import draw_groups
from released import Case, Release, gap, load
from torch import Tensor

from agentgym.trainers.losses.published.pacs import PacsOptions, prepare_pacs

PACS = Release("ritzz-ai/PACS", "bbe1dc6")
PACS_FILE = "src/pacs/pacs_core_algos.py"


def balanced_weights(_: str, *, classes: np.ndarray, y: list[float]) -> np.ndarray:
    """Return scikit-learn's balanced class weights, which PACS imports: ``n / (classes * count)``."""
    return np.array([len(y) / (len(classes) * y.count(one)) for one in classes.tolist()])


def pacs(score: str, baseline: str) -> Callable[[Path, np.random.Generator], float]:
    """Return the comparison for one score and one baseline."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_groups(rng)
        options = PacsOptions(
            score=score,  # type: ignore[arg-type]
            baseline=baseline,  # type: ignore[arg-type]
            beta=float(rng.choice([0.5, 1.0, 2.0])),
            balanced=bool(rng.integers(2)),
        )
        scope = load(
            folder / PACS_FILE,
            *("compute_reward", "compute_rloo_outcome_advantage", "compute_naive_advantage", "compute_weight"),
            "compute_pacs_loss",
            namespace={
                "torch": torch,
                "np": np,
                "compute_class_weight": balanced_weights,
                "BCEWithLogitsLoss": torch.nn.BCEWithLogitsLoss,
            },
        )
        settings = SimpleNamespace(
            beta=options.beta,
            reward_method="1" if score == "ratio" else "2",
            adv_estimator="rloo" if baseline == "others" else "naive",
            use_weight=options.balanced,
            weight_mode="question",
        )
        scores = torch.zeros_like(rows.logprob)
        scores[:, 0] = rows.reward

        def released(logprob: Tensor) -> Tensor:
            kept = logprob if score == "ratio" else logprob * rows.mask  # it sums log-probabilities of padding too
            loss: Tensor = scope["compute_pacs_loss"](
                rows.group, rows.old, kept, scores, rows.mask.long(), rows.size, settings
            )
            return loss

        made = prepare_pacs(**rows.columns(), options=options)
        ours = torch.cat([made["value"].sum().reshape(1), made["slope"]]).numpy()
        # float32 weights of classes in the release
        return gap(ours, rows.gradient(released))

    return largest_gap


CASES = (
    *(
        Case(
            component="pacs",
            variant=f"{score}, {baseline}",
            release=PACS,
            file=PACS_FILE,
            largest_gap=pacs(score, baseline),
        )
        for score in ("ratio", "logprob")
        for baseline in ("others", "none")
    ),
)
