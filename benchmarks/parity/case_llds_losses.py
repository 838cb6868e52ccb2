"""LLDS compared with its authors' actor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import torch
from released import Case, Release, gap, load, run_lines
from token_rows import draw_rows, ours, with_gradients
from torch import Tensor
from torch.nn import functional

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import LldsOptions

RELEASE = Release("vengdeng/LLDS-On-Group-Relative-Policy-Optimization-Collapse-in-Search-R1", "c19a094")
FILE = "verl/workers/actor/dp_actor.py"
MASKS_FILE = "verl/utils/torch_functional.py"


def llds(gate: Literal["turn", "sequence"]) -> Callable[[Path, np.random.Generator], float]:
    """Return the comparison for one gate; the release calls the gate by turn ``chunk_noreduce``."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_rows(rng, advantage_per=rng.choice(["token", "turn", "row"]))
        masks = SimpleNamespace(**load(folder / MASKS_FILE, "masked_sum", "masked_mean", namespace={"torch": torch}))
        helpers = load(
            folder / FILE, "expand_chunk_mask", "chunk_sums_vectorized", namespace={"torch": torch, "F": functional}
        )
        settings = SimpleNamespace(
            mask_adaptive=False, answer_no_reduce_lambda=0.2, no_reduce_lambda=0.2, chunk_noreduce=gate == "turn"
        )

        def released(logprob: Tensor, entropy: Tensor) -> Tensor:
            scope = {
                **helpers,
                "verl_F": masks,
                "self": SimpleNamespace(config=settings),
                "metrics": {},
                "advantages": rows.advantage,
                "old_log_prob": rows.old,
                "log_prob": logprob,
                "response_mask": rows.mask.long(),
                "answer_mask": torch.ones_like(rows.mask, dtype=torch.long),
            }
            if not (rows.mask & (rows.advantage >= 0)).any():
                return torch.zeros((), dtype=torch.float64)  # the release indexes an empty tensor here
            run_lines(folder / FILE, "positive_advantage_mask =", "mask_per_response =", scope)
            loss: Tensor = scope["loss_noreduce"]
            return loss

        part = LldsOptions(gate=gate)
        config = LossConfig(kind="reinforce", corrections=(), regularisers=(part,), num_updates=2)
        plain = LossConfig(kind="reinforce", corrections=())
        return gap(ours(rows, config) - ours(rows, plain), with_gradients(rows, released))

    return largest_gap


CASES = (
    Case(component="llds", variant="gate by turn", release=RELEASE, file=FILE, largest_gap=llds("turn")),
    Case(component="llds", variant="gate by response", release=RELEASE, file=FILE, largest_gap=llds("sequence")),
)
