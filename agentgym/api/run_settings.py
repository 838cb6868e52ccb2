"""Settings of a training run's own evaluation, for ``agentgym eval RUN`` and ``evaluate(env, RUN)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.api.trust import require_trust
from agentgym.canonical import read_json
from agentgym.endpoint.harness import HarnessConfig
from agentgym.engine import ENDPOINT
from agentgym.errors import UsageError
from agentgym.evals.attempts import inner_policy
from agentgym.evals.config import MAPPINGS, OF_SERVERS, names_of_options
from agentgym.registry import find, id_of, make
from agentgym.render.config import ChatConfig
from agentgym.rollout.context import CONTEXT_FILE, FULL
from agentgym.rollout.roles import parts_of
from agentgym.rollout.run_kind import kind_of_run
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.roles import POLICY
from agentgym.trainers.models.versions import Version

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig

SAMPLING = tuple(name for name in names_of_options("model") if name not in MAPPINGS)
"""Settings that apply to the model on every environment."""
BEST = "best"
"""Folder of a run's best model by its evaluations (``eval.keep_best``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A training run and the settings of its own evaluation."""

    folder: Path
    plan: dict[str, Any]
    """Fields of an ``EvalConfig`` that the run sets."""
    others: tuple[str, ...] = ()
    """Other environments that the policy was trained on."""

    def merged(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the given fields, completed from the run. For another environment only sampling settings are taken
        over.
        """
        if not self.has_env(given):
            return self.sampling | given
        own = self._of_policy(str(given["policy"]))
        groups = {name: {**own[name], **given.get(name, {})} for name in MAPPINGS if name in own}
        if "context" in groups and "example_turns" in given.get("context", {}):
            groups["context"].pop("examples", None)  # of as many turns as the run has
        return {**own, **given, **groups}

    def _of_policy(self, policy: str) -> dict[str, Any]:
        """Return the run's settings, without those that do not apply if the policy is an endpoint."""
        if not policy.startswith(ENDPOINT):
            return self.plan
        return {name: value for name, value in self.plan.items() if name not in OF_SERVERS}

    def with_parts_of(self, given: dict[str, Any]) -> RunSettings:
        """Return the settings without the roles that have no part in the environment that is evaluated.

        A run may train against a role and be evaluated against a player of the environment's own, and an environment
        of a mixture may lack the parts of another.
        """
        if not self.plan["roles"] or not self.has_env(given):
            return self
        kwargs = self.merged(given)["kwargs"]
        with closing(make(id_of(given["env"], kwargs), **kwargs)) as probe:
            parts = parts_of(probe)
        roles = {part: policy for part, policy in self.plan["roles"].items() if part in parts}
        return replace(self, plan={**self.plan, "roles": roles})

    def has_env(self, plan: dict[str, Any]) -> bool:
        """Return True if the run was trained on the plan's environment."""
        return _same_env(plan.get("env", self.plan["env"]), self.plan["env"])

    @property
    def sampling(self) -> dict[str, Any]:
        """Settings of the model only."""
        return {name: self.plan[name] for name in SAMPLING}

    def note(self, plan: dict[str, object]) -> str:
        """Return a line that lists how a plan agrees with the run's own evaluation and how it differs."""
        if not self.has_env(plan):
            taken = ", ".join(f"{name}={plan[name]}" for name in SAMPLING)
            trained_on = ", ".join([self.plan["env"], *self.others])
            return f"{self.folder} was trained on {trained_on}; from it: {taken}"
        found = self._differences(plan)
        return f"evaluating as {self.folder} did" + (f", except for {', '.join(found)}" if found else "")

    def _differences(self, plan: dict[str, Any]) -> list[str]:
        found = []
        for name, value in self.plan.items():
            if name in MAPPINGS:
                prefix = "" if name == "kwargs" else f"{name}."
                found += _changes(prefix, value, plan.get(name, {}))
            elif name != "env":
                found += _changes("", {name: value}, {name: plan[name]} if name in plan else {})
        return found + [f"{name}={plan[name]!r}" for name in ("opponent", "scoring") if plan.get(name)]


def _changes(prefix: str, of_run: Mapping[str, object], of_plan: Mapping[str, object]) -> list[str]:
    """Return the values of a plan that differ from the run's."""
    keys = (key for key in {**of_run, **of_plan} if of_run.get(key) != of_plan.get(key))
    return [
        f"{prefix}{key}={of_plan[key]!r} ({of_run.get(key, 'the default')!r} in the run)"
        if key in of_plan
        else f"{prefix}{key} (the default, not {of_run[key]!r})"
        for key in keys
    ]


def as_the_run(
    name: str,
    policy: str,
    given: dict[str, object],
    say: Callable[[str], None],
    require: Callable[[Path], None] = require_trust,
) -> dict[str, Any]:
    """Return the fields of a plan: the given ones, and the rest from the named training run, if any.

    Args:
        name: an environment, or the folder of a run.
        policy: the policy to evaluate; empty for the run's own.
        given: fields that the user has set.
        say: receives a line about the settings taken over and those that differ from the run.
        require: as in :func:`run_settings`.

    Raises:
        UsageError: the run used several environments, and ``name`` does not say which one to evaluate.
        CorruptDataError: the run's configuration cannot be read.
    """
    own = run_settings(name, require=require)
    if own is not None and own.others:
        raise UsageError(
            f"{name} was trained on several environments ({', '.join([own.plan['env'], *own.others])}); evaluate one: "
            f"agentgym eval {own.plan['env']} --policy {name}"
        )
    env = name if own is None else own.plan["env"]
    run = run_settings(policy, env, require) if policy else None
    if own is not None and (run is None or run.folder.resolve() != own.folder.resolve()):
        run = own  # of its own models the one that is evaluated says which of its roles' play beside it
    if run is None:
        return {"env": name, "policy": policy, **given}
    given = {"env": env, "policy": policy, **given}
    run = run.with_parts_of(given)
    plan = run.merged(given)
    say(run.note(plan))
    return plan


def sampled_as_the_run(
    policy: str,
    given: dict[str, Any],
    say: Callable[[str], None],
    require: Callable[[Path], None] = require_trust,
) -> dict[str, Any]:
    """Return the given options, and the rest of the sampling settings from the training run that the policy names.

    For environments and suites that are not the run's. Arguments and errors as in :func:`as_the_run`.
    """
    run = run_settings(policy, require=require)
    if run is None:
        return given
    taken = {name: value for name, value in run.sampling.items() if name not in given}
    say(f"from {run.folder}: {', '.join(f'{name}={value}' for name, value in taken.items())}")
    return taken | given


def run_settings(policy: str, env: str = "", require: Callable[[Path], None] = require_trust) -> RunSettings | None:
    """Return the settings of a training run given by its folder or its model folder, or None for any other policy.

    Args:
        env: the environment to evaluate on, if the run used several.
        require: raises an error unless the folder is trusted, as :func:`~agentgym.api.trust.require_trust` does.

    Raises:
        UsageError: another user made the run, and it is not trusted.
        CorruptDataError: the configuration of the training run cannot be read.
    """
    source = inner_policy(policy)
    version = Version.read(source)
    path = version.run if version else Path(source)
    saved = path.name if path.name in {"model", BEST} else ""
    for folder in (path, path.parent) if saved else (path,):
        if kind_of_run(folder) == "training":
            from agentgym.trainers.config.overrides import load_config

            require(folder)
            configs = [*load_config(folder / "config.json").by_env.values()]
            own = next((config for config in configs if env and _same_env(env, config.env.id)), configs[0])
            others = tuple(config.env.id for config in configs if config is not own)
            plan = _plan(own, policy, folder, saved or "model", source if version else "")
            return RunSettings(folder=folder, plan=plan, others=others)
    return None


def is_run(name: str) -> bool:
    """Return True if a name is the folder of a training run, or a version of its policy."""
    version = Version.read(name)
    return kind_of_run(version.run if version else Path(name)) == "training"


def _plan(config: TrainConfig, policy: str, folder: Path, saved: str, version: str) -> dict[str, object]:
    return {
        "env": config.env.id,
        "policy": policy,
        "episodes": config.eval.num_episodes,
        "repeats": config.eval.repeats,
        "seed": derive_seed(config.seed, "evaluation"),
        "split": config.eval.split,
        "temperature": config.eval.temperature,
        "max_new_tokens": config.sampling.max_new_tokens,
        "max_thinking_tokens": config.sampling.max_thinking_tokens,
        "max_context_tokens": config.model.max_context_tokens,
        "kwargs": {**config.env.kwargs, **config.eval.kwargs},
        "chat": _changed(asdict(config.model.chat), asdict(ChatConfig())),
        "context": _changed(asdict(config.context), asdict(FULL)) | _examples(folder / "model" / CONTEXT_FILE),
        "harness": _changed(asdict(config.harness), asdict(HarnessConfig())),
        "roles": _roles(config, folder, saved, version),
    }


def _roles(config: TrainConfig, folder: Path, saved: str, version: str) -> dict[str, object]:
    """Return who plays each part beside a model of a run: trained roles, and itself for earlier versions of it.

    Args:
        saved: name of the model's folder, which those of the trained roles have, too.
        version: source of the evaluated version of the policy, if it is not in the run's model folder.
    """
    roles: dict[str, object] = {}
    for name, role in config.roles.items():
        model = folder / "roles" / name / saved if role.trained else folder / saved
        itself = str(model) if role.trained else version or str(model)
        policy = role.policy if role.policy and role.past is None else itself
        roles |= dict.fromkeys(role.parts(name), policy) if name != POLICY else {}
    return roles


def _examples(path: Path) -> dict[str, object]:
    """Return the messages of the worked example that a run's prompts began with, if its model is saved."""
    try:
        shown = read_json(path.read_text(encoding="utf-8")).get("examples")
    except (OSError, ValueError, AttributeError):
        return {}
    return {"examples": shown} if shown else {}


def _changed(values: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value != defaults[name]}


def _same_env(one: str, other: str) -> bool:
    """Return True if two references name the same environment; the path to its file may be written in two ways."""
    if one == other:
        return True
    try:
        return find(one).id == find(other).id
    except (UsageError, OSError):  # the file that the run used may have been deleted
        return False
