"""A run's vLLM servers: the command that starts one, and the part of the trainer's GPU that is left for it."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from agentgym.errors import UsageError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.config import TRANSFERS
from agentgym.trainers.planning.footprint import BFLOAT16, engine_cache, footprint
from agentgym.trainers.planning.model_shapes import plan_model

MARGIN: Final = 4 << 30
"""Memory for what the plan does not count: CUDA in both processes, kernels' workspaces, and unused blocks."""
SERVER_OWN: Final = 8 << 30
"""Memory of a server beside weights and cache: CUDA, activations of tokens that it reads at once, logits, graphs."""
NUM_CACHES: Final = 4
"""Caches of all episodes at full length that a server may have; more would hold prefixes that nobody needs again."""
MODEL_FOLDER: Final = "model"
"""Folder of a new model in the run's folder of weights, which servers load when they start."""
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


def serve_commands(source: str, config: TrainConfig, share: float | None, num_ranks: int, num_gpus: int) -> list[str]:
    """Return the commands that start the run's servers, in the order of ``engine.urls``.

    Where servers share the GPUs of several ranks, each is on the GPU of the rank that gives it its weights.

    Args:
        share: the result of :func:`server_share`.
        num_gpus: number of GPUs, and of ranks, of a machine.
    """
    are_placed = share is not None and num_ranks > 1
    return [
        (f"CUDA_VISIBLE_DEVICES={index % num_ranks % num_gpus} " if are_placed else "")
        + serve_command(source, url, config, share)
        for index, url in enumerate(config.engine.urls)
    ]


def serve_command(source: str, url: str, config: TrainConfig, share: float | None = None) -> str:
    """Return the command that starts the server of ``url`` with the settings of this run.

    Args:
        share: the result of :func:`server_share`. By default vLLM takes nine tenths of a GPU.
    """
    parts = urlsplit(url)
    words = ["agentgym", "serve-model", source, "--port", str(parts.port or 80)]
    words += ["--max-context-tokens", str(config.model.max_context_tokens)]
    if config.engine.weight_sync == "lora":
        words += ["--lora-rank", str(config.model.lora.rank)]
    if config.engine.weight_sync in TRANSFERS:
        words += ["--weight-transfer", config.engine.weight_sync]
    if config.engine.sleep:
        words += ["--sleep"]
    if share is not None and share >= SMALLEST_SHARE:
        words += ["--", "--gpu-memory-utilization", f"{share:g}"]
    return shlex.join(words)


def no_room_note(config: TrainConfig) -> str:
    """Return a note that a server does not fit the trainer's GPU, and what to do about it."""
    ways = [
        *([] if config.engine.sleep or config.pipeline.mode != "sync" else ["engine.sleep=true"]),
        *([] if config.loss.recompute_activations else ["loss.recompute_activations=true"]),
        *([] if config.model.lora.rank else ["model.lora.rank=16"]),
        "a smaller loss.tokens_per_microbatch",
        "a server on another GPU (engine.weight_sync=nccl or folder)",
    ]
    return f"note: by plan the trainer leaves no memory of its GPU for a vLLM server; try {'; '.join(ways)}"
