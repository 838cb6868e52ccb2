"""Combinations of settings that do not work when several ranks train one model."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import ConfigError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.kinds import TRANSFERS


def check_ranks(config: TrainConfig, num_ranks: int) -> None:
    """Check that the configuration works with this number of ranks.

    Raises:
        ConfigError: it does not; the message names the setting and what to do.
    """
    if num_ranks == 1:
        return
    if config.sft.trainer == "trl" and config.sft.has_phase:
        raise ConfigError(f"{num_ranks} ranks cannot train with sft.trainer=trl: train with one rank")
    for name, optimizer in {"optimizer": config.optimizer, "sft.optimizer": config.sft.optimizer}.items():
        if optimizer.kind == "muon":  # its update needs whole matrices
            raise ConfigError(f"{num_ranks} ranks cannot train with {name}.kind=muon: set {name}.kind=adamw")
    if num_ranks % config.ranks.num_shards(num_ranks):
        raise ConfigError(f"ranks.shard_size={config.ranks.shard_size} does not divide {num_ranks} ranks")
    if (reason := _why_rows_stay_whole(config, num_ranks)) and config.ranks.context_size > 1:
        raise ConfigError(f"ranks.context_size={config.ranks.context_size} {reason}: set ranks.context_size=1")
    if config.loss.compile:
        raise ConfigError(f"{num_ranks} ranks cannot train with loss.compile=true, which was tried on one alone")
    if config.ranks.rollouts == "all" and (reasons := _why_one_plays(config, num_ranks)):
        raise ConfigError(f"ranks.rollouts=all cannot go with {'; '.join(reasons)}: set ranks.rollouts=auto")


def _why_rows_stay_whole(config: TrainConfig, num_ranks: int) -> str:
    if num_ranks % config.ranks.context_size:
        return f"does not divide {num_ranks} ranks"
    if config.loss.layout == "packed":
        return "splits rows, which loss.layout=packed joins"
    part = config.loss.recrediting
    return f"cannot go with the baseline of {part}, which scores rows by itself" if part else ""


def all_ranks_sample(config: TrainConfig, num_ranks: int) -> bool:
    """Return True if each rank samples its share of the episodes, False if the first rank samples all of them."""
    return num_ranks > 1 and config.ranks.rollouts != "first" and not _why_one_plays(config, num_ranks)


def episodes_of_rank(config: TrainConfig, num_ranks: int) -> int:
    """Return the most episodes that a rank which samples plays at the same time, in training and in evaluations.

    Example:
        >>> from agentgym.trainers.recipes import load_recipe
        >>> config = load_recipe("webshop-qwen2.5-7b-fsdp")
        >>> [episodes_of_rank(config, num_ranks) for num_ranks in (1, 8)]
        [64, 8]
    """
    return -(-config.group.num_envs // num_ranks) if all_ranks_sample(config, num_ranks) else config.group.num_envs


def do_all_have_engines(config: TrainConfig, num_ranks: int) -> bool:
    """Return True if each rank samples its share of the episodes from an embedded engine of its own."""
    return config.engine.traits.is_embedded and not config.cluster.plays and all_ranks_sample(config, num_ranks)


def do_share_servers(config: TrainConfig, num_ranks: int) -> bool:
    """Return True if each rank samples its share of the episodes from vLLM servers."""
    return config.engine.traits.is_served and not config.cluster.plays and all_ranks_sample(config, num_ranks)


def do_all_send(config: TrainConfig, num_ranks: int) -> bool:
    """Return True if each rank gives its share of the vLLM servers their weights, False if the first one gives to all.

    From GPU to GPU each rank has a connection of its own. Files are there for all servers once they are written.
    """
    return config.engine.weight_sync in TRANSFERS and do_share_servers(config, num_ranks)


def do_gather(config: TrainConfig, num_ranks: int) -> bool:
    """Return True if the sharded model's weights are gathered for vLLM servers tensor by tensor, without a whole model.

    Matrices in 4 bits are not cut up: each rank has all of them, and a copy is small.
    """
    is_served = config.engine.traits.is_served and not config.cluster.plays
    return num_ranks > 1 and is_served and config.model.lora.quantize == "none"


def do_lend(config: TrainConfig, num_ranks: int, *, on_gpu: bool) -> bool:
    """Return True if engines read the sharded model's weights part by part, so that no rank needs a whole copy.

    They do if all ranks play, and if their engines have weights of their own and agentgym's forward pass.
    """
    engine = config.engine
    is_own = engine.traits.is_embedded and engine.forward != "transformers" and engine.has_own_weights(on_gpu=on_gpu)
    is_here = is_own and not config.cluster.plays
    return is_here and config.model.lora.quantize == "none" and all_ranks_sample(config, num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The parts of a run's ranks: which of them sample, and how trained weights reach their engines."""

    all_play: bool
    share_servers: bool
    all_send: bool
    gather: bool
    lend: bool
    has_own_engines: bool
    """True if ranks that play sample by themselves, and not by the engines of a Ray cluster."""

    @classmethod
    def of(cls, config: TrainConfig, num_ranks: int, *, on_gpu: bool) -> Roles:
        """Return the roles for a number of ranks, as the functions of this module give them."""
        return cls(
            all_play=all_ranks_sample(config, num_ranks),
            share_servers=do_share_servers(config, num_ranks),
            all_send=do_all_send(config, num_ranks),
            gather=do_gather(config, num_ranks),
            lend=do_lend(config, num_ranks, on_gpu=on_gpu),
            has_own_engines=not config.cluster.plays,
        )

    def loads(self, *, is_main: bool) -> bool:
        """Return True on a rank that needs the whole model, to sample from, to cut it up, or to give it to servers."""
        needs_model = not self.lend and (not self.share_servers or (self.all_send and not self.gather))
        return is_main or (self.all_play and self.has_own_engines and needs_model)


def how_shared(config: TrainConfig, num_ranks: int) -> str:
    """Say which ranks play, and what each receives of the episodes."""
    where = " on the Ray cluster" if config.cluster.plays else ""
    who = f"each plays 1/{num_ranks} of a step's groups{where}"
    if not all_ranks_sample(config, num_ranks):
        forced = config.ranks.rollouts == "first"
        why = ["ranks.rollouts=first"] if forced else _why_one_plays(config, num_ranks)
        who = f"the first one plays ({', '.join(why)})"
    return f"{num_ranks} ranks: {who}; each receives the rows that it trains"


def _why_one_plays(config: TrainConfig, num_ranks: int) -> list[str]:
    # whether several of a user's engine may run at a time, only the user knows
    is_open = not config.engine.traits.is_shared and config.ranks.rollouts != "all"
    return [
        *([f"engine.kind={config.engine.kind}"] if is_open else []),
        *(
            [f"pipeline.mode=async and groups_per_step={config.groups_per_step}, which {num_ranks} ranks do not divide"]
            if config.pipeline.mode == "async" and config.groups_per_step % num_ranks
            else []
        ),
    ]
