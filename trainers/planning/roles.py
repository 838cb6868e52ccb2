"""Checks of a run's roles against its environments, and the memory that they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentgym.errors import ConfigError
from agentgym.rollout.roles import OPPONENT
from agentgym.trainers.config.roles import POLICY, RoleConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.names import check_name
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.planning.footprint import FLOAT32, engine_cache, footprint

Parts = tuple[str, ...]


def check_parts(config: TrainConfig, envs: Mapping[str, tuple[Parts, Parts]]) -> None:
    """Check the names of frozen roles, that each role has a part, and that the policy keeps one in each environment.

    Models of the hub are not asked for.

    Args:
        config: the configuration of the run.
        envs: by id of an environment, the names of its sub-agents or players in training and in evaluations.

    Raises:
        ConfigError, UsageError: a role cannot play; the message names it and the parts that there are.
    """
    roles = {name: role for name, role in config.roles.items() if name != POLICY}
    for name, role in roles.items():
        if not role.trained and role.past is None:
            check_name(role.policy)
        for part in role.parts(name):
            if not any(part in training or part in evaluation for training, evaluation in envs.values()):
                known = "; ".join(f"{env_id} has {', '.join(parts) or 'none'}" for env_id, (parts, _) in envs.items())
                raise ConfigError(
                    f"roles.{name}.plays: no environment has a sub-agent or player {part!r}: {known}; a game of two "
                    "sides needs env.kwargs.opponent=self"
                )
    for env_id, (parts, _) in envs.items():
        players = set(parts) - {OPPONENT} if OPPONENT in parts else set()
        if players and config.parts_of_roles.issuperset(players):
            raise ConfigError(
                f"roles: they play all of {', '.join(sorted(players))} of {env_id}; leave one to the policy"
            )


def role_models(config: TrainConfig) -> tuple[str, ...]:
    """Return the sources of the models that roles bring, each once, in the order of the roles."""
    found = []
    for name, role in config.roles.items():
        if role.trained:
            found.append(str(role.model.get("path", "")))
        elif name != POLICY and role.past is None:
            found.append(check_name(role.policy))
    return tuple(dict.fromkeys(filter(None, found)))


def role_bytes(config: TrainConfig, num_ranks: int, *, on_gpu: bool) -> int:
    """Return the bytes of all roles' models beside the policy: weights, training states and engines.

    Activations are those of one model at a time, so they are counted with the policy's.
    """
    return sum(
        _bytes_of(config, name, role, num_ranks, on_gpu=on_gpu) for name, role in config.roles.items() if name != POLICY
    )


def _bytes_of(config: TrainConfig, name: str, role: RoleConfig, num_ranks: int, *, on_gpu: bool) -> int:
    if not role.trained and role.past is None:
        if not role.has_model:
            return 0
        longest = role.model.get("max_context_tokens") or 4096
        frozen = replace(config, roles={}, model=ModelConfig(path=role.policy, max_context_tokens=longest))
        sizes, weights = plan_model(frozen.model)
        return FLOAT32 * weights.all + engine_cache(frozen, sizes, num_ranks, on_gpu=on_gpu)
    own = config.for_role(name) if role.trained else replace(config, roles={})
    sizes, weights = plan_model(own.model, num_ranks)
    part = footprint(own, sizes, weights, num_ranks, on_gpu=on_gpu)
    # under adapters a copy of the policy shares all other weights with it
    is_shared = not role.model and own.model.lora.rank > 0
    kept = FLOAT32 * weights.trained if is_shared else part.weights
    if role.past is not None and num_ranks > 1:  # each rank that samples has a whole copy
        kept = FLOAT32 * weights.all
    of_training = part.gradients + part.optimizer + part.reference if role.trained else 0
    return kept + of_training + part.engine_weights + part.kv_cache
