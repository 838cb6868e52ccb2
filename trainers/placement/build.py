"""Construction of the engine that a run's configuration names, over the run's model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentgym.engine import Engine
from agentgym.errors import ConfigError, blamed
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.devices import gpu_bytes
from agentgym.trainers.engines.component import ENGINES
from agentgym.trainers.engines.facts import engine_dtype, facts_of, model_facts, witness
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.torch.weights import Present
from agentgym.trainers.engines.vllm.server import ReadOnlyServersEngine, VllmEngine
from agentgym.trainers.engines.vllm.transfer import IpcChannel, NcclChannel, TransferChannel, TransferSync, gpu_id
from agentgym.trainers.engines.vllm.weights import FolderSync, LoraSync, WeightSync
from agentgym.trainers.kinds import TRANSFERS
from agentgym.trainers.models.model import plain_tensors, save_model, save_weights
from agentgym.trainers.models.model_shapes import check_positions
from agentgym.trainers.models.processor import multiplies_bfloat16
from agentgym.trainers.planning.servers import MODEL_FOLDER, serve_commands, server_share, servers_note
from agentgym.trainers.planning.step_sizes import pace_note
from agentgym.trainers.types import CausalLM, ModelShape, Tokenizer

_MIN_BFLOAT16_PARAMETERS = 50_000_000
"""Parameters from which on a model is suggested bfloat16: 135 million took 0.7 of the time, 0.8 million took longer."""


def build_engine(config: TrainConfig, model: CausalLM, run_dir: Path, num_episodes: int | None = None) -> Engine:
    """Create the engine that ``engine.kind`` names, which samples from ``model``. vLLM servers are not contacted yet.

    Args:
        num_episodes: the most that this rank plays at the same time; None: ``group.num_envs``.

    Raises:
        ConfigError: the engine does not support the configuration, or a user's function failed or did not return one.
    """
    component = ENGINES[config.engine.kind]
    num_episodes = num_episodes or config.group.num_envs
    values = {"config": config, "model": model, "run_dir": run_dir, "num_episodes": num_episodes}
    what = f"engine.kind={config.engine.kind}"
    with blamed(what) if component.is_own else nullcontext():
        made: Engine = component.call(**component.arguments(values, config.engine.own_options))
        # by hasattr, since isinstance overlooks attributes of a __getattr__ from Python 3.12 on; reading them may fail
        missing = [name for name in vars(Engine) if not name.startswith("_") and not hasattr(made, name)]
    if missing:
        raise ConfigError(
            f"{what} made a {type(made).__name__}, which lacks {', '.join(missing)} of agentgym.engine.Engine"
        )
    return made


def build_guest(config: TrainConfig, shape: ModelShape, rank: int) -> ReadOnlyServersEngine:
    """Create the engine of a rank that samples from vLLM servers to which other ranks give the weights.

    Each rank has the servers in another order, since a server is chosen in order if loads are equal.
    """
    first = rank % len(config.engine.urls)
    urls = (*config.engine.urls[first:], *config.engine.urls[:first])
    return ReadOnlyServersEngine(
        replace(config.engine, urls=urls),
        facts_of(shape),
        max_context_tokens=config.model.max_context_tokens,
        say=on_rank(rank),
    )


def on_rank(rank: int) -> Callable[[str], None]:
    """Return a function that prints what another rank than the first has to say."""
    return lambda line: print(f"rank {rank}: {line}", file=sys.stderr, flush=True)


def servers(config: TrainConfig, model: CausalLM, run_dir: Path) -> Engine:
    """Create the client of the vLLM servers in the configuration.

    Raises:
        ConfigError: ``engine.weight_sync`` does not fit the model or its device.
    """
    facts = model_facts(model)
    root = weight_dir(config, run_dir)
    sync: WeightSync
    if config.engine.weight_sync in TRANSFERS:
        channel = make_channel(config.engine.weight_sync, model.device)
        is_trained = any(parameter.requires_grad for parameter in model.parameters())
        sync = TransferSync(
            lambda: plain_tensors(model), channel, witness(model), facts.vocab_size, are_kept=not is_trained
        )
    elif config.engine.weight_sync == "lora":
        save = lambda folder, dtypes: model.save_pretrained(folder)  # noqa: E731
        sync = LoraSync(root, save, witness(model, has_adapters=True), facts.vocab_size)
    else:
        sync = FolderSync(root, partial(save_weights, model), witness(model), facts.vocab_size)
    return VllmEngine(config.engine, sync, facts, max_context_tokens=config.model.max_context_tokens)


def make_channel(weight_sync: str, device: torch.device) -> TransferChannel:
    """Return the channel by which weights reach servers from GPU to GPU.

    Raises:
        ConfigError: the weights are not on a GPU.
    """
    if device.type != "cuda":
        raise ConfigError(
            f"engine.weight_sync={weight_sync} sends weights from GPU to GPU, and the trainer's model is on the "
            f"{device.type}; through files: engine.weight_sync=folder"
        )
    return IpcChannel(gpu_id(device)) if weight_sync == "ipc" else NcclChannel()


def torch_engine(config: TrainConfig, model: CausalLM, num_episodes: int | None = None) -> TorchEngine:
    """Create the embedded engine over ``model``.

    Args:
        num_episodes: the most that it samples for at the same time; None: ``group.num_envs``.
    """
    return TorchEngine(model, **_options(config, model, num_episodes))


def borrowing_engine(config: TrainConfig, model: CausalLM, present: Present, num_episodes: int) -> TorchEngine:
    """Create the embedded engine over a model whose parts have their weights only in the context of ``present``."""
    return TorchEngine(model, **_options(config, model, num_episodes), present=present)


def _options(config: TrainConfig, model: CausalLM, num_episodes: int | None) -> dict[str, Any]:
    engine = config.engine
    num_episodes = num_episodes or config.group.num_envs
    return {
        # sessions of a dead worker's episodes stay until others need their slots
        "num_slots": num_episodes * (2 if config.cluster.plays and engine.batch_invariant else 1),
        "max_context_tokens": config.model.max_context_tokens,
        "dtype": engine_dtype(engine, model.device),
        "batch_invariant": engine.batch_invariant,
        "fixed_decode": None if engine.decode == "auto" else engine.decode == "fixed",
        "compile_layers": None if engine.compile == "auto" else engine.compile,
        "forward": engine.forward,
    }


def note_of(engine: object, model: CausalLM) -> str:
    """Return a note about an engine that samples more slowly than it should; empty for others.

    Args:
        engine: the engine.
        model: the model that it samples from.
    """
    if not isinstance(engine, TorchEngine):
        return ""
    if engine.compile_error:
        return (
            f"note: the engine's layers cannot be compiled here, so it samples more slowly ({engine.compile_error}); "
            "engine.compile=false does not try"
        )
    if engine.forward_kind == "own":
        return ""
    slow = {"batched": "in batches", "row by row": "one row at a time, which is slow"}[engine.forward_kind]
    return f"note: the embedded engine samples from {model.config.model_type} by transformers' own forward, {slow}"


def precision_note(config: TrainConfig, model: CausalLM) -> str:
    """Return a note that a run would be faster in bfloat16 on this processor; empty if not, or if a choice is made."""
    is_open = config.engine.dtype == "auto" and config.loss.precision == "auto"
    if not is_open or model.device.type != "cpu" or not config.engine.traits.is_embedded or not multiplies_bfloat16():
        return ""
    if sum(parameter.numel() for parameter in model.parameters()) < _MIN_BFLOAT16_PARAMETERS:
        return ""
    return (
        "note: this processor has instructions for bfloat16; a model of this size takes about 0.7 of the time with "
        "engine.dtype=bfloat16 loss.precision=bfloat16"
    )


def engine_notes(engine: Engine, config: TrainConfig, model: CausalLM, tokenizer: Tokenizer) -> list[str]:
    """Return notes on an engine that samples more slowly than it could, on the pace of steps, and on a long context.

    Args:
        model: the trained model; the one that is sampled from may have no weights yet.
    """
    num_parameters, on_gpu = sum(parameter.numel() for parameter in model.parameters()), model.device.type == "cuda"
    pace = pace_note(config, num_parameters, on_gpu=on_gpu, chat_template=tokenizer.chat_template or "")
    long = check_positions(model.config.to_dict(), config.model.max_context_tokens)
    return [note for note in (note_of(engine, model), precision_note(config, model), pace, long) if note]


def files_note(config: TrainConfig, *, on_gpu: bool) -> str:
    """Return a note that weights reach the servers faster without files; empty for a trainer without a GPU."""
    if config.engine.weight_sync != "folder" or not on_gpu:
        return ""
    ways = [
        *(["engine.weight_sync=lora, adapters alone"] if config.model.lora.rank else []),
        *([] if config.cluster.address else ["engine.weight_sync=ipc, with a server on this GPU"]),
        "engine.weight_sync=nccl, with servers on other GPUs of vLLM 0.32 or newer",
    ]
    return f"note: weights reach the servers through files, which takes seconds per GiB; faster are {'; '.join(ways)}"


async def connect_engine(
    engine: Engine,
    config: TrainConfig,
    model: CausalLM,
    tokenizer: Tokenizer,
    run_dir: Path,
    say: Callable[[str], None],
    num_ranks: int = 1,
    start_servers: Callable[[str], bool] = lambda source: False,
) -> None:
    """Print how to start vLLM servers, and wait for the first one; another engine is ready already.

    Args:
        start_servers: starts servers of a model, where Ray does so; returns False where users do.

    Raises:
        ConfigError: no server was ready in time, or one serves another model.
    """
    if not isinstance(engine, VllmEngine):
        return
    source = config.model.path
    if not source:
        folder = weight_dir(config, run_dir) / MODEL_FOLDER
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            save_model(model, tokenizer, folder)
        source = str(folder)
    if note := files_note(config, on_gpu=gpu_bytes() > 0):
        say(note)
    if start_servers(source):
        await engine.connect(say)
        return
    share = server_share(config, num_ranks, gpu_bytes())
    if note := servers_note(config, share, gpu_bytes()):
        say(note)
    num_gpus = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    commands = serve_commands(source, config, share, num_ranks, num_gpus)
    for url, command in zip(config.engine.urls, commands, strict=True):
        say(f"vLLM server {url}, start it by: {command}")
    await engine.connect(say)


def weight_dir(config: TrainConfig, run_dir: Path) -> Path:
    """Return the folder through which weights reach the servers."""
    return Path(config.engine.weight_dir) if config.engine.weight_dir else run_dir / "weights"
