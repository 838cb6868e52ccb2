"""Checks that the parts of a training run's configuration fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgym.credit import rules
from agentgym.credit.columns import OF_CRITIC
from agentgym.credit.component import credit_table
from agentgym.endpoint.harness import check_context
from agentgym.errors import ConfigError
from agentgym.rollout.strategies.component import BRANCHINGS
from agentgym.trainers.config.columns import check_columns

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig


def check_combinations(config: TrainConfig) -> None:
    """Check that the parts fit each other.

    Raises:
        ConfigError: two parts do not fit; the message says what to change.
    """
    config.context.check_room(config.model.max_context_tokens, config.sampling.max_completion_tokens)
    config.credit.check_group_size(config.pipeline.quorum(config.group).num_needed)
    _check_strategy(config)
    _check_help(config)
    check_columns(config.credit, branches=config.strategy.branches)
    rules.refuse_errors(config.findings())
    if config.engine.sleep and config.pipeline.mode != "sync":
        raise ConfigError(f"engine.sleep needs pipeline.mode=sync: in mode {config.pipeline.mode} servers always play")
    if config.engine.weight_sync == "lora" and not config.model.lora.rank:
        raise ConfigError("engine.weight_sync=lora sends adapters, and there are none; set model.lora.rank")
    if config.engine.weight_sync == "lora" and config.model.vision == "trained":
        raise ConfigError("engine.weight_sync=lora sends adapters, and model.vision=trained changes more: use folder")
    _check_harness(config)
    _check_cluster(config)
    _check_updates(config)
    _check_siblings(config)
    _check_pruning(config)
    _check_teacher(config)
    if config.model.lora.quantize != "none":
        _refuse_for_quantized(config)
    if config.sampling.top_p != 1.0 or config.sampling.top_k != 0:
        raise ConfigError(
            "training samples with top_p=1 and top_k=0: the trainer's probabilities are those of the whole "
            "distribution, and a ratio to those of a cut one would be wrong (composition rule 4)"
        )
    if config.sampling.temperature == 0:
        raise ConfigError("training needs a temperature above 0: greedy episodes of a group would all be the same")


def _check_strategy(config: TrainConfig) -> None:
    least = config.strategy.least
    if least is not None and least < config.group.min_valid:
        raise ConfigError(
            f"strategy.budget.low={least} is less than group.min_valid={config.group.min_valid}: groups of that size "
            "would be dropped; set low to at least that"
        )
    if least is not None and config.pipeline.over_provision:
        raise ConfigError("strategy.budget sets the sizes of groups: leave pipeline.over_provision at 0")
    quorum = config.pipeline.quorum(config.group)
    if config.strategy.branches and quorum.num_needed != quorum.num_started:
        raise ConfigError(
            "strategy.branching waits for the episodes it branches from: leave pipeline.over_provision at 0"
        )
    if config.strategy.runs_program and quorum.num_needed != quorum.num_started:
        raise ConfigError(
            "strategy.program decides which episodes a group has: leave pipeline.over_provision at 0 and "
            "pipeline.complete_with=group_size"
        )
    if config.strategy.scores_copies and config.sampling.temperature != 1:
        raise ConfigError(
            f"strategy.branching={config.strategy.branching.kind} copies tokens into another context, where engines "
            f"score them at temperature 1: set sampling.temperature=1, got {config.sampling.temperature:g}"
        )
    copying = [part.name for part, _ in config.credit.components() if part.needs_copies]
    if copying and not config.strategy.scores_copies:
        able = ", ".join(one.name for one in BRANCHINGS.values() if getattr(one.options, "scores_copies", False))
        raise ConfigError(
            f"credit by {copying[0]} leaves out episodes whose tokens another one copied: set strategy.branching to "
            f"{able}, or leave it out"
        )
    if config.strategy.off_policy and config.loss.mode == "decoupled" and not config.loss.corrections:
        raise ConfigError(
            f"{config.strategy.off_policy} train tokens that the policy would not have sampled so: name one of "
            "loss.corrections, or set loss.mode=bypass"
        )


def _check_help(config: TrainConfig) -> None:
    looks = config.judge.looks_for_faults
    if config.strategy.asks_judge and not looks:
        raise ConfigError("strategy.branching.pivot=judge asks the judge for wrong turns: set judge.grades=faults")
    readers = [part for part, options in config.credit.components() if "is_faulty" in part.columns(options)]
    every = [part.name for part in readers if part.needs_every_fault]
    if every and not (looks and config.judge.grades == "all_faults"):
        raise ConfigError(
            f"credit by {every[0]} needs a judge that marks every wrong turn: set judge.model and "
            "judge.grades=all_faults"
        )
    if readers and not looks:
        raise ConfigError(f"credit by {readers[0].name} changes nothing without wrong turns: set judge.grades=faults")
    if looks and config.judge.grades == "all_faults" and not (readers or config.strategy.asks_judge):
        able = (part for part in credit_table() if not callable(part.column_names) and "is_faulty" in part.column_names)
        named = ", ".join(f"the {part.family} {part.name}" for part in able)
        raise ConfigError(f"judge.grades=all_faults marks wrong turns, which nothing reads: add {named}")
    if config.strategy.shows_rubric and not config.criteria:
        raise ConfigError(
            "strategy.guidance=rubric has no criteria to show: set its text, one criterion per line, or a judge's "
            "judge.rubric"
        )
    if config.strategy.demonstrates and config.loss.mode == "bypass":
        named = "program" if config.strategy.runs_program else "guidance"
        raise ConfigError(
            f"strategy.{named}={getattr(config.strategy, named).kind}: nobody sampled its tokens, so "
            "loss.mode=bypass has no "
            "log-probabilities to compare with: set loss.mode=decoupled"
        )
    for column, is_there, setting in (
        ("demonstrated", config.strategy.demonstrates, 'strategy.guidance={"kind": "demonstration"}'),
        ("replayed", config.strategy.replays, 'strategy.replay={"kind": ...} (agentgym list --strategies)'),
    ):
        named = " and ".join(part.name for part, _ in config.loss.parts() if column in part.read_by_function())
        if named and not is_there:
            none = f"{named} acts on {column} tokens, and there are none"
            raise ConfigError(f"{none}: set {setting}, in a mixture for every environment")


def _check_pruning(config: TrainConfig) -> None:
    if not config.strategy.prunes:
        return
    if config.pipeline.over_provision or config.pipeline.complete_with != "group_size":
        raise ConfigError(
            "strategy.pruning chooses who is played to the end: leave pipeline.over_provision at 0 and "
            "pipeline.complete_with=group_size"
        )
    share, size = getattr(config.strategy.pruning, "keep", 1.0), config.strategy.least or config.group.group_size
    num_kept, needed = round(share * size), max(config.group.min_valid, 2)
    if num_kept < needed:
        raise ConfigError(
            f"strategy.pruning.keep={share:g} leaves {num_kept} of {size} episodes, and a group needs {needed}: "
            "raise it, or the size of groups"
        )


def _check_siblings(config: TrainConfig) -> None:
    if not config.loss.component.compares_siblings:
        return
    if not config.strategy.branches:
        raise ConfigError(
            f"loss.kind={config.loss.kind} compares turns that were sampled in the same state, and no episode "
            'branches: set strategy.branching, as in {"kind": "pairs"}'
        )
    if config.strategy.scores_copies or config.strategy.needs_oracle or config.strategy.reflects:
        raise ConfigError(
            f"loss.kind={config.loss.kind} compares turns of the same prompt: a branch of "
            f"{config.strategy.branching.kind} begins with a correction, a hint or advice; set strategy.branching to "
            "pairs"
        )


def _check_updates(config: TrainConfig) -> None:
    if config.loss.recrediting and config.credit.modulators:
        raise ConfigError(
            f"{config.loss.recrediting}'s baseline needs the returns as they are: leave credit.modulators out"
        )
    whole = [part.name for part, _ in config.loss.parts() if part.needs_full_context]
    if whole and config.context.policy != "full":
        raise ConfigError(f"{whole[0]} of the loss reads whole histories: set context.policy=full")
    if config.sft.mix.weight and config.loss.minibatch == "rows":
        raise ConfigError("sft.mix counts on the same number of updates in each step: set loss.minibatch=episodes")


def _refuse_for_quantized(config: TrainConfig) -> None:
    sends_adapters = config.engine.traits.is_served and config.engine.weight_sync == "lora"
    hindrances = [
        *(["a model from scratch: set model.path"] if not config.model.path else []),
        *(["pipeline.mode=async, whose copy to sample from would not be kept up"] if config.pipeline.bound else []),
        *(["cluster.address, whose engines take plain weights"] if config.cluster.plays else []),
        *(["a critic, whose checkpoints are not made for it"] if {*config.credit.columns()} & {*OF_CRITIC} else []),
        *(
            ["engine.weight_sync=lora, where servers put adapters on other weights: use folder"]
            if sends_adapters
            else []
        ),
    ]
    if hindrances:
        raise ConfigError(f"model.lora.quantize={config.model.lora.quantize} cannot go with {'; '.join(hindrances)}")


def _check_harness(config: TrainConfig) -> None:
    if not config.harness.name:
        return
    config.harness.check()
    check_context(config.context)
    if config.cluster.plays:
        raise ConfigError("harness.name: agents talk to the trainer's own process: set cluster.num_env_workers=0")
    strategy = config.strategy
    if strategy.prunes or strategy.runs_program:
        named = "pruning" if strategy.prunes else "program"
        raise ConfigError(f"harness.name: its episodes cannot pause; leave strategy.{named} out")
    if strategy.branches or strategy.needs_oracle or strategy.teaches or strategy.shows_rubric:
        raise ConfigError("harness.name: its episodes neither branch nor take hints; leave strategy.branching out")


def _check_cluster(config: TrainConfig) -> None:
    if not config.cluster.address:
        if config.engine.traits.is_served and not config.engine.urls:
            raise ConfigError(
                "engine.kind=vllm needs the servers' addresses, as in 'engine.urls=[\"http://127.0.0.1:8000\"]'; "
                "agentgym serve-model MODEL starts one, and cluster.address=auto starts them on a Ray cluster"
            )
        return
    if not config.cluster.plays:
        if config.starts_servers and (config.engine.weight_sync == "ipc" or config.engine.sleep):
            raise ConfigError(
                "engine.weight_sync=ipc and engine.sleep need servers on the trainer's GPU, and Ray gives servers "
                "others: set engine.weight_sync=nccl and engine.sleep=false"
            )
        return
    if not config.engine.traits.runs_on_ray:
        raise ConfigError(
            f"cluster.address starts engines of kind torch and vllm on a Ray cluster, not {config.engine.kind!r}; with "
            "cluster.num_env_workers=0 the trainer's ranks play with their own"
        )
    if config.strategy.teaches:
        raise ConfigError(
            "strategy.guidance=teacher asks its endpoint in the trainer's process, where a Ray cluster plays no "
            "episodes: set cluster.num_env_workers=0"
        )
    if config.engine.urls or config.engine.weight_sync != "folder" or config.engine.sleep:
        raise ConfigError(
            "with cluster.address Ray starts the servers and brings them all weights: leave engine.urls, "
            "engine.weight_sync and engine.sleep as they are by default, or set cluster.num_env_workers=0"
        )


def _check_teacher(config: TrainConfig) -> None:
    unnamed = [part.name for part, options in config.loss.parts() if getattr(options, "teacher", None) == ""]
    if unnamed:
        raise ConfigError(f"loss.regularisers: {unnamed[0]} needs the model to learn from: set its teacher")
    scored = [part.name for part, _ in config.loss.parts() if part.scores]
    if (config.loss.teacher or scored) and not config.loss.weight and config.zero_variance_filter != "off":
        raise ConfigError(
            "loss.weight=0 learns from the teacher alone, but groups whose episodes earn the same are left out: "
            "set zero_variance_filter=off"
        )
