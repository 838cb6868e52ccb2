"""Checks that a start makes before the weights are read, for a dry run: all that the files on this machine allow."""

from __future__ import annotations

from agentgym.errors import UsageError
from agentgym.registry import find, is_remote, make
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.losses.trial import try_out
from agentgym.trainers.models.model import end_ids, load_tokenizer
from agentgym.trainers.models.sources import cached_model
from agentgym.trainers.run.env import RunEnv


def rehearse(config: TrainConfig) -> list[str]:
    """Run the start's checks of components, environments and prompts; return their notes.

    Environments that cannot be made on this machine, or which a server plays, are left out. So are prompts of a model
    that is not on this machine.

    Raises:
        UsageError: an environment, the chat template or the model cannot be used.
        ConfigError: a component fails its trial, or the configuration does not fit an environment.
    """
    try_out(config.loss)
    notes: list[str] = []
    path = config.model.path
    has_model = bool(path) and cached_model(path) is not None
    renderer = ChatRenderer(load_tokenizer(path), config.model.chat, end_ids(path)) if has_model else None
    if renderer is not None:
        notes += renderer.notes
    for name, own in config.by_env.items():
        if is_remote(own.env.kwargs) or not find(own.env.id).is_available:
            continue
        try:
            make(own.env.id, **own.env.kwargs).close()
        except UsageError as error:  # data that only the machine of the run has, say
            notes.append(f"{own.env.id} cannot be made here, so its start was not tried: {error}")
            continue
        env = RunEnv(name, own, lambda make_env: EnvPool(make_env, 1))
        try:
            notes += env.notes
            if renderer is not None:
                env.check_prompts(renderer)
        finally:
            env.close_probe()
    return notes
