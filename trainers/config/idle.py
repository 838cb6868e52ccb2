"""Settings that have no effect, because the part that would read them is off."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from agentgym.credit.columns import OF_CRITIC
from agentgym.trainers.config.columns import needed_columns

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig

NORMED = "seq-mean-token-sum-norm"
_OF_ADAPTERS = ("alpha", "target_modules")
_OF_SCRATCH = (
    *("hidden_size", "num_layers", "head_dim", "intermediate_size"),
    *("vocab_size", "splits", "num_text_episodes", "initializer_range"),
)
_OF_MEANS = ("aggregation", "aggregation_unit", "norm_length")
_OF_CONTEXT = ("num_turns", "window_tokens", "summary_tokens", "max_summaries", "instruction")


def idle_settings(config: TrainConfig) -> tuple[str, ...]:
    """Return a line for each part that is off and was set all the same, with what would turn it on.

    Example:
        >>> from agentgym.trainers.config.overrides import apply_overrides
        >>> from agentgym.trainers.recipes import load_recipe
        >>> idle_settings(apply_overrides(load_recipe("tiny"), ["pipeline.max_staleness=2"]))
        ('pipeline.max_staleness=2 has no effect without pipeline.mode=async',)
    """
    each, sft = config.by_env.values(), config.sft
    reads_values = any({*needed_columns(one.credit)} & {*OF_CRITIC} for one in each)
    has_harness = any(one.harness.name for one in each)
    pairs = config.loss.component.compares_siblings
    cuts_context = any(one.context.policy != "full" for one in each)
    rows: list[tuple[bool, str, object, Collection[str], str]] = [
        (not config.model.path, "model", config.model, _OF_SCRATCH, "a model from scratch (an empty model.path)"),
        (config.model.lora.rank > 0, "model.lora", config.model.lora, _OF_ADAPTERS, "model.lora.rank above 0"),
        (config.pipeline.mode == "async", "pipeline", config.pipeline, ("max_staleness",), "pipeline.mode=async"),
        (bool(config.cluster.address), "cluster", config.cluster, (), "cluster.address"),
        (
            not config.cluster.address or config.cluster.plays or config.engine.traits.is_served,
            "cluster",
            config.cluster,
            ("num_engines", "cpus_per_engine", "gpus_per_engine", "engine_resources", "vllm_flags"),
            "cluster.num_env_workers above 0 or engine.kind=vllm",
        ),
        (any(one.judge.is_on for one in each), "judge", config.judge, (), "judge.model"),
        (has_harness, "harness", config.harness, (), "harness.name"),
        (cuts_context, "context", config.context, _OF_CONTEXT, "context.policy=window or summarise"),
        (reads_values, "critic", config.critic, (), "an estimator that has a critic"),
        (bool(sft.runs or sft.teacher), "sft", sft, ("keep",), "sft.runs or sft.teacher"),
        (sft.mix.weight > 0, "sft.mix", sft.mix, ("schedule", "batch_size"), "sft.mix.weight above 0"),
        (config.is_mixture, "mixture", config.mixture, (), "envs"),
        (
            not pairs,
            "loss",
            config.loss,
            _OF_MEANS,
            f"a loss other than {config.loss.kind}, a mean over pairs of turns",
        ),
        (
            pairs or config.loss.mean != "token-mean",
            "loss",
            config.loss,
            ("aggregation_unit",),
            "a mean over sequences, such as loss.aggregation=seq-mean-token-mean",
        ),
        (pairs or config.loss.mean == NORMED, "loss", config.loss, ("norm_length",), f"loss.aggregation={NORMED}"),
    ]
    idle = tuple(
        f"{', '.join(chosen)} {'has' if len(chosen) == 1 else 'have'} no effect without {switch}"
        for is_on, prefix, part, names, switch in rows
        if not is_on and (chosen := list(_chosen(prefix, part, names)))
    )
    seeds = tuple(_chosen("sampling", config.sampling, ("seed",)))
    return (*idle, *(f"{one} has no effect: the seed of each turn follows from seed" for one in seeds))


def idle_ranks(config: TrainConfig) -> str:
    """Return a note on settings of ranks in a run that has one; empty if there are none."""
    chosen = ", ".join(_chosen("ranks", config.ranks, ()))
    return f"note: {chosen}: this run has one rank; torchrun starts several (docs/scale.md)" if chosen else ""


def _chosen(prefix: str, part: Any, names: Collection[str]) -> Iterator[str]:
    """Return the settings of a part that differ from their defaults, all or those with these names."""
    plain = type(part)()
    for one in fields(part):
        value = getattr(part, one.name)
        if (not names or one.name in names) and value != getattr(plain, one.name):
            shown = f"={value}" if isinstance(value, (bool, int, float, str)) else ""
            yield f"{prefix}.{one.name}{shown}"
