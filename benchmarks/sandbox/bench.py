"""Acquire a warm sandbox and run ``print(1)`` in it, against plain ``docker run`` and ``docker exec``, in one run.

    python benchmarks/sandbox/bench.py --output benchmarks/sandbox/results.json

Needs a Docker engine with the base image (``agentgym sandbox build``) and bubblewrap. All ways alternate, so that other
load affects all of them. Times are of wall clock at the caller, in milliseconds; an acquired sandbox is used once and
given back, and the pool resets it in the background, as it would between episodes. Then 32 episodes at the same time,
each in a Docker sandbox of its own, with ten calls and the pauses of a model that writes the next one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentgym.sandbox import Sandbox
from agentgym.sandboxes.docker import DockerSandbox
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.sandboxes.namespaces import NamespaceSandbox
from agentgym.sandboxes.pool import SandboxPool

_PROGRAM = ["python3", "-c", "print(1)"]
_PAUSE_S = 0.1  # an episode is longer; the pool resets meanwhile
_NUM_PARALLEL, _NUM_CALLS, _WRITING_S = 32, 10, 0.5


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def quiet(command: list[str]) -> None:
    """Run a command that must print 1."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n", done


def printed(sandbox: Sandbox) -> None:
    """``print(1)`` in a fork of the warm interpreter."""
    assert sandbox.run_python("print(1)").stdout == "1\n"


def program(sandbox: Sandbox) -> None:
    """``print(1)`` in a new interpreter, as ``docker exec`` runs it."""
    assert sandbox.exec(_PROGRAM).stdout == "1\n"


def measure(num_rounds: int) -> dict[str, list[float]]:
    """Seconds by way, each ``num_rounds`` times."""
    taken: dict[str, list[float]] = {}

    def note(way: str, call: Callable[[], Any]) -> None:
        taken.setdefault(way, []).append(seconds(call))

    run = ["docker", "run", "--rm", "--network", "none", DEFAULT_IMAGE, *_PROGRAM]
    container = subprocess.run(
        ["docker", "run", "-d", "--rm", "--network", "none", DEFAULT_IMAGE, "sleep", "infinity"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    try:
        kinds: dict[str, Callable[[], Sandbox]] = {"docker": DockerSandbox, "namespaces": NamespaceSandbox}
        with (
            SandboxPool(kinds["docker"], num_ready=4) as first,
            SandboxPool(kinds["namespaces"], num_ready=4) as second,
        ):
            pools = {"docker": first, "namespaces": second}
            for pool in pools.values():
                pool.wait_until_ready()
            for _ in range(num_rounds):
                note("plain docker run of print(1)", lambda: quiet(run))
                note("plain docker exec of print(1)", lambda: quiet(["docker", "exec", container, *_PROGRAM]))
                for kind, pool in pools.items():
                    lent: list[Sandbox] = []
                    note(f"{kind}: warm acquire", lambda lent=lent, pool=pool: lent.append(pool.acquire()))  # type: ignore[misc]
                    note(f"{kind}: run_python print(1)", lambda lent=lent: printed(lent[0]))  # type: ignore[misc]
                    note(f"{kind}: exec python3 -c print(1)", lambda lent=lent: program(lent[0]))  # type: ignore[misc]
                    lent[0].close()
                    time.sleep(_PAUSE_S)
                for kind, open_one in kinds.items():
                    note(f"{kind}: cold open and close", lambda open_one=open_one: open_one().close())  # type: ignore[misc]
    finally:
        subprocess.run(["docker", "kill", container], capture_output=True, check=False)
    return taken


def measure_parallel() -> dict[str, list[float]]:
    """Seconds of every acquire and call in 32 Docker episodes at the same time."""
    acquired: list[float] = []
    called: list[float] = []

    def episode(number: int) -> None:
        time.sleep(number * _WRITING_S / _NUM_PARALLEL)  # so that they do not start in step
        lent: list[Sandbox] = []
        acquired.append(seconds(lambda: lent.append(pool.acquire())))
        with lent[0] as sandbox:
            for _ in range(_NUM_CALLS):
                time.sleep(_WRITING_S)
                called.append(seconds(lambda: printed(sandbox)))

    with SandboxPool(DockerSandbox, num_ready=_NUM_PARALLEL, max_open=_NUM_PARALLEL) as pool:
        pool.wait_until_ready()
        with ThreadPoolExecutor(_NUM_PARALLEL) as threads:
            list(threads.map(episode, range(_NUM_PARALLEL)))
    return {"docker, 32 episodes: warm acquire": acquired, "docker, 32 episodes: run_python print(1)": called}


def summary(taken: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians and 95th percentiles, and the speed relative to plain Docker."""
    rows = {
        way: {
            "p50_ms": round(statistics.median(times) * 1e3, 2),
            "p95_ms": round(statistics.quantiles(times, n=20)[-1] * 1e3, 2),
        }
        for way, times in taken.items()
    }
    run, execute = rows["plain docker run of print(1)"]["p50_ms"], rows["plain docker exec of print(1)"]["p50_ms"]
    ratios = {}
    for kind in ("docker", "namespaces"):
        ratios[f"{kind}: docker run / warm acquire and run_python"] = round(
            run / (rows[f"{kind}: warm acquire"]["p50_ms"] + rows[f"{kind}: run_python print(1)"]["p50_ms"]), 1
        )
        ratios[f"{kind}: docker exec / run_python"] = round(execute / rows[f"{kind}: run_python print(1)"]["p50_ms"], 1)
        ratios[f"{kind}: docker exec / exec"] = round(execute / rows[f"{kind}: exec python3 -c print(1)"]["p50_ms"], 1)
    return {"times": rows, "times_quicker_p50": ratios}


def main() -> None:
    """Measure, print, and write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    load = os.getloadavg()[0]
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.platform(terse=True)}, Python {platform.python_version()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.strip(),
        "load_before": round(load, 1),
        "rounds": arguments.rounds,
        **summary(measure(arguments.rounds) | measure_parallel()),
    }
    text = json.dumps(results, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
