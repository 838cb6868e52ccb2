"""Checks that a start makes before the weights are read, for a dry run: all that the files on this machine allow."""

from __future__ import annotations

from typing import Final

from agentgym.errors import ConfigError, MachineError, MissingDataError, MissingExtraError, SandboxRefusedError
from agentgym.registry import find, is_remote, make
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.losses.episodes_trial import try_with_episodes
from agentgym.trainers.losses.trial import try_out
from agentgym.trainers.models.model import load_tokenizer
from agentgym.trainers.models.sources import cached_model
from agentgym.trainers.models.vision import why_not_by
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.run.env import RunEnv
from agentgym.types import Task

_OF_THIS_MACHINE: Final = (MachineError, MissingDataError, MissingExtraError, SandboxRefusedError)
"""Errors of an environment that the machine of the run may not have."""


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
    tokenizer = load_tokenizer(path) if has_model else None
    renderer = None if tokenizer is None else renderer_for(path, tokenizer, config.model.chat, route=config.image_route)
    if renderer is not None:
        notes += renderer.notes
    if config.loss.layout == "packed" and (renderer.vision if renderer else config.model.picture_size):
        raise ConfigError("loss.layout=packed takes no images: use loss.layout=prefix or rows (docs/vision.md)")
    if config.model.vision == "trained" and (why := _why_text_only(config, renderer)):
        raise ConfigError(f"model.vision=trained: {why} (docs/vision.md)")
    task: Task | None = None
    for name, own in config.by_env.items():
        if is_remote(own.env.kwargs) or not find(own.env.id).is_available:
            continue
        try:
            make(own.env.id, **own.env.kwargs).close()
        except _OF_THIS_MACHINE as error:
            notes.append(f"{own.env.id} cannot be made here, so its start was not tried: {error}")
            continue
        env = RunEnv(name, own, lambda make_env: EnvPool(make_env, 1))
        try:
            notes += env.notes
            task = task or env.train_tasks[0]
            if renderer is not None:
                env.check_prompts(renderer)
            elif not path and not config.model.picture_size:
                env.require_vision()
        finally:
            env.close_probe()
    try_with_episodes(config.loss, renderer, tokenizer, task)
    return notes


def _why_text_only(config: TrainConfig, renderer: ChatRenderer | None) -> str:
    """Return the reason why the model does not see; empty if it does, or if its files are not on this machine."""
    if renderer is not None:
        return "" if renderer.vision is not None else renderer.why_text_only
    if config.model.path:
        return ""
    if not config.model.picture_size:
        return "a model that is built here reads text alone; set model.picture_size"
    return why_not_by("llava", config.image_route)
