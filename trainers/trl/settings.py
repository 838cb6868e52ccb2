"""Settings of :class:`~agentgym.trainers.trl.trainer.CreditGRPOTrainer` beyond TRL's own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from agentgym.credit.compose import CreditConfig
from agentgym.errors import ConfigError, check_type
from agentgym.render.config import ChatConfig
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig
from agentgym.settings import Settings

_OUR_ROLLOUTS = "the rollouts are agentgym's"
_OUR_CREDIT = "advantages come from settings.credit"
_WHOLE_DISTRIBUTION = (
    "the trainer's probabilities are those of the whole distribution, and a ratio to those of a cut or changed one "
    "would be wrong"
)
_UNREAD: Mapping[str, tuple[tuple[object, ...], str]] = {
    "use_vllm": ((False,), _OUR_ROLLOUTS),
    "use_transformers_continuous_batching": ((False,), _OUR_ROLLOUTS),
    "generation_kwargs": ((None, {}), _OUR_ROLLOUTS),
    "top_p": ((1.0,), _WHOLE_DISTRIBUTION),
    "top_k": ((0, None), _WHOLE_DISTRIBUTION),
    "min_p": ((None, 0.0), _WHOLE_DISTRIBUTION),
    "repetition_penalty": ((1.0,), _WHOLE_DISTRIBUTION),
    "reward_weights": ((None,), _OUR_CREDIT),
    "scale_rewards": (("group",), _OUR_CREDIT),
    "multi_objective_aggregation": (("sum_then_normalize",), _OUR_CREDIT),
    "mask_truncated_completions": ((False,), f"{_OUR_CREDIT}; there, use the selection overlong_mask"),
    "remove_unused_columns": ((False, None), "it would take the task's columns from the rows"),
    "loss_type": (
        ("dapo", "cispo"),
        "the others divide by rows, or by the tokens of one micro-batch, and rows here are segments of valid episodes, "
        "whose number varies, and padding; vespo takes one ratio for a whole sequence",
    ),
}
"""TRL's arguments that this trainer does not read or support, with the accepted values and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSettings(Settings):
    """Settings of credit and rollouts; the others are in TRL's ``GRPOConfig``.

    From there come the group size (``num_generations``), the largest number of sampled tokens per turn
    (``max_completion_length``) and the temperature.
    """

    credit: CreditConfig = CreditConfig()
    group: GroupConfig = GroupConfig()
    """Settings of groups; ``group_size`` is not read."""
    max_context_tokens: int = 0
    """Largest length of a conversation in tokens; 0 means the model's own limit, at most 4096."""
    chat: ChatConfig = ChatConfig()
    """Settings of the chat template."""
    context: ContextConfig = ContextConfig()
    """Choice of the history in the next prompt."""
    zero_variance_filter: Literal["advantage", "return", "off"] = "advantage"
    """Groups that are left out of training: those with only zero advantages, those with equal returns, or none."""
    record_dir: Path | None = None
    """Folder for records of all rollouts, one file per batch; None stores none."""


class GrpoArguments(Protocol):
    """The fields of TRL's ``GRPOConfig`` that are read by name."""

    importance_sampling_level: str
    world_size: int


def check_args(args: GrpoArguments, settings: CreditSettings) -> None:
    """Check that no argument of TRL would be ignored, or would change the loss in an unexpected way.

    Raises:
        ConfigError: an argument would; the message names it, the reason, and the accepted values. Or ``settings`` is
            something else, such as its ``credit`` alone.
    """
    check_type("settings", settings, CreditSettings, "as in CreditSettings(credit=CreditConfig(estimator='gigpo'))")
    for name, (allowed, why) in _UNREAD.items():
        value = getattr(args, name)
        if value not in allowed:
            shown = " or ".join(repr(choice) for choice in allowed)
            raise ConfigError(f"GRPOConfig({name}={value!r}): {why}; set it to {shown}")
    if args.importance_sampling_level != "token" and settings.credit.granularity != "trajectory":
        raise ConfigError(
            f"GRPOConfig(importance_sampling_level={args.importance_sampling_level!r}): a sequence ratio needs an "
            f"advantage that is constant on its sequence (composition rule 5), and {settings.credit.estimator} gives "
            f"one per {settings.credit.granularity}"
        )
    if "is_faulty" in settings.credit.columns():
        raise ConfigError(
            "credit by capo and right_prefix needs a judge that marks wrong turns, and TRL's trainer has none; "
            "agentgym's own trainer has one (judge.grades)"
        )
    if args.world_size > 1:
        raise ConfigError(
            f"CreditGRPOTrainer runs in one process, and {args.world_size} were started; agentgym's own trainer is the "
            "one for several"
        )
