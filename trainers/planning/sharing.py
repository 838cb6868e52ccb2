"""The part of a GPU's memory that is left for a vLLM server where it shares the trainer's GPU."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Final

from agentgym.errors import UsageError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.planning.footprint import BFLOAT16, engine_cache, footprint
from agentgym.trainers.planning.model_shapes import plan_model

MARGIN: Final = 4 << 30
"""Memory for what the plan does not count: CUDA in both processes, kernels' workspaces, and unused blocks."""
SERVER_OWN: Final = 8 << 30
"""Memory of a server beside weights and cache: CUDA, activations of tokens that it reads at once, logits, graphs."""
NUM_CACHES: Final = 4
"""Caches of all episodes at full length that a server may have; more would hold prefixes that nobody needs again."""
SMALLEST_SHARE: Final = 0.05
"""A share below which no server starts, since its weights and CUDA itself take more."""


def server_share(config: TrainConfig, num_ranks: int, gpu_bytes: int) -> float | None:
    """Return the share for ``--gpu-memory-utilization``, in hundredths.

    A server that sleeps while the trainer trains may have what the trainer does not hold between steps. Another one may
    have what is left at the trainer's peak. Neither gets more than it can use, because memory is mapped anew each time
    that a server wakes: on one H200 this took 0.65 s for 132 GiB.

    Args:
        config: the run's configuration, with a number of tokens per micro-batch.
        gpu_bytes: total memory of the GPU; 0 for a CPU.

    Returns:
        the share, 0 if nothing is left; None if the configuration does not say that servers use the trainer's GPU, or
        if the planner cannot read the model's sizes.
    """
    engine = config.engine
    if not gpu_bytes or not (engine.sleep or engine.weight_sync == "ipc"):
        return None
    with suppress(UsageError, LookupError, TypeError, ArithmeticError):  # of an architecture it cannot count
        sizes, weights = plan_model(config.model)
        plan = footprint(config, sizes, weights, num_ranks, on_gpu=True)
        resting = plan.weights + plan.optimizer + plan.reference + plan.served_copy
        # weights that change before the next update are copied to be sent
        sent = BFLOAT16 * weights.own if engine.weight_sync == "ipc" and not plan.served_copy else 0
        taken = (resting if engine.sleep else plan.total) + sent + MARGIN
        used = BFLOAT16 * weights.own + NUM_CACHES * engine_cache(config, sizes) + SERVER_OWN
        left = math.floor(100 * (1 - taken / gpu_bytes))
        return max(0, min(left, math.ceil(100 * used / gpu_bytes))) / 100
    return None
