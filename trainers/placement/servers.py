"""The clients of a run's vLLM servers, and the channel by which ranks give these their weights."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from agentgym.engine import Engine
from agentgym.errors import ConfigError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.devices import gpu_bytes
from agentgym.trainers.engines.facts import facts_of, model_facts, witness
from agentgym.trainers.engines.vllm.gathered import GatheredWeights
from agentgym.trainers.engines.vllm.proof import DTYPES
from agentgym.trainers.engines.vllm.server import ReadOnlyServersEngine, ServersEngine, VllmEngine
from agentgym.trainers.engines.vllm.transfer import IpcChannel, NcclChannel, TransferChannel, TransferSync, gpu_id
from agentgym.trainers.engines.vllm.weights import FolderSync, Handover, LoraSync, Published, WeightSync, probe_ids
from agentgym.trainers.kinds import TRANSFERS
from agentgym.trainers.models.model import plain_tensors, save_model, save_weights
from agentgym.trainers.models.vision import Vision, vision_of
from agentgym.trainers.placement.channels import EngineChannel, Say, TrainedModel, on_rank
from agentgym.trainers.planning.servers import MODEL_FOLDER, serve_commands, server_share, servers_note
from agentgym.trainers.types import CausalLM, ModelShape


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
    longest = config.model.max_context_tokens
    return VllmEngine(config.engine, sync, facts, max_context_tokens=longest, vision=vision_of(model))


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


def build_guest(
    config: TrainConfig, shape: ModelShape, rank: int, vision: Vision | None = None
) -> ReadOnlyServersEngine:
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
        vision=vision,
    )


class ServersChannel(EngineChannel):
    """The channel to vLLM servers: one rank gives them their weights, or each its share.

    Args:
        engine: the client of the servers; None on a rank that does not sample.
    """

    def __init__(self, engine: ServersEngine | None, trained: TrainedModel) -> None:
        super().__init__(engine, trained)
        self._guest, self._trained, self._roles = engine, trained, trained.roles
        self._sender = engine if isinstance(engine, VllmEngine) else None
        """The engine of a rank that gives servers their weights."""
        self._gathered: GatheredWeights | None = None
        if self._sender is not None and self._roles.share_servers:
            self._sender.share(self._ranks.rank, self._ranks.count if self._roles.all_send else 1)

    async def connect(self, say: Say) -> None:
        if self._sender is None:
            return
        say = say if self._ranks.is_main else on_rank(self._ranks.rank)
        for note in self._starting() if self._ranks.is_main else ():
            say(note)
        await self._sender.connect(say)

    async def publish(self, version: int) -> None:
        ranks, roles = self._ranks, self._roles
        if not roles.share_servers:
            if roles.gather:
                known_dtypes = frozenset() if self._sender is None else self._sender.dtypes
                self._gather(version, frozenset().union(*ranks.gathered(known_dtypes)))
            await super().publish(version)
            return
        engine, sender = self._guest, self._sender
        assert engine is not None, "all ranks sample from shared servers"

        async def publish() -> Published:
            assert sender is not None, "the first rank gives servers their weights"
            return sender.publish(version, dtypes)

        known = await ranks.from_all(engine.hold)
        dtypes: frozenset[str] = frozenset().union(*(one.dtypes for one in known))
        if roles.gather:
            self._gather(version, dtypes)
        published = await ranks.from_main(publish)
        is_patient = not any(one.num_ready for one in known)
        given = await ranks.from_all(lambda: engine.give(published, is_patient=is_patient))
        if not any(given) and not is_patient:  # those that were ready are lost: wait until one is back
            given = await ranks.from_all(lambda: engine.give(published, is_patient=True))
        engine.adopt(Handover(published=published, servers={url: one for part in given for url, one in part.items()}))

    async def sleep(self) -> None:
        if self._config.engine.sleep and self._sender is not None:
            await self._sender.rest()

    # ---------------------------------------------------------------------------------------------------- private

    def _starting(self) -> Iterator[str]:
        """Start the servers, or yield what users must do for it."""
        config, trained, num_gpu_bytes = self._config, self._trained, gpu_bytes()
        source, num_ranks = config.model.path, self._ranks.count
        if not source:
            folder = weight_dir(config, trained.run_dir) / MODEL_FOLDER
            if not folder.exists():
                assert trained.served is not None, "the first rank has the whole model"
                folder.parent.mkdir(parents=True, exist_ok=True)
                save_model(trained.served, trained.tokenizer, folder)
            source = str(folder)
        if note := files_note(config, on_gpu=num_gpu_bytes > 0):
            yield note
        if trained.start_servers(source):
            return
        share = server_share(config, num_ranks, num_gpu_bytes)
        if note := servers_note(config, share, num_gpu_bytes):
            yield note
        num_gpus = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
        commands = serve_commands(source, config, share, num_ranks, num_gpus)
        for url, command in zip(config.engine.urls, commands, strict=True):
            yield f"vLLM server {url}, start it by: {command}"

    def _gather(self, version: int, dtypes: Collection[str]) -> None:
        """Gather the weights that ranks write or send for servers. All ranks must call this.

        It comes after :meth:`connect`, to which a new model's weights are still in the first rank's memory.
        """
        model, sender = self._trained.model, self._sender
        if self._gathered is None:
            is_sender, weight_sync = self._ranks.is_main or self._roles.all_send, self._config.engine.weight_sync
            self._gathered = GatheredWeights(model, self._trained.served, weight_sync, is_sender=is_sender)
            if sender is not None:
                sender.borrow(self._gathered)
        if sender is not None:
            sender.forget()
        self._gathered.gather(probe_ids(version, facts_of(model.config).vocab_size), dtypes or DTYPES)


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


def weight_dir(config: TrainConfig, run_dir: Path) -> Path:
    """Return the folder through which weights reach the servers."""
    return Path(config.engine.weight_dir) if config.engine.weight_dir else run_dir / "weights"
