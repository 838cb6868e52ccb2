"""vLLM servers on machines and GPUs that Ray chooses, from which the trainer's ranks sample.

Each server is beside an actor, and ends with it. The ranks talk to servers directly, as without Ray: so weights reach
them in any way of ``engine.weight_sync`` that does not need the trainer's GPU.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import ray
from ray.actor import ActorClass, ActorHandle
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentgym.errors import ConfigError, InfrastructureError
from agentgym.ports import free_port
from agentgym.processes.remains import Remains
from agentgym.trainers.config.cluster import SERVERS_NAME, ClusterConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmProcess, find_vllm
from agentgym.trainers.kinds import TRANSFERS
from agentgym.trainers.ray.actor_state import ActorState, ending_with_parent
from agentgym.trainers.ray.fleet import Fleet, FleetActor, FleetStats, first_line

_LEAST = {"memory": 1.0}
"""What a place has whose server reserves nothing, in bytes; Ray makes no empty ones."""
_TOLD_S = 0.5
"""Seconds in which the trainer receives the reason of an exit."""


class VllmServerActor:
    """An actor that runs a vLLM server and exits when the server exits, so that Ray restarts both.

    Args:
        folder: base folder of relative paths.
    """

    def __init__(self, folder: str) -> None:
        if os.path.isdir(folder):  # where .venv-vllm is looked for
            os.chdir(folder)
        self._state, self._host = ActorState(), ray.util.get_node_ip_address()
        self._remains = Remains("agentgym-server-")
        self._process: VllmProcess | None = None
        self._reason = ""

    async def begin(self) -> str:
        """Return the address of the server to be.

        Raises:
            UsageError: no Python of this machine has vLLM.
        """
        find_vllm()
        return f"http://{self._host}:{free_port(self._host)}"

    async def start(self, options: ServeOptions) -> None:
        """Start the server.

        Raises:
            InfrastructureError: its address is another machine's, which Ray has lost.
        """
        if options.host != self._host:
            raise InfrastructureError(f"the server of {options.host} cannot start on {self._host}")
        # in this thread, which lives as long as the actor: the server is to be killed with it
        self._process = VllmProcess(find_vllm(), options, self._remains.folder / "vllm.log", ending_with_parent())
        self._remains.add_group(self._process.pid)
        self._state = replace(self._state, serial=1)

    async def ping(self) -> ActorState:
        """Return the state of the actor, whose serial is 0 until the server was started; exit soon if it has exited.

        Raises:
            InfrastructureError: the server has exited; the message has the last error of its log.
        """
        if self._process is not None and not self._process.is_running:
            if not self._reason:
                self._reason = last_error(self._process.tail())
                asyncio.get_running_loop().call_later(_TOLD_S, os._exit, 1)
            raise InfrastructureError(f"it ended ({self._reason})")
        return self._state


class VllmServers:
    """The servers of a trained model. Each stays on the machine where it was placed: ranks know it by its address.

    Args:
        config: the configuration by which the model is sampled from.
        actor: returns the class of an actor with this number.
        token: token that requests to the servers need.
        role: the role that the model plays; empty for the policy.

    Raises:
        ConfigError: the cluster has no room for them, or an actor does not start.
    """

    def __init__(self, config: TrainConfig, actor: Callable[[int], ActorClass], token: str, role: str = "") -> None:
        self._config, self._token, self._of_role = config, token, f" of {role}" if role else ""
        self._group = _reserved(config.cluster, role)
        try:
            handles = [
                actor(index)
                .options(scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index))
                .remote(os.getcwd())
                for index in range(config.cluster.num_engines)
            ]
            self.urls = _urls_of(handles, config.cluster.start_timeout_s)
            """Address of each server."""
        except BaseException:
            self.remove()
            raise
        self._options: Sequence[ServeOptions] = ()
        self._fleet = Fleet(f"vLLM server{self._of_role}", handles, config.cluster, self._admit)

    @property
    def stats(self) -> FleetStats:
        """Counters of lost and restarted servers."""
        return self._fleet.stats

    def start(self, source: str, say: Callable[[str], None]) -> None:
        """Start the servers of a model, and start those again that are lost.

        Args:
            source: folder or hub name of the model, which all machines must be able to read.
        """
        self._options = [serve_options(source, url, self._config, self._token) for url in self.urls]
        self._fleet.say = say
        self._fleet.start()
        say(f"vLLM servers{self._of_role} that Ray starts: {', '.join(self.urls)}")

    async def close(self) -> None:
        """End the servers."""
        await self._fleet.close()

    def remove(self) -> None:
        """Give their places back, which ends them."""
        with suppress(RayError):
            remove_placement_group(self._group)

    async def _admit(self, member: FleetActor, found: ActorState) -> None:
        if not found.serial:
            await asyncio.wrap_future(member.handle.start.remote(self._options[member.index]).future())


def serve_options(source: str, url: str, config: TrainConfig, token: str) -> ServeOptions:
    """Return the options of the server of ``url`` with the settings of a run.

    Args:
        source: folder or hub name of the model.
        token: token that its requests need. Jobs of others on the cluster reach the address, too.
    """
    parts, engine, cluster = urlsplit(url), config.engine, config.cluster
    num_gpus = int(cluster.gpus_per_engine)
    return ServeOptions(
        model=source,
        host=str(parts.hostname),
        port=parts.port or 80,
        max_context_tokens=config.model.max_context_tokens,
        lora_rank=config.model.lora.rank if engine.weight_sync == "lora" else 0,
        weight_transfer=engine.weight_sync if engine.weight_sync in TRANSFERS else "",
        token=token,
        extra=(*(("--tensor-parallel-size", str(num_gpus)) if num_gpus > 1 else ()), *cluster.vllm_flags),
    )


def last_error(log: str) -> str:
    """Return the last line of a log that names an error, else its last line.

    Example:
        >>> last_error("ValueError: no such flag\\nshutting down")
        'ValueError: no such flag'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["its log is empty"]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1])


def _reserved(config: ClusterConfig, role: str) -> PlacementGroup:
    """Reserve the places of the servers. Those of a first rank that died are given back first: Ray keeps them."""
    name = (os.environ.get(SERVERS_NAME) or uuid.uuid4().hex) + (f"-{role}" if role else "")
    with suppress(ValueError):  # there are none
        remove_placement_group(get_placement_group(name))
    bundle = {"CPU": config.cpus_per_engine, "GPU": config.gpus_per_engine, **config.engine_resources}
    bundle = {name: amount for name, amount in bundle.items() if amount} or _LEAST
    group = placement_group([bundle] * config.num_engines, strategy=config.placement.upper(), name=name)
    if not group.wait(config.start_timeout_s):
        remove_placement_group(group)
        raise ConfigError(
            f"the Ray cluster had no room for cluster.num_engines={config.num_engines} of {bundle} within "
            f"cluster.start_timeout_s={config.start_timeout_s:g}"
        )
    return group


def _urls_of(handles: Sequence[ActorHandle], timeout_s: float) -> tuple[str, ...]:
    try:
        return tuple(ray.get([handle.begin.remote() for handle in handles], timeout=timeout_s))
    except RayError as error:
        raise ConfigError(f"cluster.num_engines: no vLLM server can be started: {first_line(error)}") from None
