"""ECHO: the policy also learns to predict what the environment answers.

Source: "ECHO: Terminal Agents Learn World Models for Free" (the loss is that of RL plus a weight times the
cross-entropy of the environment's tokens). All episodes of a step teach it, failures and groups without credit too. The
paper takes both losses from one forward pass; here the second is a pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.render.chat import ChatRenderer
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.phases.added_loss import AddedLoss
from agentgym.trainers.sft.rows import reply_rows
from agentgym.trainers.types import CausalLM
from agentgym.types import TrajectoryGroup


def echo_of(
    groups: Sequence[TrajectoryGroup], config: LossConfig, model: CausalLM, renderer: ChatRenderer
) -> AddedLoss:
    """Return the added loss of a step's replies; each optimizer step learns from all of them."""
    rows = reply_rows([member for group in groups for member in group.valid], renderer)
    return AddedLoss(config, model, lambda number: rows, config.echo, "echo")
