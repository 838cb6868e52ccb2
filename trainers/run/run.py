"""A training run: its folder, and the objects that its phases share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agentgym.engine import Engine, SamplingParams
from agentgym.env.actions import gold_action
from agentgym.env.env import Env
from agentgym.errors import UsageError, first_cause
from agentgym.media import MEDIA
from agentgym.rollout import journal
from agentgym.rollout.agent import DemonstrationAgent, MakeAgent, ModelAgent
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.pool import EnvPool, Pool
from agentgym.rollout.reflection import NUM_TOKENS, Reflect, reflect_with
from agentgym.server_tokens import remember_token
from agentgym.trainers.config.overrides import to_dict
from agentgym.trainers.config.rank_limits import Roles, episodes_of_rank
from agentgym.trainers.config.roles import with_servers
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.devices import gpu_bytes
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.judges.judge import Judge
from agentgym.trainers.judges.teacher import HintTeacher
from agentgym.trainers.losses.episodes_trial import try_with_episodes
from agentgym.trainers.losses.trial import try_out
from agentgym.trainers.models.card import Card, model_card
from agentgym.trainers.models.precision import allow_tf32
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.models.tiny import build_vision
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.placement.lending import can_lend
from agentgym.trainers.planning.microbatch import planned_tokens, tokens_note, with_tokens
from agentgym.trainers.run.cluster import cluster_of
from agentgym.trainers.run.env import RunEnv, named
from agentgym.trainers.run.model import load_policy, load_teacher, policy_tokenizer
from agentgym.trainers.run.policy import RunPolicy
from agentgym.trainers.run.roles import PolicyParts, RunRoles

if TYPE_CHECKING:
    from agentgym.endpoint.gateway import Gateway

_OWN = "own_files."


class Run:
    """The model, its engine, the environments and the folder of one training run.

    Args:
        ranks: the processes that train together; the model is sharded over them. Ranks that sample have an engine.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, ranks: Ranks = Ranks()) -> None:  # noqa: B008  (frozen)
        torch.set_num_threads(config.num_threads)
        allow_tf32(config.loss.precision)
        self.config, self.run_dir, self.ranks = config, run_dir, ranks
        MEDIA.write_to(run_dir)
        try_out(config.loss)
        config.harness.require_packages()
        roles = Roles.of(config, ranks.count, on_gpu=torch.cuda.is_available())
        self.all_ranks_sample = roles.all_play
        self.num_episodes = episodes_of_rank(config, ranks.count)
        """Most episodes that this rank plays at the same time, if it samples."""
        self.rollouts_are_sharded = ranks.count > 1
        """True if the tokens of each episode are on the rank that played it alone."""
        self._is_announced = False
        self._gateway: Gateway | None = None
        self.cluster, place = cluster_of(config, ranks, all_ranks_sample=self.all_ranks_sample)
        extra_kwargs = {"url": place.env_url} if place and place.env_url else {}
        if place:
            for url in place.env_url.split(","):
                remember_token(url, place.env_token)
        if place and place.engine_urls:
            for url in chain.from_iterable(place.engine_urls.values()):
                remember_token(url, place.engine_token)
            self.config = config = with_servers(config, place.engine_urls)
        self.envs = tuple(RunEnv(name, own, self._make_pool, extra_kwargs) for name, own in config.by_env.items())
        if not config.is_mixture:
            self.config = config = self.envs[0].config  # with the worked example of prompts, where one is shown
        path, first_task = config.model.path, self.envs[0].train_tasks[0]
        if not path:  # before episodes are played for the texts of a tokenizer
            try_with_episodes(config.loss, None, None, first_task)
        self.tokenizer = policy_tokenizer(config, self.envs, run_dir, self.announce, ranks)
        self.renderer = renderer_for(
            path,
            self.tokenizer,
            config.model.chat,
            route=config.image_route,
            own_vision=None if path else build_vision(self.tokenizer, config.model, config.image_route),
        )
        for env in self.envs:  # before the weights are read, which can take minutes
            env.check_prompts(self.renderer)
        if path:
            try_with_episodes(config.loss, self.renderer, self.tokenizer, first_task)
        load = partial(load_policy, config, self.renderer, self.tokenizer, ranks=ranks)
        loaded = load(roles=roles)
        if roles.lend and not ranks.of_first(loaded is not None and can_lend(loaded, config.model.max_context_tokens)):
            roles = dataclasses.replace(roles, lend=False)  # of an architecture that transformers' forward samples from
            loaded = load(roles=roles)
        self.teacher = load_teacher(config, self.renderer, self.tokenizer, ranks)
        # loading takes some ranks longer, and tensors are exchanged from here on
        tokens = min(ranks.gathered(planned_tokens(config, ranks.count, gpu_bytes())))
        self.microbatch_note = tokens_note(config, tokens, gpu_bytes())
        self.config = config = with_tokens(config, tokens)
        self.policy = RunPolicy(config, loaded, self.tokenizer, run_dir, ranks=ranks, roles=roles, cluster=self.cluster)
        del loaded  # before the engine has weights of its own
        self.policy.make_engine()
        self.model = self.policy.model
        memory = f"judge-{ranks.rank}" if ranks.count > 1 else "judge"
        self.judges = {
            env.key: Judge(env.config.judge, run_dir / f"{named(memory, env.name)}.jsonl")
            for env in self.envs
            if env.config.judge.is_on and self.policy.engine is not None
        }
        self.teachers = self.make_teachers()
        policy = PolicyParts(model=self.model, tokenizer=self.tokenizer, renderer=self.renderer, teacher=self.teacher)
        self.roles = RunRoles(config, self.envs, run_dir, ranks, policy, self.cluster)

    def make_teachers(self) -> dict[str, HintTeacher]:
        """Return the teachers of hints by environment, on a rank that plays."""
        memory = f"teacher-{self.ranks.rank}" if self.ranks.count > 1 else "teacher"
        return {
            env.key: HintTeacher(env.config.strategy.guidance, self.run_dir / f"{named(memory, env.name)}.jsonl")
            for env in self.envs
            if env.config.strategy.teaches and self.policy.engine is not None
        }

    @property
    def _asked(self) -> list[Judge | HintTeacher]:
        """Return the models behind endpoints that judge and teach."""
        return [*self.judges.values(), *self.teachers.values()]

    def announce(self, say: Callable[[str], None]) -> None:
        """Print the run's folder, once, before the first episodes, which may take long."""
        if not self._is_announced:
            self._is_announced = True
            say(f"run folder: {self.run_dir}")

    def keep_journal(self, say: Callable[[str], None]) -> None:
        """Write versions and files into the journal, and print what changed since the run began; first rank only.

        Raises:
            UsageError: checkpoints hold adapters alone, and the weights below them have changed.
        """
        if not self.ranks.is_main:
            return
        path = self.config.model.path
        folder = Path(local_model(path)) if path else Path()
        model = journal.model_facts(folder) if path and folder.is_dir() else {}
        if self.config.model.trains_adapters_of_files:
            self._check_base(model)
        changes = journal.note(
            self.run_dir, model={"path": path, **model}, own_files=journal.own_files(to_dict(self.config))
        )
        files = [change.partition(":")[0].removeprefix(_OWN) for change in changes if change.startswith(_OWN)]
        if files:
            say(f"note: changed since this run was begun: {', '.join(files)}")
        if versions := [change for change in changes if not change.startswith(_OWN)]:
            say(f"note: this run was begun with other versions ({'; '.join(versions)})")

    def _check_base(self, model: Mapping[str, str]) -> None:
        begun = [line.get("model", {}).get("weights") for line in journal.read(self.run_dir)[:1]]
        if any(begun) and begun != [model.get("weights")]:
            raise UsageError(
                f"the weights in {self.config.model.path} have changed since this run was begun, and its checkpoints "
                "hold only the adapters over the earlier ones; bring these back, or begin another run"
            )

    def _make_pool(self, make_env: Callable[[], Env]) -> Pool:
        if self.cluster is not None and self.config.cluster.plays:
            return self.cluster.pool(make_env)
        return EnvPool(make_env, self.config.group.num_envs)

    @property
    def engine(self) -> Engine:
        """The inference engine; only ranks that sample have one."""
        assert self.policy.engine is not None, "this rank does not play"
        return self.policy.engine

    async def connect_engine(self, say: Callable[[str], None]) -> None:
        """Wait until an engine and env workers outside this process are ready. A second call does nothing."""
        if self.cluster is not None:
            await self.cluster.connect(say)
        await self.policy.connect(say)
        if self.policy.engine is not None:
            await self.roles.open(say)
        if self.ranks.is_main:
            for asked in self._asked:
                await asked.client.check()

    def engine_metrics(self) -> dict[str, float]:
        """Return counters since this process began: those of the engine, its servers and the env workers."""
        engines = {"engine": self.policy.engine}
        engines |= {f"role/{name}/engine": role.policy.engine for name, role in self.roles.trained.items()}
        stats = {
            of: getattr(engine, "server_stats", None) or getattr(engine, "stats", None)
            for of, engine in engines.items()
        }
        if self.cluster is not None:
            stats |= self.cluster.stats
        return {
            f"{of}/{name}": float(value)
            for of, counted in stats.items()
            if counted is not None
            for name, value in dataclasses.asdict(counted).items()
        }

    def card(self) -> Card:
        """Return the card of the trained model, with the first prompt of a training task."""
        env = self.envs[0]
        try:
            observation = env.first_observation()
            prompt = self.renderer.text_of(env.prompt_style(self.renderer).first_prompt(observation))
        except Exception as error:  # of an environment, at the end of a run, whose model is to be saved all the same
            prompt = f"(the environment failed when the model was saved: {first_cause(error)})"
        names = ", ".join(one.config.env.id for one in self.envs)
        return model_card(self.renderer, self.config.context, names, self.config.model.path, prompt)

    async def update_engines(self, version: int) -> None:
        """Send the current weights of the policy and of trained roles to their engines. All ranks must call this."""
        await self.policy.update(version)
        await self.roles.update(version)

    async def sleep_engines(self) -> None:
        """Let inference servers on this GPU free their memory for training, if ``engine.sleep`` is set."""
        for policy in (self.policy, *(role.policy for role in self.roles.trained.values())):
            await policy.channel.sleep()

    async def close(self) -> None:
        """Close the engine and the environments."""
        if self._gateway is not None:
            await self._gateway.close()
        if self.policy.engine is not None:
            await self.policy.engine.close()
        await self.roles.close()
        for asked in self._asked:
            await asked.close()
        for env in self.envs:
            await env.close()
        if self.cluster is not None:
            await self.cluster.close_workers()
        self.leave_cluster()
        MEDIA.write_to(None)  # what this process plays next is not of this run

    def leave_cluster(self) -> None:
        """Stop this run's actors on a cluster, whatever their state. A second call does nothing."""
        if self.cluster is not None:
            self.cluster.close()

    def make_agent(
        self, env: RunEnv, temperature: float | None = None, sampling: SamplingParams | None = None
    ) -> MakeAgent:
        """Return a factory of agents that sample from the run's policy. It is picklable if the engine is.

        Args:
            temperature: sampling temperature; by default that of training.
            sampling: by default the environment's.
        """
        engine, renderer, context = self.policy.engine, self.renderer, env.config.context
        chosen = sampling or env.config.sampling
        if temperature is not None:
            chosen = dataclasses.replace(chosen, temperature=temperature)

        if self.config.harness.name:
            assert engine is not None, "this rank does not play"
            return self._harness_agents(engine, chosen, context)

        def make(env: Env, seed: int) -> ModelAgent:
            assert engine is not None, "this rank does not play"
            own = renderer.for_words(env.takes_words)
            return ModelAgent(engine, own, chosen, seed, context, env.max_turns)

        return make

    def _harness_agents(self, engine: Engine, sampling: SamplingParams, context: ContextConfig) -> MakeAgent:
        """Return the agents that run episodes with the configured harness; all share one endpoint."""
        from agentgym.endpoint.gateway import Gateway
        from agentgym.endpoint.play import HarnessAgents

        config = self.config.harness
        self._gateway = self._gateway or Gateway(config.host, config.port and config.port + self.ranks.rank)
        return HarnessAgents(engine, self.renderer, sampling, config, context, self._gateway)

    def make_reflect(self, env: RunEnv) -> Reflect | None:
        """Return a function that names the first mistake of a failure, and may advise; None on a rank that only trains.

        It is the judge's if retries begin at the first wrong turn (SCOPE), else the policy reflects itself (R3L).
        """
        if env.config.strategy.asks_judge:
            judge = self.judges.get(env.key)
            return None if judge is None else judge.reflect
        engine = self.policy.engine
        longest = getattr(env.config.strategy.branching, "max_new_tokens", NUM_TOKENS)
        return None if engine is None else reflect_with(engine, self.renderer, env.config.sampling, longest)

    def make_demonstrator(self, env: RunEnv) -> MakeAgent | None:
        """Return a factory of agents that act as the oracle does, in the policy's tokens; None for none."""
        if not env.config.strategy.demonstrates:
            return None
        renderer, context, sampling = self.renderer, env.config.context, env.config.sampling
        room = self.config.model.max_context_tokens

        def make(env: Env, seed: int) -> DemonstrationAgent:
            most = sampling.max_completion_tokens
            own = renderer.for_words(env.takes_words)
            return DemonstrationAgent(lambda observation: gold_action(env), own, room, most, context, env.max_turns)

        return make
