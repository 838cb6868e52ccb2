"""A connection to a Ray cluster, and the actors a run places on it.

The first rank starts the actors (:class:`Cluster`). Other ranks that play use the same ones (:class:`JoinedCluster`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import ray
from ray.actor import ActorClass, ActorHandle
from ray.exceptions import RayError

from agentgym.env.env import Env
from agentgym.errors import ConfigError
from agentgym.rollout.in_flight import InFlight, SampledReport
from agentgym.server_tokens import TOKEN_VARIABLE, made_token
from agentgym.trainers.config.cluster import AUTH_MODE, ClusterPlace
from agentgym.trainers.config.roles import POLICY, served_by_ray
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import num_restarts
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.trainers.ray.connection import ENGINE, check_resources, connect, environment_of_run, options_of
from agentgym.trainers.ray.engine_actor import EngineActor
from agentgym.trainers.ray.engines import RayEngine, RemoteEngine
from agentgym.trainers.ray.env_server import EnvServerActor, ports
from agentgym.trainers.ray.env_worker import EnvWorker
from agentgym.trainers.ray.env_workers import RayPool, share_of
from agentgym.trainers.ray.fleet import Fleet, FleetStats, first_line
from agentgym.trainers.ray.serving import EngineSpec
from agentgym.trainers.ray.vllm_servers import VllmServerActor, VllmServers
from agentgym.trainers.types import CausalLM, Tokenizer


@dataclass(frozen=True, slots=True)
class RankStats:
    """Counters about the trainer's ranks since the command started."""

    num_restarts: int


class JoinedCluster:
    """The actors on a cluster that the first rank started, for another rank that plays its share on them.

    Args:
        rank: this rank.

    Raises:
        ConfigError: this rank's machine cannot reach the cluster.
    """

    def __init__(self, config: TrainConfig, place: ClusterPlace, rank: int) -> None:
        self._config, self._place, self._rank = config.cluster, place, rank
        address = place.address if config.cluster.address == "local" else config.cluster.address
        try:
            self._is_ours = connect(replace(config, cluster=replace(config.cluster, address=address)))
        except ConfigError as error:
            raise ConfigError(f"rank {rank}: {error}; with ranks.rollouts=first only the first rank plays") from None
        self._workers = Fleet(
            "env worker", self._found("env_worker", config.cluster.num_env_workers), config.cluster, is_ours=False
        )

    @property
    def stats(self) -> dict[str, FleetStats | RankStats]:
        """Return nothing: the first rank counts."""
        return {}

    def lead(self, in_flight: InFlight) -> None:
        """See :meth:`Cluster.lead`."""
        lead(self._workers, in_flight, self._rank)

    def pool(self, make_env: Callable[[], Env]) -> RayPool:
        """Return a pool over the env workers, which all pools and ranks share."""
        return RayPool(self._workers, make_env, self._rank)

    def engine(
        self, config: TrainConfig, model: CausalLM | None, tokenizer: Tokenizer | None, role: str = ""
    ) -> RemoteEngine:
        """Return an engine over a model's engine actors, which the first rank must have started."""
        handles = self._found(engine_kind(role), self._config.num_engines)
        return RemoteEngine(handles, self._config, max_context_tokens=config.model.max_context_tokens)

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait for the first env worker. The first rank says what is lost.

        Raises:
            ConfigError: no worker became ready in time.
        """
        await self._workers.wait_for_one()

    def start_engines(self, source: str, role: str = "") -> bool:
        """Return False: where actors play, their engines start with the first weights."""
        return False

    async def close_workers(self) -> None:
        """Stop the supervision; the first rank ends the actors."""
        await self._workers.close()

    def close(self) -> None:
        """Disconnect from the cluster. A second call does nothing."""
        if self._is_ours:
            ray.shutdown()

    def _found(self, kind: str, count: int) -> list[ActorHandle]:
        return [ray.get_actor(actor_name(kind, index), namespace=self._place.names) for index in range(count)]


class Cluster:
    """A run's actors on a cluster. They end with :meth:`close`, or with this process.

    Raises:
        ConfigError: the cluster cannot be reached, or lacks the resources for one actor of each kind.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config.cluster
        self._run_config = config
        self._names = uuid.uuid4().hex
        self._is_ours = connect(config)
        self._vllm: dict[str, VllmServers] = {}
        self._specs: list[ray.ObjectRef] = []
        # of the environment servers, whose clients the env workers are; not in Ray's runtime_env, which its logs show
        self._env_token = (os.environ.get(TOKEN_VARIABLE) or made_token()) if config.cluster.num_env_servers else ""
        try:
            check_resources(config, config.cluster.start_timeout_s if num_restarts() else 0.0)
            handles = self._start_workers()
            servers = self._start_servers()
            self._env_url = self._urls_of(servers)
            self._engine_token = os.environ.get(TOKEN_VARIABLE) or made_token()
            for name, own in served_by_ray(config).items():
                role = "" if name == POLICY else name
                start = partial(self._actor, VllmServerActor, engine_kind(role))
                self._vllm[name] = VllmServers(own, start, self._engine_token, role)
        except BaseException:
            self.close()
            raise
        self._workers = Fleet("env worker", handles, config.cluster)
        self._servers = Fleet("env server", servers, config.cluster)

    @property
    def place(self) -> ClusterPlace:
        """The place of the actors, for other ranks."""
        address = ray.get_runtime_context().gcs_address
        return ClusterPlace(
            address=address,
            auth_mode=os.environ.get(AUTH_MODE, ""),
            names=self._names,
            env_url=self._env_url,
            env_token=self._env_token,
            engine_urls={name: servers.urls for name, servers in self._vllm.items()},
            engine_token=self._engine_token,
        )

    @property
    def stats(self) -> dict[str, FleetStats | RankStats]:
        """Return the counters of env workers, env servers, vLLM servers and ranks, by metric name."""
        found: dict[str, FleetStats | RankStats] = {}
        for name, fleet in (("env_workers", self._workers), ("env_servers", self._servers)):
            if fleet.members:
                found[name] = fleet.stats
        for name, servers in self._vllm.items():
            found["vllm_servers" if name == POLICY else f"role/{name}/vllm_servers"] = servers.stats
        if self._config.num_trainer_ranks:
            found["ranks"] = RankStats(num_restarts())
        return found

    def lead(self, in_flight: InFlight) -> None:
        """Let the workers' health checks adapt a limit of episodes, since their turns arrive with whole episodes."""
        if self._config.plays:
            lead(self._workers, in_flight, rank=0)

    def pool(self, make_env: Callable[[], Env]) -> RayPool:
        """Return a pool over the env workers, which all pools share."""
        return RayPool(self._workers, make_env)

    def engine(
        self, config: TrainConfig, model: CausalLM | None, tokenizer: Tokenizer | None, role: str = ""
    ) -> RayEngine:
        """Start engine actors, and return the engine that samples from copies of ``model`` on them.

        Args:
            config: the configuration by which the model is sampled from.
            role: the role that the model plays; empty for the policy.
        """
        assert model is not None, "the first rank has the weights"
        is_vllm = config.engine.traits.is_served
        actors = [self._actor(EngineActor, engine_kind(role), index) for index in range(self._config.num_engines)]
        # held here, since an actor is not started again once its arguments are gone, as large ones are (ray#53727)
        spec = ray.put(EngineSpec.of(config, model, tokenizer if is_vllm else None, os.getcwd()))
        self._specs.append(spec)
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
        """Wait for the first env worker, if there are any.

        Raises:
            ConfigError: no worker became ready in time.
        """
        self._workers.say = self._servers.say = say
        self._servers.start()
        if self._workers.members:
            await self._workers.wait_for_one()

    def start_engines(self, source: str, role: str = "") -> bool:
        """Start the vLLM servers of a model from which ranks sample; return False if it has none.

        Args:
            role: the role that the model plays; empty for the policy.
        """
        servers = self._vllm.get(role or POLICY)
        if servers is not None:
            servers.start(local_model(source), self._workers.say)
        return servers is not None

    async def close_workers(self) -> None:
        """End the env workers and servers."""
        await self._workers.close()
        await self._servers.close()
        for servers in self._vllm.values():
            await servers.close()

    def close(self) -> None:
        """Disconnect from the cluster, and shut it down if it belongs to this run. A second call does nothing."""
        while self._vllm:
            self._vllm.popitem()[1].remove()
        if self._is_ours:
            ray.shutdown()

    # ---------------------------------------------------------------------------------------------------- private

    def _start_workers(self) -> list[ActorHandle]:
        if not self._config.plays:
            return []
        count = self._config.num_env_workers
        share = share_of(self._run_config.group.num_envs, count)
        workers = [self._actor(EnvWorker, "env_worker", index) for index in range(count)]
        return [worker.remote(share, os.getcwd(), environment_of_run(self._env_token)) for worker in workers]

    def _start_servers(self) -> list[ActorHandle]:
        count, envs = self._config.num_env_servers, [own.env.id for own in self._run_config.by_env.values()]
        servers = [self._actor(EnvServerActor, "env_server", index) for index in range(count)]
        places = zip(servers, ports(count), strict=True)
        return [server.remote(envs, port, os.getcwd(), environment_of_run(self._env_token)) for server, port in places]

    def _actor(self, actor: type, kind: str, index: int) -> ActorClass:
        """Return the class of an actor, with a name for Ray's dashboard such as "engine 1"."""
        name = actor_name(kind, index)
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


def actor_name(kind: str, index: int) -> str:
    """Return the name of an actor in Ray's dashboard.

    Example:
        >>> actor_name("env_worker", 2)
        'env worker 2'
    """
    return f"{kind.replace('_', ' ')} {index}"


def engine_kind(role: str) -> str:
    """Return the kind of a role's engine actors, which begins their names; of the policy's for an empty role."""
    return f"{ENGINE} of {role}" if role else ENGINE


def lead(workers: Fleet, in_flight: InFlight, rank: int) -> None:
    """Let the health checks of env workers adapt a limit of episodes to the turns that a rank has asked for."""
    earlier = {name: found.sampled[rank] for name, found in workers.found.items() if rank in found.sampled}

    def observe(found: ActorState) -> None:
        if rank in found.sampled:
            now = found.sampled[rank]
            in_flight.observe_report(now.since(earlier.get(found.incarnation, SampledReport())))
            earlier[found.incarnation] = now

    in_flight.follows_reports = True
    workers.on_answer = observe
