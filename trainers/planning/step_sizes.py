"""Largest sizes of a step, and a note on how long a CPU takes to sample it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agentgym.registry import turn_limit
from agentgym.render.families import family_of
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.planning.footprint import longest_row

CPU_PACE: Final = 1.6e10
"""Weights times sampled tokens a second. SmolLM2-135M sampled 119 tokens a second, 32 rows at a time, in float32 on one
thread of an AMD EPYC (2026-11-27, by hand)."""
LONG_S: Final = 240.0
"""Seconds for the rollouts of a step, from which on a note says how to make them quicker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """The largest numbers of one step; of a mixture, those of its largest environment."""

    rollouts: int
    tokens: int | None
    """Tokens of all training rows; None if turns are not limited."""
    sampled: int | None
    """Sampled tokens among them."""


def step_sizes(config: TrainConfig) -> StepSizes:
    """Return a step's rollouts, and their tokens if every episode is at its limits."""
    found = []
    for own in config.by_env.values():
        num_rollouts = config.groups_per_step * own.group.group_size
        num_rows, num_turns = _rows_and_turns(own)
        tokens = None if num_rows is None else num_rollouts * num_rows * longest_row(own)
        longest = min(own.sampling.max_completion_tokens, own.model.max_context_tokens)
        sampled = None if num_turns is None else num_rollouts * num_turns * longest
        if sampled is not None and tokens is not None:
            sampled = min(sampled, tokens)
        found.append((num_rollouts, tokens, sampled))
    rollouts, tokens_of, sampled_of = zip(*found, strict=True)
    return StepSizes(rollouts=max(rollouts), tokens=_greatest(tokens_of), sampled=_greatest(sampled_of))


def pace_note(config: TrainConfig, num_parameters: int, *, on_gpu: bool, chat_template: str = "") -> str:
    """Return a note that a CPU samples a step for minutes, and how to make it quicker; empty if it does not.

    Args:
        chat_template: the model's, if it is known. It may write calls in the compact syntax by itself.
    """
    sampled = step_sizes(config).sampled
    if on_gpu or not config.engine.traits.is_embedded or sampled is None:
        return ""
    seconds = sampled * num_parameters / CPU_PACE
    if seconds < LONG_S:
        return ""
    longest = max(own.sampling.max_new_tokens for own in config.by_env.values())
    ways = [
        f"a smaller sampling.max_new_tokens ({longest})",
        *([] if _is_compact(config.model, chat_template) else ["calls in one line (model.codec=compact)"]),
        "fewer episodes (groups_per_step, group.group_size)",
        "a GPU",
    ]
    taken = f"{seconds / 60:.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} hours"
    return (
        f"note: a step may sample {sampled:,} tokens, for which a CPU takes some {taken} with a model of this size; "
        f"quicker are {', '.join(ways[:-1])} or {ways[-1]}"
    )


def _is_compact(model: ModelConfig, chat_template: str) -> bool:
    if model.codec != "auto":
        return model.codec == "compact"
    family = family_of(chat_template)
    return family.format == "compact" if family else not model.path  # a model from scratch writes compact calls


def _greatest(values: Sequence[int | None]) -> int | None:
    """Return the largest number, or None if one has no limit."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _rows_and_turns(config: TrainConfig) -> tuple[int | None, int | None]:
    """Return the largest numbers of training rows and turns of an episode; None if they are not limited."""
    num_turns = turn_limit(config.env.id, config.env.kwargs)
    num_rows = {"full": 1, "window": num_turns, "summarise": config.context.max_summaries + 1}[config.context.policy]
    return num_rows, num_turns
