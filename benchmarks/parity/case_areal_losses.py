"""Decoupled PPO and M2PO compared with AReaL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import DecoupledOptions, M2poOptions

RELEASE = Release("inclusionAI/AReaL", "4aef98d")
LOSS_FILE = "areal/utils/functional/functional.py"
M2PO_FILE = "areal/trainer/ppo/actor.py"


class Double(torch.Tensor):
    """A float64 tensor that stays one: AReaL takes its ratios in float32."""

    def float(self, *_: Any, **__: Any) -> Tensor:
        return self


class StableTorch:
    """torch with a stable sort: M2PO's release leaves it to the device which of equal squares goes first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def sort(self, values: Tensor, *, descending: bool) -> Any:
        return torch.sort(values, descending=descending, stable=True)


@cache
def areal(folder: Path) -> dict[str, Any]:
    """Return AReaL's actor loss and its M2PO mask."""
    scope = load(
        folder / LOSS_FILE,
        "_compute_sequence_level_ratio_and_advantages",
        "_check_bounds",
        "apply_rejection_sampling",
        "ppo_actor_loss_fn",
        namespace={"torch": torch, "RejectionSamplingResult": SimpleNamespace},
    )
    scope["torch"] = StableTorch()
    return load(folder / M2PO_FILE, "_get_m2po_loss_mask", "_apply_m2po_masking", namespace=scope)


def decoupled(level: str, action: str) -> Callable[[Path, np.random.Generator], float]:
    """Return the comparison for one level and action; AReaL's sequences are rows, or turns as rows."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_rows(rng)
        rows = rows.per_turn() if level == "turn" else rows
        cap = float(rng.choice([0.9, 1.5, 5.0]))
        settings = SimpleNamespace(
            metric="ratio",
            level="token" if level == "token" else "sequence",
            agg="mean",
            action=action,
            upper=cap,
            lower=None,
        )

        def released(logprob: Tensor, entropy: Tensor) -> Tensor:
            proximal, engine = rows.old.as_subclass(Double), rows.rollout.as_subclass(Double)
            loss = areal(folder)["ppo_actor_loss_fn"](
                logprob, proximal, engine, rows.advantage, 0.2, rows.mask, 0.28, 3.0, rejection_sampling=settings
            )[0]
            return loss.as_subclass(torch.Tensor)

        correction: Any = {"cap": cap, "level": level, "action": action}
        config = LossConfig(kind="dapo", corrections=(DecoupledOptions(**correction),))
        return gap(ours(rows, config), with_gradients(rows, released))

    return largest_gap


def m2po(folder: Path, rng: np.random.Generator) -> float:
    """Draw log-ratios on a coarse grid, so that many squares are equal, and thresholds that none is below."""
    rows = draw_rows(rng, gap=float(rng.choice([0.1, 0.5])))
    if rng.random() < 0.5:
        rows = replace(rows, old=(rows.old * 4).round() / 4, rollout=(rows.rollout * 4).round() / 4)
    threshold = float(rng.choice([1e-9, 0.01, 0.04, 0.3]))
    mask = areal(folder)["_apply_m2po_masking"](rows.rollout, rows.old, rows.mask, threshold)

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        loss: Tensor = areal(folder)["ppo_actor_loss_fn"](
            logprob, rows.old, rows.rollout, rows.advantage, 0.2, mask, 0.28, 3.0
        )[0]
        return loss

    config = LossConfig(kind="dapo", corrections=(M2poOptions(threshold=threshold),))
    return gap(ours(rows, config), with_gradients(rows, released))


CASES = (
    *(
        Case(
            component="decoupled",
            variant=f"{action} by {level}",
            release=RELEASE,
            file=LOSS_FILE,
            largest_gap=decoupled(level, action),
        )
        for level in ("token", "turn", "sequence")
        for action in ("clamp", "mask")
    ),
    Case(component="m2po", release=RELEASE, file=f"{M2PO_FILE}, {LOSS_FILE}", largest_gap=m2po),
)
