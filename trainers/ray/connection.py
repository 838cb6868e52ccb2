"""Connection to a Ray cluster, and the resources and options of a run's actors."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import Final, TypedDict
from urllib.parse import urlsplit

import ray

from agentgym.errors import ConfigError
from agentgym.plugins import COPIES_VARIABLE
from agentgym.server_tokens import TOKEN_VARIABLE
from agentgym.trainers.config.cluster import AUTH_MODE, ClusterConfig
from agentgym.trainers.config.roles import POLICY, served_by_ray
from agentgym.trainers.config.train import TrainConfig

_REACH_TIMEOUT_S = 5.0
_LOOK_S = 0.5
ENGINE: Final = "engine"
"""Kind of the policy's engine actors, and the beginning of the kinds of those of roles."""


def connect(config: TrainConfig) -> bool:
    """Connect to the cluster; return False if this process is already connected, as an actor is.

    Raises:
        ConfigError: no cluster has that address, or it does not answer.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = config.cluster.address
    arguments: dict[str, object] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        arguments |= _own_cluster(config)
    else:
        _check_reachable(address)
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**arguments)
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        is_named = address not in ("auto", "local")
        hint = (
            f"; one that asks for a token needs {AUTH_MODE}=token" if is_named and AUTH_MODE not in os.environ else ""
        )
        raise ConfigError(
            f"cluster.address={address}: no Ray cluster could be joined ({type(error).__name__}: {first}); "
            f"ray start --head starts one, cluster.address=local makes one of the run's own{hint}"
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, at_sigterm)  # Ray's own handler would end the process without a word
    return True


def _own_cluster(config: TrainConfig) -> dict[str, object]:
    """Return Ray's arguments for a cluster of this run on this machine."""
    # as many processors as are asked for: the actors share those that are there anyway
    needs = {name: math.ceil(amount) for name, amount in _needs(config).items()}
    arguments: dict[str, object] = {
        "include_dashboard": False,
        "num_cpus": max(1, needs.pop("CPU")),
        # its actors are the run: not to come after everything else, nor after processes that nobody asked for
        "_system_config": {"worker_niceness": 0, "prestart_worker_first_driver": False},
    }
    del needs["GPU"]  # those that are there
    if config.cluster.object_store_mb:
        arguments["object_store_memory"] = config.cluster.object_store_mb * 2**20
    return {**arguments, "resources": needs}


def _check_reachable(address: str) -> None:
    """Check the port before Ray connects, because Ray would retry for a minute."""
    if address == "auto":
        return
    parts = urlsplit(address if "://" in address else f"ray-head://{address}")
    try:
        if not parts.hostname or not parts.port:
            raise OSError("expected auto, local, HOST:PORT or ray://HOST:PORT")
        socket.create_connection((parts.hostname, parts.port), _REACH_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster.address={address} cannot be reached: {error}") from None


class ActorOptions(TypedDict):
    """Options of an actor, with Ray's names."""

    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    scheduling_strategy: str
    max_restarts: int
    max_task_retries: int
    max_concurrency: int


def options_of(config: ClusterConfig, kind: str) -> ActorOptions:
    """Return the options of an actor that Ray restarts if it dies."""
    is_engine = kind.startswith(ENGINE)
    resources: Mapping[str, float] = config.engine_resources if is_engine else config.env_worker_resources
    return {
        "num_cpus": config.cpus_per_engine if is_engine else config.cpus_per_env_worker,
        "num_gpus": config.gpus_per_engine if is_engine else 0,
        "resources": dict(resources),
        "scheduling_strategy": "SPREAD" if config.placement == "spread" else "DEFAULT",
        "max_restarts": -1,
        "max_task_retries": 0,  # a failed episode is played again by the caller, who knows its seeds
        "max_concurrency": 10_000,
    }


def environment_of_run(env_token: str = "") -> dict[str, str]:
    """Return the environment variables that a run's actors need. Ray's own processes do not have this one's.

    They are arguments of the actors and not in ``runtime_env``, which logs and the dashboard show.

    Args:
        env_token: token of the run's environment servers; empty if it has none.
    """
    tokens = {TOKEN_VARIABLE: env_token} if env_token else {}
    copies = {COPIES_VARIABLE: os.environ[COPIES_VARIABLE]} if COPIES_VARIABLE in os.environ else {}
    return tokens | copies


def check_resources(config: TrainConfig, wait_s: float = 0.0) -> None:
    """Check that the cluster has the resources of all actors; without them Ray would wait for ever.

    Args:
        wait_s: seconds to wait for a lost machine to come back.

    Raises:
        ConfigError: resources are missing; the message names what the actors need and what the cluster has.
    """
    give_up = time.monotonic() + wait_s
    while short := _shortage(config):
        if time.monotonic() >= give_up:
            own = config.cluster
            counts = {
                "trainer rank": own.num_trainer_ranks,
                "env worker": own.num_env_workers,
                "env server": own.num_env_servers,
                "engine": _num_engines(config),
            }
            actors = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count)
            raise ConfigError(
                f"the Ray cluster has too little for {actors}: {', '.join(short)}; lower their number or what each "
                "needs (cluster.num_engines, cluster.gpus_per_engine, and so on)"
            )
        time.sleep(_LOOK_S)


def _shortage(config: TrainConfig) -> list[str]:
    has = ray.cluster_resources()
    needs = _needs(config).items()
    return [f"{name} {has.get(name, 0.0):g} of {amount:g}" for name, amount in needs if amount > has.get(name, 0.0)]


def _num_engines(config: TrainConfig) -> int:
    if not config.cluster.plays:
        return config.cluster.num_engines * len(served_by_ray(config))
    of_roles = [role for name, role in config.roles.items() if name != POLICY and role.has_model]
    return config.cluster.num_engines * (1 + len(of_roles))


def _needs(config: TrainConfig) -> dict[str, float]:
    """Return the resources that all actors together reserve, by Ray's names."""
    own = config.cluster
    num_ranks = own.num_trainer_ranks
    needs = {"CPU": num_ranks * own.cpus_per_rank, "GPU": float(num_ranks * own.gpus_per_rank)}
    counts = {
        "env_worker": own.num_env_workers,
        "env_server": own.num_env_servers,
        ENGINE: _num_engines(config),
    }
    for kind, count in counts.items():
        options = options_of(own, kind)
        for name, amount in {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}.items():
            needs[name] = needs.get(name, 0.0) + count * amount
    return needs
