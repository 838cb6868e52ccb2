"""What hostile code tries on the rungs that claim to hold it: none succeeds, the host and the pool stay well."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from testkit.runs import processes_with

from agentgym.errors import SandboxDeadError, SandboxFileError
from agentgym.sandbox import ExecResult, Limits, Sandbox
from agentgym.sandboxes import namespaces
from agentgym.sandboxes.docker import DockerSandbox
from agentgym.sandboxes.namespaces import NamespaceSandbox
from agentgym.sandboxes.owner import descendants
from agentgym.sandboxes.pool import SandboxPool
from agentgym.sandboxes.run_folder import state_folder

NO_NAMESPACES = namespaces.why_not() or ("needs root for control groups" if os.getuid() else "")
SMALL = Limits(wall_s=60, memory_mb=256, workspace_mb=64, tmp_mb=32, num_pids=64, num_cpus=0.5)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param(
            "namespaces", marks=[pytest.mark.slow, pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)]
        ),
    ],
)
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    kinds = {"docker": lambda: DockerSandbox(limits=SMALL), "namespaces": lambda: NamespaceSandbox(SMALL)}
    with SandboxPool(kinds[request.param], num_ready=1, max_open=2) as made:
        yield made


@pytest.fixture
def sandbox(pool: SandboxPool) -> Iterator[Sandbox]:
    """One of the pool; after the test the pool must lend others that work, and the host be in order."""
    kept_before, used_before = kept_mb(), sandboxed_mb()
    with pool.acquire() as lent:
        yield lent
    for _ in range(2):
        with pool.acquire() as after:
            assert after.list() == ()
            assert after.exec("echo fine; ls -A /tmp /dev/shm").stdout == "fine\n/dev/shm:\n\n/tmp:\n"
            assert after.run_python("print(6 * 7)").stdout == "42\n"
    assert kept_mb() < kept_before + 100
    assert sandboxed_mb() < used_before + 500


def kept_mb() -> float:
    """Files on the host's disk in the folders of sandboxes and of Docker's containers; what others write is not
    counted."""
    total = 0
    for root in (state_folder(), Path("/var/lib/docker/containers")):
        for folder, _, names in os.walk(root):
            for name in names:
                with suppress(OSError):  # it was removed meanwhile
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total / 2**20


def sandboxed_mb() -> float:
    """Resident memory of all processes in control groups of sandboxes; the host's own are not counted."""
    total_kb = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            groups = folder.joinpath("cgroup").read_text()
            if "docker" in groups or "/agentgym/" in groups:
                lines = folder.joinpath("status").read_text().splitlines()
                total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total_kb / 1024


def works(sandbox: Sandbox) -> None:
    """The next call of the same sandbox."""
    assert sandbox.exec("echo fine").stdout == "fine\n"


@pytest.mark.parametrize(
    "bomb",
    [
        ":(){ :|:& };:",
        "while :; do (sleep 30 &) ; done",
        "exec python3 -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'",
        # forks and exits for ever: no process lives long enough to be found by looking
        "exec python3 -c 'import os\nwhile True:\n  try:\n    if os.fork(): os._exit(0)\n    os.setsid()\n  except OSError: pass'",  # noqa: E501
        "exec python3 -c 'import threading, time\nwhile True:\n  try: threading.Thread(target=time.sleep, args=(30,)).start()\n  except RuntimeError: pass'",  # noqa: E501
    ],
)
def test_fork_bomb(sandbox: Sandbox, bomb: str) -> None:
    marker = f"bomb-{time.monotonic_ns()}"
    sandbox.exec(["bash", "-c", f"{bomb} # {marker}"], timeout_s=1.5)
    works(sandbox)
    assert [line for line in processes_with(marker) if "bwrap" not in line and "dockerd" not in line] == []


def test_ten_gigabytes_of_memory(sandbox: Sandbox) -> None:
    result = sandbox.run_python("x = bytearray(10 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('had it')")
    assert "had it" not in result.stdout
    assert result.limit == "memory" or "MemoryError" in result.stderr
    works(sandbox)
    grow = "x = []\nwhile True: x.append(bytes(1 << 20))"
    assert sandbox.run_python(grow).limit == "memory"
    works(sandbox)


def test_memory_that_lies_in_files(sandbox: Sandbox) -> None:
    line = "for p in /tmp /dev/shm .; do for i in 1 2 3 4; do head -c 60000000 /dev/zero > $p/f$i; done; done"
    sandbox.exec(line, timeout_s=15)
    with_mappings = """
import mmap, os
maps = []
try:
    while True:
        fd = os.memfd_create("x"); os.ftruncate(fd, 50 << 20)
        m = mmap.mmap(fd, 50 << 20); m.write(bytes(50 << 20)); maps.append(m)
except (OSError, ValueError): print("refused")
"""
    sandbox.run_python(with_mappings, timeout_s=15)
    works(sandbox)


def test_ten_gigabytes_of_file(sandbox: Sandbox) -> None:
    result = sandbox.exec("head -c 10000000000 /dev/zero > big; ls -l big | cut -d' ' -f5")
    assert int(result.stdout) <= 64 << 20
    sandbox.exec("truncate -s 10G sparse; fallocate -l 10G solid; dd if=/dev/zero of=/tmp/x bs=1M seek=9999 count=1")
    assert all(info.size_bytes <= 64 << 20 for info in sandbox.list())
    works(sandbox)


@pytest.mark.parametrize("line", ["yes", "yes >&2", "cat /dev/zero", "cat /dev/urandom | tee /dev/stderr"])
def test_endless_output(sandbox: Sandbox, line: str) -> None:
    result = sandbox.exec(line, timeout_s=1.5)
    assert result.timed_out
    assert result.is_cut
    assert len(result.stdout) <= SMALL.output_bytes
    assert len(result.stderr) <= SMALL.output_bytes
    works(sandbox)


def test_endless_loop_that_ignores_signals(sandbox: Sandbox) -> None:
    deaf = "trap '' TERM INT HUP QUIT USR1 USR2 ALRM; echo started; while :; do :; done"
    result: ExecResult = sandbox.exec(["bash", "-c", deaf], timeout_s=1)
    assert (result.timed_out, result.stdout, result.exit_code) == (True, "started\n", -9)
    stopped = sandbox.exec("sh -c 'kill -STOP $$; sleep 30' & kill -STOP $$", timeout_s=1)
    assert stopped.timed_out
    works(sandbox)


def test_network_and_names(sandbox: Sandbox) -> None:
    with socket.create_server(("0.0.0.0", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0agentgym-abuse")
        abstract.listen()
        code = f"""
import socket
def attempt(what, family, kind, address):
    try:
        s = socket.socket(family, kind); s.settimeout(1); s.connect(address)
        if kind == socket.SOCK_DGRAM: s.send(b"x")
        print("reached", what)
    except OSError as error:
        pass
for host in ("127.0.0.1", "172.17.0.1", "169.254.169.254", "1.1.1.1"):
    attempt(host, socket.AF_INET, socket.SOCK_STREAM, (host, {tcp.getsockname()[1]}))
    attempt(host + " udp", socket.AF_INET, socket.SOCK_DGRAM, (host, 53)) if host[:3] != "127" else None
attempt("abstract", socket.AF_UNIX, socket.SOCK_STREAM, "\\0agentgym-abuse")
for name in ("localhost.localdomain.invalid", "deb.debian.org", "host.docker.internal"):
    try: print("resolved", name, socket.getaddrinfo(name, 80))
    except OSError: pass
for kind in (socket.AF_PACKET, socket.AF_NETLINK):
    try: socket.socket(kind, socket.SOCK_RAW).send(b"x" * 64); print("raw", kind)
    except OSError: pass
print("done")
"""
        result = sandbox.run_python(code)
        assert result.stdout.replace(f"raw {socket.AF_NETLINK}\n", "") == "done\n", result


def test_files_of_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's own")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.name.startswith(("pytest", "test")):
            folder.chmod(0o755)
    paths = [
        str(secret),
        "/etc/shadow",
        "/root",
        "/home",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd",
    ]
    for path in paths:
        seen = sandbox.exec(f"cat {path} 2>/dev/null || ls -A {path} 2>/dev/null")
        assert "own" not in seen.stdout
        assert "root:" not in seen.stdout
        assert seen.stdout == "" or path in ("/root", "/home"), path
    for pid in ("1", "self", "thread-self"):
        escape = sandbox.exec(f"cat /proc/{pid}/root{secret} /proc/{pid}/cwd/..{secret} /proc/{pid}/root/etc/shadow")
        assert escape.stdout == ""


def test_the_kernel_s_own_files(sandbox: Sandbox) -> None:
    tries = [
        "echo c > /proc/sysrq-trigger",
        "echo /tmp/x > /proc/sys/kernel/core_pattern",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo 1 > /proc/1/oom_score_adj",
        "echo -1000 > /proc/self/oom_score_adj",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "head -c 1 /proc/kcore",
        "ls /proc/1/fd",
        "ls /proc/1/map_files/",
        "head -c 1 /dev/mem",
        "mknod disk b 8 0",
        "mknod disk b 254 0",
        "mount -t tmpfs none /tmp",
        "mount -t proc none /tmp",
        "mount -o remount,rw /",
        "chroot / true",
        "nsenter -t 1 -m true",
        "dmesg",
        "hostname other",
        "date -s 2000-01-01",
        "chown 0:0 .",
        "kill -9 1 && sleep 0.1 && test ! -d /proc/1",
        "echo $$ > /sys/fs/cgroup/memory/cgroup.procs",
        "echo max > /sys/fs/cgroup/memory.max",
        "echo -1 > /sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    succeeded = [line for line in tries if sandbox.exec(line).exit_code == 0]
    assert succeeded == []


def test_other_namespaces_of_its_own_give_nothing(sandbox: Sandbox) -> None:
    """Even where a user may make namespaces, being root in one is no way to the host's files or out of the limits."""
    inner = "id -u; mount -t tmpfs none /usr && echo mounted; cat /etc/shadow; ls /root; mount -o remount,rw,bind / && echo remounted && touch /x"  # noqa: E501
    result = sandbox.exec(["unshare", "-Urmpf", "sh", "-c", inner])
    assert "root:" not in result.stdout
    assert not sandbox.exec("ls /x").ok
    works(sandbox)


def test_links_out_of_the_workspace(sandbox: Sandbox) -> None:
    sandbox.exec(
        "ln -s /etc/shadow link; ln -s /proc/1/root up; ln -s /proc/self/root self; mkdir d; ln -s ../.. d/dots"
    )
    for path in ("link", "up/etc/passwd", "self/etc/passwd", "d/dots/etc/passwd"):
        with pytest.raises(SandboxFileError):
            sandbox.read(path)
        with pytest.raises(SandboxFileError):
            sandbox.write(path, "x")
    racing = """
import os, time
end = time.monotonic() + 4
while time.monotonic() < end:
    for target in ("/etc/passwd", "inside"):
        try: os.symlink(target, "new"); os.rename("new", "moving")
        except OSError: pass
"""
    sandbox.write("inside", "mine")
    thread = threading.Thread(target=sandbox.run_python, args=(racing,))
    thread.start()
    for _ in range(5):
        with suppress(SandboxFileError):
            assert b"root:" not in sandbox.read("moving")
    thread.join()


def test_a_snapshot_of_traps_is_harmless(sandbox: Sandbox, pool: SandboxPool) -> None:
    sandbox.exec(
        "ln -s /etc out; ln -s /workspace/../tmp tmp; mkfifo pipe; mkdir -p a/b; chmod 4755 a; ln f g 2>/dev/null"
    )
    saved = sandbox.snapshot()
    sandbox.restore(saved)
    assert not sandbox.exec("touch /etc/x").ok
    with pool.acquire() as other:
        other.restore(saved)
        assert other.exec("ls").stdout == sandbox.exec("ls").stdout


def test_ending_the_worker(sandbox: Sandbox) -> None:
    tries = """
import ctypes, os, signal, resource
for s in range(1, 65):
    for pid in (1, os.getppid()):
        try: os.kill(pid, s)
        except OSError: pass
libc = ctypes.CDLL(None)
for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
    if libc.ptrace(request, 1, 0, 0) == 0: print("traces process 1")
for action in (lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)), lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)),
               lambda: os.sched_setaffinity(1, {0}), lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
               lambda: open("/proc/1/mem", "r+b"), lambda: open("/proc/1/fd/0", "w"), lambda: os.pidfd_send_signal(os.pidfd_open(1), 9) if hasattr(os, "pidfd_open") and hasattr(os, "pidfd_send_signal") else 1 / 0):
    try: action(); print("did", action)
    except (OSError, ValueError, ZeroDivisionError, AttributeError): pass
print("tried")
"""  # noqa: E501
    assert sandbox.run_python(tries).stdout == "tried\n"
    works(sandbox)


def test_writing_to_the_worker_s_line(sandbox: Sandbox) -> None:
    """Bytes that look like the worker's answers, on every descriptor there is."""
    forged = """
import os, struct
reply = b'{"exit_code": 0, "limit": "", "stdout_cut": false}'
for fd in range(256):
    try: os.write(fd, struct.pack(">cI", b"R", len(reply)) + reply)
    except OSError: pass
raise SystemExit(5)
"""
    result = sandbox.run_python(forged)
    assert result.exit_code == 5
    assert "exit_code" in result.stdout
    works(sandbox)


def test_a_daemon_that_outlives_its_call(sandbox: Sandbox) -> None:
    daemon = "setsid -f sh -c 'trap \"\" TERM HUP; while :; do echo . >> ticks; sleep 0.05; done'; "
    daemon += "while [ ! -e ticks ]; do sleep 0.01; done"
    sandbox.exec(daemon)
    before = sandbox.read("ticks")
    time.sleep(0.3)
    assert sandbox.read("ticks") == before != b""
    assert sandbox.exec("ls -d /proc/[0-9]* | wc -l").stdout.strip() in ("3", "4", "5")  # 1, sh, ls, wc


def test_names_and_depth_that_trip_a_reset(sandbox: Sandbox) -> None:
    deep = """
import os
for _ in range(400):
    os.mkdir("d" * 200); os.chdir("d" * 200)
open("f", "w").close()
"""
    sandbox.run_python(deep)
    sandbox.exec("mkdir -p x/y && touch x/y/z && chmod 000 x/y x; printf x > '-rf'; chmod 000 . /tmp 2>/dev/null")


def test_objects_outside_files_do_not_survive_a_reset(pool: SandboxPool) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None)
print(libc.shmget(4711, 4096, 0o1666) >= 0, libc.msgget(4711, 0o1666) >= 0, libc.semget(4711, 1, 0o1666) >= 0)
"""
    with pool.acquire() as first:
        assert first.run_python(code).stdout == "True True True\n"
    look = (
        "import ctypes\nc = ctypes.CDLL(None)\nprint([c.shmget(4711, 0, 0), c.msgget(4711, 0), c.semget(4711, 0, 0)])"
    )
    for _ in range(3):
        with pool.acquire() as other:
            assert other.run_python(look).stdout == "[-1, -1, -1]\n"


def test_one_that_is_killed_from_outside_is_dead_and_replaced(pool: SandboxPool) -> None:
    with pool.acquire() as lent:
        failed: list[BaseException] = []

        def run() -> None:
            try:
                lent.exec("sleep 7")
            except SandboxDeadError as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        kill(lent)
        thread.join(15)
        assert len(failed) == 1
        assert not lent.alive()
        with pytest.raises(SandboxDeadError):
            lent.read("x")
    with pool.acquire() as other:
        works(other)


def kill(lent: Sandbox) -> None:
    inner = lent._sandbox  # type: ignore[attr-defined]
    if isinstance(inner, DockerSandbox):
        assert inner._container is not None
        inner._container.kill()
    else:
        assert isinstance(inner, NamespaceSandbox) and inner._worker is not None
        os.kill(descendants(inner._worker.pid)[0], signal.SIGKILL)
