"""An actor that runs an environment server on a machine chosen by Ray.

Env workers then only render prompts and call engines; the environments run on these machines.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import ray

from agentgym.errors import EnvError
from agentgym.trainers.ray.actor_state import ActorState, ending_with_parent

_FIRST_PORT, _NUM_PORTS, _TRIES = 20_000, 10_000, 50


class EnvServerActor:
    """An actor that runs ``agentgym serve`` and exits when the server exits, so that Ray restarts both.

    Args:
        envs: ids of the environments, as in the run's configuration.
        port: preferred port. A restarted server should have the address that its clients know.
        folder: base folder of relative paths.
        environment: environment variables of the run, with the token that clients send.

    Raises:
        EnvError: the server does not start.
    """

    def __init__(self, envs: Sequence[str], port: int, folder: str, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        if os.path.isdir(folder):  # a machine without it has environments of packages alone
            os.chdir(folder)
        self._state = ActorState()
        host = ray.util.get_node_ip_address()
        command = [sys.executable, "-m", "agentgym", "serve", *envs, "--host", host, "--json"]
        self._process = subprocess.Popen(
            [*ending_with_parent(), *command, "--port", str(_free_port(host, port))],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith('{"url"'):
            raise EnvError(f"agentgym serve {' '.join(envs)} did not start: {line.strip()[:500]}")
        self._url: str = json.loads(line)["url"]

    async def url(self) -> str:
        """Return the server's address."""
        return self._url

    async def ping(self) -> ActorState:
        """Return the state of the actor; exit if the server has exited."""
        if self._process.poll() is not None:
            os._exit(1)
        return self._state


def ports(num_servers: int) -> list[int]:
    """Return a port for each server of a run; runs usually get different ranges."""
    first = secrets.randbelow(_NUM_PORTS - num_servers * _TRIES)
    return [_FIRST_PORT + first + index * _TRIES for index in range(num_servers)]


def _free_port(host: str, wanted: int) -> int:
    for port in range(wanted, wanted + _TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise EnvError(f"{host}: none of the ports {wanted} to {wanted + _TRIES - 1} is free for an environment server")
