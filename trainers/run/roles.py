"""The roles of a run: agents that play beside the policy, and the models of those that are trained."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import torch

from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.evals.config import EvalConfig
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import MakeAgent, ModelAgent
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.roles import Cast, RoleAgents
from agentgym.trainers.config.rank_limits import Roles, all_ranks_sample, episodes_of_rank
from agentgym.trainers.config.roles import POLICY, RoleConfig, check_servers
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import copy_weights
from agentgym.trainers.engines.names import check_agents
from agentgym.trainers.engines.vllm.address import SERVED
from agentgym.trainers.models.model import copy_of_trained, load_tokenizer
from agentgym.trainers.models.versions import PAST
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.placement.agents import open_policy_agents
from agentgym.trainers.placement.build import torch_engine
from agentgym.trainers.placement.servers import weight_dir
from agentgym.trainers.planning.roles import check_parts
from agentgym.trainers.run.cluster import engine_on
from agentgym.trainers.run.env import RunEnv
from agentgym.trainers.run.folder import ROLES
from agentgym.trainers.run.model import load_policy, load_teacher
from agentgym.trainers.run.past import PastPolicy, Results
from agentgym.trainers.run.policy import RunPolicy
from agentgym.trainers.types import CausalLM, Tokenizer
from agentgym.types import TrajectoryGroup

if TYPE_CHECKING:
    from agentgym.trainers.ray.cluster import Cluster, JoinedCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyParts:
    """The policy's model with its tokenizer and the renderer of its prompts."""

    model: CausalLM
    tokenizer: Tokenizer
    renderer: ChatRenderer
    teacher: CausalLM | None
    """The teacher of distillation that its loss names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRole:
    """A trained role: its configuration, its model and engine, and the renderer of its prompts."""

    name: str
    config: TrainConfig
    policy: RunPolicy
    tokenizer: Tokenizer
    renderer: ChatRenderer
    is_copy: bool
    """True if it begins with the policy's weights."""
    teacher: CausalLM | None
    """The teacher of distillation that its loss names."""


class RunRoles:
    """The roles of a run, with what each needs to play and to be trained.

    Args:
        policy: the parts of the policy that roles share.
        cluster: the run's Ray cluster, whose actors play if ``cluster.plays``.

    Raises:
        ConfigError: an environment has no part of a role's, or roles play all players of one.
    """

    def __init__(
        self,
        config: TrainConfig,
        envs: Sequence[RunEnv],
        run_dir: Path,
        ranks: Ranks,
        policy: PolicyParts,
        cluster: Cluster | JoinedCluster | None,
    ) -> None:
        self._config, self._run_dir, self._ranks = config, run_dir, ranks
        self._cluster = cluster
        self._model, self._tokenizer, self._renderer = policy.model, policy.tokenizer, policy.renderer
        self._teacher = policy.teacher
        self._num_episodes = episodes_of_rank(config, ranks.count)
        self._configs = {name: role for name, role in config.roles.items() if name != POLICY}
        check_servers(config)  # again, since a cluster's servers are known by now
        check_parts(config, {env.config.env.id: (env.parts, env.eval_parts) for env in envs})
        for role in self._configs.values():
            if not role.trained and role.past is None:
                check_agents(role.policy)
        self.trained = {name: self._trained(name) for name, role in self._configs.items() if role.trained}
        self._past = {
            name: PastPolicy(
                past,
                config,
                policy.model,
                run_dir / PAST / name,
                name,
                partial(self._engine_of, name, config),
                ranks,
                samples=ranks.is_main or all_ranks_sample(config, ranks.count),
            )
            for name, role in self._configs.items()
            if (past := role.past) is not None
        }
        self._frozen: dict[str, MakeAgent] = {}
        self._made: dict[tuple[str, SamplingParams, ContextConfig], MakeAgent] = {}
        """Agents of models by role, since workers keep each maker that they were sent."""
        self._closing: list[Callable[[], Awaitable[None]]] = []

    def config_of(self, name: str) -> TrainConfig:
        """Return the configuration of a trained role, or of the policy."""
        return self._config if name == POLICY else self.trained[name].config

    def renderer_of(self, name: str) -> ChatRenderer:
        """Return the renderer of a trained role, or of the policy."""
        return self.trained[name].renderer if name in self.trained else self._renderer

    @property
    def models(self) -> dict[str, CausalLM]:
        """The models of trained roles."""
        return {name: role.policy.model for name, role in self.trained.items()}

    def teacher_of(self, name: str) -> CausalLM | None:
        """Return the teacher of distillation of a trained role, or of the policy; None if its loss has none."""
        return self._teacher if name == POLICY else self.trained[name].teacher

    def trains_at(self, name: str, step: int) -> bool:
        """Return True if a role, or the policy, is updated at a step."""
        role = self._config.roles.get(name)
        return role is None or role.trains_at(step)

    async def open(self, say: Callable[[str], None]) -> None:
        """Load the models of frozen roles, and wait for their servers. A second call does nothing."""
        for name, role in self._configs.items():
            if role.trained or role.past is not None or name in self._frozen:
                continue
            settings = _config_of(role, self._config.sampling)
            self._frozen[name], close = await open_policy_agents(
                self._started(name, role),
                settings,
                self._num_episodes,
                partial(_say_of, say, name),
                partial(self._frozen_engine, name) if self._config.cluster.plays else None,
            )
            self._closing.append(close)
        for trained in self.trained.values():
            await trained.policy.connect(say)

    def begin(self) -> None:
        """Give trained roles that begin as the policy its weights, which a warm start has changed."""
        for role in self.trained.values():
            if role.is_copy:
                with torch.no_grad():
                    copy_weights(self._model, role.policy.model)

    async def update(self, version: int) -> None:
        """Send the trained roles' weights to their engines, and keep those that roles of the past play later."""
        for role in self.trained.values():
            await role.policy.update(version)
        for past in self._past.values():
            past.keep(self._model, version)

    async def begin_step(self, step: int, results: Mapping[str, Results] | None = None) -> None:
        """Load the versions that roles of the past play in a step, or in an evaluation after it.

        All ranks must call this with the same results, and load the same versions.

        Args:
            results: by role, success against each version so far; None for the newest version.
        """
        for name, past in self._past.items():
            so_far = None if results is None else results.get(name, {})
            await self._ranks.from_all(partial(past.begin_step, step, so_far))

    def count(self, groups: Iterable[TrajectoryGroup], results: dict[str, Results]) -> None:
        """Add the results of a step's groups to those of the versions that played in it."""
        for name, past in self._past.items():
            results[name] = past.counted(groups, results.get(name, {}))

    @property
    def metrics(self) -> dict[str, float]:
        """The versions that roles of the past play."""
        return {f"role/{name}/version": float(past.version) for name, past in self._past.items()}

    def cast(self, env: RunEnv, step: int | None = None) -> Cast:
        """Return the roles of an environment's episodes.

        Args:
            step: the step of RL; None in an evaluation, in which only the policy's turns count.
        """
        parts = env.eval_parts if step is None else env.parts
        at_step = env.config if step is None else env.at(step)
        cast: dict[str, RoleAgents] = {}
        for name, role in self._configs.items():
            played = [part for part in role.parts(name) if part in parts]
            if not played:
                continue
            agents = RoleAgents(
                role=name,
                make_agent=self._agents(name, role, at_step, is_evaluation=step is None),
                is_trained=role.trained and step is not None,
            )
            cast |= dict.fromkeys(played, agents)
        return cast

    def beside_demonstrations(self, env: RunEnv) -> dict[str, MakeAgent | None]:
        """Return who plays the parts of an environment whose turns say nothing to the policy, in demonstrations.

        Frozen roles play as in rollouts; None stands for the oracle, in place of a model that is trained by itself.
        """
        others: dict[str, MakeAgent | None] = {}
        for name, role in self._configs.items():
            if role.past is None and not (role.trained and self.trained[name].is_copy):
                played = (part for part in role.parts(name) if part in env.parts)
                others |= dict.fromkeys(played, self._frozen.get(name))
        return others

    async def close(self) -> None:
        """Close the engines and the clients of all roles."""
        for close in self._closing:
            await close()
        for past in self._past.values():
            if past.engine is not None:
                await past.engine.close()
        for role in self.trained.values():
            if role.policy.engine is not None:
                await role.policy.engine.close()

    # ---------------------------------------------------------------------------------------------------- private

    def _started(self, name: str, role: RoleConfig) -> str:
        """Start a frozen role's servers, if Ray does, and return its policy with the folder of their weights."""
        served = role.served
        if served is None:
            return role.policy
        if self._cluster is not None:
            self._cluster.start_engines(served.model, name)
        folder = served.weight_dir or weight_dir(self._config, self._run_dir) / f"{name}-{self._ranks.rank}"
        return f"{SERVED}{','.join(served.urls)}?{urlencode({'model': served.model, 'weight_dir': str(folder)})}"

    def _agents(self, name: str, role: RoleConfig, config: TrainConfig, *, is_evaluation: bool) -> MakeAgent:
        if name in self._frozen:
            return self._frozen[name]
        sampling = replace(config.sampling, **role.sampling) if role.past else config.for_role(name).sampling
        if is_evaluation:
            sampling = replace(sampling, temperature=config.eval.temperature)
        engine = self._past[name].engine if name in self._past else self.trained[name].policy.engine
        key = name, sampling, config.context
        if key not in self._made:
            self._made[key] = _model_agents(engine, self.renderer_of(name), sampling, config.context)
        return self._made[key]

    def _engine_of(self, name: str, config: TrainConfig, model: CausalLM, tokenizer: Tokenizer | None = None) -> Engine:
        """Return an engine over a model of the past or a frozen one, on the cluster if its workers play."""
        if self._cluster is None or not config.cluster.plays:
            return torch_engine(config, model, self._num_episodes)
        all_play = all_ranks_sample(self._config, self._ranks.count)
        tokenizer = tokenizer or self._tokenizer
        return engine_on(self._cluster, self._ranks, config, model, tokenizer, name, all_ranks_sample=all_play)

    def _frozen_engine(self, name: str, model: CausalLM, *, max_context_tokens: int) -> Engine:
        """Return an engine on the cluster over a frozen role's model."""
        of_model = replace(self._config.model, max_context_tokens=max_context_tokens)
        own = replace(self._config, model=of_model, roles={})
        return self._engine_of(name, own, model, load_tokenizer(self._configs[name].policy))

    def _trained(self, name: str) -> TrainedRole:
        own, role = self._config.for_role(name), self._config.roles[name]
        on_gpu = torch.cuda.is_available()
        ranks = Roles.of(own, self._ranks.count, on_gpu=on_gpu)
        is_copy = not role.model
        tokenizer, renderer = self._tokenizer, self._renderer
        if role.model.get("path"):
            tokenizer = load_tokenizer(own.model.path)
        if not is_copy:
            renderer = renderer_for(own.model.path, tokenizer, own.model.chat, route=own.image_route)
        if is_copy and self._ranks.count == 1:  # under adapters it shares the other weights with the policy
            loaded: CausalLM | None = copy_of_trained(self._model)
        else:
            loaded = load_policy(own, renderer, tokenizer, ranks=self._ranks, roles=ranks)
        policy = RunPolicy(
            own,
            loaded,
            tokenizer,
            self._run_dir / ROLES / name,
            ranks=self._ranks,
            roles=ranks,
            cluster=self._cluster,
            role=name,
        )
        policy.make_engine()
        is_shared = tokenizer is self._tokenizer and own.loss.teacher == self._config.loss.teacher
        return TrainedRole(
            name=name,
            config=own,
            policy=policy,
            tokenizer=tokenizer,
            renderer=renderer,
            is_copy=is_copy,
            teacher=self._teacher if is_shared else load_teacher(own, renderer, tokenizer, self._ranks),
        )


def _model_agents(
    engine: Engine | None, renderer: ChatRenderer, sampling: SamplingParams, context: ContextConfig
) -> MakeAgent:
    def make(env: Env, seed: int) -> ModelAgent:
        assert engine is not None, "this rank does not play"
        return ModelAgent(engine, renderer.for_words(env.takes_words), sampling, seed, context, env.max_turns)

    return make


def _say_of(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"role {name}: {text}")


def _config_of(role: RoleConfig, sampling: SamplingParams) -> EvalConfig:
    """Return the sampling of a frozen role: the run's, with the role's changes."""
    chosen = replace(sampling, **role.sampling)
    return EvalConfig(
        temperature=chosen.temperature,
        max_new_tokens=chosen.max_new_tokens,
        max_thinking_tokens=chosen.max_thinking_tokens,
        max_context_tokens=role.model.get("max_context_tokens", 0),
        chat=dict(role.model.get("chat", {})),
    )
