"""Separate runs, for tests of the leftovers of a killed run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

BUSY = """
import contextlib, json, sys, threading, time
from agentgym.errors import AgentGymError
from agentgym.sandboxes.ladder import open_sandbox
from agentgym.sandboxes.owner import current_owner

backend, marker = sys.argv[1:]
def run(sandbox, line):
    with contextlib.suppress(AgentGymError):
        sandbox.exec(line)

sandboxes = [open_sandbox(backend) for _ in range(2)]
lines = [f"setsid sleep {marker} & sleep {marker} & exec sleep {marker}", f"while :; do :; done # {marker}"]
for sandbox, line in zip(sandboxes, lines):
    sandbox.write("file", "x")
    threading.Thread(target=run, args=(sandbox, line), daemon=True).start()
time.sleep(0.7)
print(json.dumps({"run": current_owner().run, "ids": [sandbox.id for sandbox in sandboxes]}), flush=True)
for line in sys.stdin:
    print(sandboxes[0].alive() and sandboxes[1].alive(), flush=True)
"""


class BusyRun:
    """Another run on this host with two sandboxes, both busy."""

    def __init__(self, backend: str, marker: str, state: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "AGENTGYM_STATE": str(state)}
        command = [sys.executable, "-c", BUSY, backend, marker]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said: dict[str, Any] = json.loads(self._line() or "{}")
        self.run, self.ids = said["run"], tuple(said["ids"])

    def is_well(self) -> bool:
        """Return True if both sandboxes of the run answer."""
        assert self.process.stdin is not None
        self.process.stdin.write("well?\n")
        self.process.stdin.flush()
        return self._line() == "True\n"

    def kill(self) -> None:
        """Kill the run with signal 9."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        """Let the run end normally."""
        self.process.communicate(timeout=60)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def processes_with(text: str) -> list[str]:
    """Return the command lines of processes on this host that contain a text."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(f"{folder.name} {line[:100]}")
    return found
