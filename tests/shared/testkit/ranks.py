"""Functions that start programs as the ranks of one run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from agentgym.ports import free_port
from testkit.warm_python import Command


def launched(num_ranks: int, *arguments: str, timeout_s: float = 300) -> str:
    """Return the output of ``python ARGUMENTS`` on several ranks started by torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    done = subprocess.run(
        [sys.executable, *torchrun, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def forked(address: str, num_ranks: int, *arguments: str) -> str:
    """Return the output of several processes, started like torchrun's ranks but without importing torchrun."""
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}

    def rank(number: int, out: IO[bytes], err: IO[bytes]) -> int:
        files = (0, out.fileno(), err.fileno())
        environment = {"RANK": str(number), "LOCAL_RANK": str(number), **together}
        return Command(address, list(arguments), files, environment).wait()

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, ThreadPoolExecutor(num_ranks) as pool:
        codes = list(pool.map(lambda number: rank(number, out, err), range(num_ranks)))
        out.seek(0)
        err.seek(0)
        said, failed = out.read().decode(), err.read().decode()
    assert codes == [0] * num_ranks, failed[-3000:]
    return said
