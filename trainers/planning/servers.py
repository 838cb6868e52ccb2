"""A run's vLLM servers: the command that starts one, and the part of the trainer's GPU that is left for it."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from agentgym.errors import UsageError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.kinds import TRANSFERS
from agentgym.trainers.models.decoder import Sizes, WeightCounts
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.planning.footprint import BFLOAT16, engine_cache, footprint

MARGIN: Final = 4 << 30
"""Memory for what the plan does not count: CUDA in both processes, kernels' workspaces, and unused blocks."""
SERVER_OWN: Final = 8 << 30
"""Memory of a server beside weights and cache: CUDA, activations of tokens that it reads at once, logits, graphs."""
NUM_CACHES: Final = 4
"""Caches of all episodes at full length that a server may have; more would hold prefixes that nobody needs again."""
LOCAL: Final = ("127.0.0.1", "localhost", "::1")
MODEL_FOLDER: Final = "model"
"""Folder of a new model in the run's folder of weights, which servers load when they start."""
SMALLEST_OWN: Final = 3 << 30
"""Memory beside weights and one episode's cache without which no server starts."""


def shares_gpu(config: TrainConfig) -> bool:
    """Return True if servers use the trainer's GPU, by the configuration."""
    return config.engine.traits.is_served and (config.engine.sleep or config.engine.weight_sync == "ipc")


def awake_bytes(config: TrainConfig, sizes: Sizes, weights: WeightCounts, num_ranks: int) -> int:
    """Return the memory of a GPU that servers need while its rank trains; 0 if they sleep then, or are elsewhere."""
    if config.engine.sleep or not shares_gpu(config):
        return 0
    used = BFLOAT16 * weights.own + engine_cache(config, sizes, num_ranks) + SERVER_OWN
    return MARGIN + used * _servers_of_a_gpu(config, num_ranks)


def _servers_of_a_gpu(config: TrainConfig, num_ranks: int) -> int:
    return max(1, -(-len(config.engine.urls) // num_ranks))


def server_share(config: TrainConfig, num_ranks: int, gpu_bytes: int) -> float | None:
    """Return the share of each server for ``--gpu-memory-utilization``, in hundredths.

    A server that sleeps while the trainer trains may have what the trainer does not hold between steps. Another one may
    have what is left at the trainer's peak. Neither gets more than it can use, because memory is mapped anew each time
    that a server wakes: on one H200 this took 0.65 s for 132 GiB.

    Args:
        config: the run's configuration, with a number of tokens per micro-batch.
        gpu_bytes: total memory of the GPU; 0 for a CPU.

    Returns:
        the share, 0 if too little is left for one; None if the configuration does not say that servers use the
        trainer's GPU, or if the planner cannot read the model's sizes.
    """
    if not gpu_bytes or not shares_gpu(config):
        return None
    with suppress(UsageError, LookupError, TypeError, ArithmeticError):  # of an architecture it cannot count
        sizes, weights = plan_model(config.model)
        plan = footprint(config, sizes, weights, num_ranks, on_gpu=True)
        resting = plan.weights + plan.optimizer + plan.reference + plan.served_copy
        taken = (resting if config.engine.sleep else plan.total) + MARGIN
        loaded, cache = BFLOAT16 * weights.own, engine_cache(config, sizes, num_ranks)
        left = math.floor(100 * (1 - taken / gpu_bytes) / _servers_of_a_gpu(config, num_ranks))
        share = min(left, math.ceil(100 * (loaded + NUM_CACHES * cache + SERVER_OWN) / gpu_bytes)) / 100
        is_enough = share * gpu_bytes >= loaded + cache // config.group.num_envs + SMALLEST_OWN
        return share if is_enough else 0.0
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
    if parts.hostname not in LOCAL:
        words += ["--host", str(parts.hostname)]
    words += ["--max-context-tokens", str(config.model.max_context_tokens)]
    if config.engine.weight_sync == "lora":
        words += ["--lora-rank", str(config.model.lora.rank)]
    if config.engine.weight_sync in TRANSFERS:
        words += ["--weight-transfer", config.engine.weight_sync]
    if config.engine.sleep:
        words += ["--sleep"]
    if share:
        words += ["--", "--gpu-memory-utilization", f"{share:g}"]
    return shlex.join(words)


def servers_note(config: TrainConfig, share: float | None, gpu_bytes: int) -> str:
    """Return a note on the GPU of servers of this machine; empty if there is nothing to note.

    Args:
        share: the result of :func:`server_share`.
    """
    is_here = any(urlsplit(url).hostname in LOCAL for url in config.engine.urls)
    if share is None and gpu_bytes and is_here and not shares_gpu(config):
        return (
            "note: a vLLM server takes nine tenths of the first GPU that it sees: let it see one on which no rank "
            "trains (CUDA_VISIBLE_DEVICES), or share the trainer's by engine.sleep=true"
        )
    if share != 0.0:
        return ""
    ways = [
        *([] if config.engine.sleep or config.pipeline.mode != "sync" else ["engine.sleep=true"]),
        *([] if config.loss.recompute_activations else ["loss.recompute_activations=true"]),
        *([] if config.model.lora.rank else ["model.lora.rank=16"]),
        "a smaller loss.tokens_per_microbatch",
        "a server on another GPU (engine.weight_sync=nccl or folder)",
    ]
    return f"note: by plan the trainer leaves too little of its GPU for a vLLM server; try {'; '.join(ways)}"
