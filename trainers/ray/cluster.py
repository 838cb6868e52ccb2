"""A connection to a Ray cluster, and the actors a run places on it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray.actor import ActorClass, ActorHandle
from ray.exceptions import RayError

from agentgym.env.env import Env
from agentgym.errors import ConfigError
from agentgym.rollout.in_flight import InFlight
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import num_restarts
from agentgym.trainers.ray.connection import check_resources, connect, options_of
from agentgym.trainers.ray.engine_actor import EngineActor
from agentgym.trainers.ray.engines import RayEngine
from agentgym.trainers.ray.env_server import EnvServerActor, ports
from agentgym.trainers.ray.env_worker import EnvWorker
from agentgym.trainers.ray.env_workers import RayPool, share_of
from agentgym.trainers.ray.fleet import Fleet, FleetStats, first_line
from agentgym.trainers.ray.serving import EngineSpec
from agentgym.trainers.types import CausalLM, Tokenizer


@dataclass(frozen=True, slots=True)
class RankStats:
    """Counters about the trainer's ranks since the command started."""

    num_restarts: int


class Cluster:
    """A run's actors on a cluster. They end with :meth:`close`, or with this process.

    Raises:
        ConfigError: the cluster cannot be reached, or lacks the resources for one actor of each kind.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config.cluster
        self._run_config = config
        self._names = uuid.uuid4().hex
        """Namespace of the actors' names, so that they do not collide with those of other runs or earlier starts."""
        self._is_ours = connect(config.cluster)
        try:
            check_resources(config.cluster, config.cluster.start_timeout_s if num_restarts() else 0.0)
            num_workers = config.cluster.num_env_workers
            share = share_of(config.group.num_envs, num_workers)
            workers = [self._actor(EnvWorker, "env_worker", index) for index in range(num_workers)]
            handles = [worker.remote(share, os.getcwd()) for worker in workers]
            servers = self._start_servers()
            self.env_url = self._urls_of(servers)
            """Addresses of the environment servers, separated by commas; empty if there are none."""
        except BaseException:
            self.close()
            raise
        self._workers = Fleet("env worker", handles, config.cluster)
        self._servers = Fleet("env server", servers, config.cluster)

    @property
    def stats(self) -> dict[str, FleetStats | RankStats]:
        """Return the counters of env workers, env servers and ranks, by metric name."""
        found: dict[str, FleetStats | RankStats] = {"env_workers": self._workers.stats}
        if self._servers.members:
            found["env_servers"] = self._servers.stats
        if self._config.num_trainer_ranks:
            found["ranks"] = RankStats(num_restarts())
        return found

    def lead(self, in_flight: InFlight) -> None:
        """Let the workers' health checks adapt a limit of episodes, since their turns arrive with whole episodes."""
        in_flight.follows_reports = True
        self._workers.on_answer = lambda found: in_flight.observe_report(found.sampled)

    def pool(self, make_env: Callable[[], Env]) -> RayPool:
        """Return a pool over the env workers, which all pools share."""
        return RayPool(self._workers, make_env)

    def engine(self, model: CausalLM, tokenizer: Tokenizer) -> RayEngine:
        """Return the engine of the run, which samples from copies of ``model`` on the engine actors."""
        config = self._run_config
        is_vllm = config.engine.kind == "vllm"
        actors = [self._actor(EngineActor, "engine", index) for index in range(self._config.num_engines)]
        spec = EngineSpec.of(config, model, tokenizer if is_vllm else None, os.getcwd())
        return RayEngine(
            [actor.remote(spec) for actor in actors],
            model,
            self._config,
            max_context_tokens=config.model.max_context_tokens,
            # a server starts with the first weights
            update_timeout_s=config.engine.update_timeout_s + (config.engine.start_timeout_s if is_vllm else 0),
            for_vllm=is_vllm,
        )

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait for the first env worker.

        Raises:
            ConfigError: no worker became ready in time.
        """
        self._workers.say = self._servers.say = say
        self._servers.start()
        await self._workers.wait_for_one()

    async def close_workers(self) -> None:
        """End the env workers and servers."""
        await self._workers.close()
        await self._servers.close()

    def close(self) -> None:
        """Disconnect from the cluster, and shut it down if it belongs to this run. A second call does nothing."""
        if self._is_ours:
            ray.shutdown()

    # ---------------------------------------------------------------------------------------------------- private

    def _start_servers(self) -> list[ActorHandle]:
        count, envs = self._config.num_env_servers, [own.env.id for own in self._run_config.by_env.values()]
        servers = [self._actor(EnvServerActor, "env_server", index) for index in range(count)]
        return [server.remote(envs, port, os.getcwd()) for server, port in zip(servers, ports(count), strict=True)]

    def _actor(self, actor: type, kind: str, index: int) -> ActorClass:
        """Return the class of an actor, with a name for Ray's dashboard such as "engine 1"."""
        name = f"{kind.replace('_', ' ')} {index}"
        return ray.remote(**options_of(self._config, kind), name=name, namespace=self._names)(actor)

    def _urls_of(self, servers: Sequence[ActorHandle]) -> str:
        """Wait for the environment servers and return their addresses, which environments need.

        Raises:
            ConfigError: one does not start.
        """
        try:
            return ",".join(ray.get([server.url.remote() for server in servers], timeout=self._config.start_timeout_s))
        except RayError as error:
            raise ConfigError(f"cluster.num_env_servers: no server was started: {first_line(error)}") from None
