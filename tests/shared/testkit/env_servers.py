"""Environment servers in separate processes, as users start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class EnvServer:
    """``agentgym serve`` in a separate process."""

    def __init__(self, *arguments: str, token: str = "", port: int = 0) -> None:
        command = [sys.executable, "-m", "agentgym", "serve", *arguments, "--port", str(port), "--json"]
        environment = {**os.environ, "AGENTGYM_SERVER_TOKEN": token, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server did not start"
        said = json.loads(line)
        self.url: str = said["url"]
        self.headers = {"Authorization": f"Bearer {said['token']}"} if said["token"] else {}
        self.http = self.url.replace("ws://", "http://")

    def kill(self) -> None:
        """Kill the server."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Terminate the server and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    @property
    def memory_mib(self) -> float:
        """Return the server's resident memory in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def env_server(*arguments: str, token: str = "", port: int = 0) -> Iterator[EnvServer]:
    """Start a server, and terminate it when the context ends."""
    server = EnvServer(*arguments, token=token, port=port)
    try:
        yield server
    finally:
        server.kill()
