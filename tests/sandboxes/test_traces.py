"""What jobs leave outside their workspace is gone after a reset, and nothing of it reaches the host."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym.sandbox import Sandbox
from agentgym.sandboxes import cgroups, namespaces
from agentgym.sandboxes.docker import DockerSandbox
from agentgym.sandboxes.host_worker import HostSandbox
from agentgym.sandboxes.inside.worker import become_sweeper
from agentgym.sandboxes.namespaces import NamespaceSandbox
from agentgym.sandboxes.process import ProcessSandbox

KINDS = {"process": ProcessSandbox, "namespaces": NamespaceSandbox, "docker": DockerSandbox}
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="without root a sandbox has no user of its own")
NO_NAMESPACES = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())

NAME = f"agentgym-trace-{os.getpid()}"
PLANT = """
import ctypes, os
c = ctypes.CDLL(None)
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
for ring in (-3, -4, -5, c.syscall(number, 22, -1, -2)):
    c.syscall(number - 2, b"user", b"agentgym-trace", b"secret", 6, ring)
print(c.shmget(KEY, 4096, 0o1666), c.msgget(KEY, 0o1666), c.semget(KEY, 1, 0o1666))
for place in ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", os.environ["TMPDIR"]):
    try:
        os.makedirs(place + "/NAME/closed")
        open(place + "/NAME/closed/file", "w").close()
        os.chmod(place + "/NAME/closed", 0)
    except OSError: pass
os.utime(".", (4711, 4711))
""".replace("NAME", NAME).replace("KEY", str(os.getpid()))
LOOK = """
import ctypes, os
c = ctypes.CDLL(None)
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
for ring in (-3, -4, -5, c.syscall(number, 22, -1, -2)):
    if c.syscall(number, 10, ring, b"user", b"agentgym-trace", 0) != -1: print("a key in", ring)
for call in (lambda: c.shmget(KEY, 0, 0), lambda: c.msgget(KEY, 0), lambda: c.semget(KEY, 0, 0)):
    if call() != -1: print("an object")
for place in ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", os.environ["TMPDIR"]):
    if os.path.exists(place + "/NAME"): print("files in", place)
if 4711 in (int(os.stat(".").st_mtime), int(os.stat(".").st_atime)): print("times")
""".replace("NAME", NAME).replace("KEY", str(os.getpid()))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("process", marks=NEEDS_ROOT),
        pytest.param("namespaces", marks=NO_NAMESPACES),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    opened: Sandbox = KINDS[request.param]()
    yield opened
    opened.close()


def test_nothing_that_a_job_left_is_found_after_a_reset(sandbox: Sandbox) -> None:
    planted = sandbox.run_python(PLANT)
    assert planted.exit_code == 0, planted.stderr
    assert "files in" in sandbox.run_python(LOOK).stdout  # it is looked for in the right places
    sandbox.reset()
    assert sandbox.run_python(LOOK).stdout == ""


@NEEDS_ROOT
def test_a_sandbox_that_is_closed_leaves_nothing_on_the_host() -> None:
    with ProcessSandbox() as sandbox:
        assert sandbox.run_python(PLANT).ok
        assert isinstance(sandbox, HostSandbox)
        uids = {one[0] for one in sandbox._user_numbers.values() if one is not None}
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        assert not Path(place, NAME).exists()
    for kind in ("shm", "msg", "sem"):
        rows = [line.split() for line in Path("/proc/sysvipc", kind).read_text().splitlines()]
        assert [row for row in rows[1:] if int(row[rows[0].index("uid")]) in uids] == []


@NEEDS_ROOT
def test_the_keys_of_the_host_s_session_are_not_those_of_a_job() -> None:
    code = """
import ctypes, os
c = ctypes.CDLL(None)
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
c.syscall(number - 2, b"user", b"agentgym-host", b"secret", 6, -3)
from agentgym.sandboxes.process import ProcessSandbox
with ProcessSandbox() as sandbox:
    seek = f"import ctypes; print(ctypes.CDLL(None).syscall({number}, 10, -3, b'user', b'agentgym-host', 0))"
    print(sandbox.run_python(seek).stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "-1"


@NEEDS_ROOT
def test_the_agent_cannot_signal_who_sweeps_up() -> None:
    """As one user they could stop each other, and the worker would wait for ever."""
    agent, grader = 1_077_000_001, 1_077_000_002
    users = {"agent": [agent, agent], "grader": [grader, agent]}

    def child(act: str) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            if act == "sweep":
                become_sweeper(users)
            else:
                os.setresuid(agent, agent, agent)
            time.sleep(30)
        finally:
            os._exit(0)

    sweeper, process = child("sweep"), child("run")
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and os.stat(f"/proc/{process}").st_uid != agent:
            time.sleep(0.01)
        tries = f"import os\nos.setresuid({agent}, {agent}, {agent})\nos.kill({sweeper}, 19)"
        time.sleep(0.1)
        refused = subprocess.run([sys.executable, "-c", tries], capture_output=True, text=True, check=False)
        assert "PermissionError" in refused.stderr
        sweeps = (
            "import os\nfrom agentgym.sandboxes.inside.worker import become_sweeper\n"
            f"become_sweeper({users})\nos.kill({process}, 9)"
        )
        subprocess.run([sys.executable, "-c", sweeps], check=True)
        assert os.waitpid(process, 0)[1] == signal.SIGKILL
        process = 0
    finally:
        for pid in filter(None, (sweeper, process)):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@NEEDS_ROOT
@pytest.mark.skipif(bool(cgroups.why_not()), reason=cgroups.why_not())
def test_a_worker_that_is_stopped_leaves_no_process() -> None:
    with ProcessSandbox() as sandbox:
        assert isinstance(sandbox, HostSandbox) and sandbox._worker is not None and sandbox._cgroup is not None
        sandbox.exec("true")
        groups = sandbox._cgroup.paths
        os.kill(sandbox._worker.pid, signal.SIGKILL)
        sandbox._worker.wait()
        left = subprocess.Popen(["sleep", "60"])  # in the group, as if the worker had not come to sweep
        Path(groups[0], "cgroup.procs").write_text(str(left.pid))
    assert left.wait(5) == -signal.SIGKILL
    assert not any(Path(group).exists() for group in groups)
