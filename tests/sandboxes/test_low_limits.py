"""Sandboxes in a process whose own limits are lower than those of a job."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentgym.sandboxes import namespaces

NO_NAMESPACES = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())


@pytest.mark.parametrize("backend", ["process", pytest.param("namespaces", marks=NO_NAMESPACES)])
def test_a_job_keeps_a_limit_that_is_lower_than_its_own(backend: str) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    source = f"""
import resource
from agentgym.sandboxes.ladder import open_sandbox
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with open_sandbox({backend!r}) as sandbox:
    done = sandbox.run_python({code!r})
print(done.stdout, done.stderr)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["(64,", "64)"], done
