"""Checks of a sandbox: running programs and ending them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from agentgym.check.report import CheckFailed
from agentgym.check.sandbox.subject import NOT_CLAIMED, PROGRAMS, SandboxSubject, demand, done, expect, refused
from agentgym.errors import ConfigError, SandboxRefusedError

_PATIENCE_S = 20.0  # seconds by which a call may exceed its time-out on a busy machine
_TICKER = "while :; do echo . >> {}; sleep 0.05; done"


def exit_codes(subject: SandboxSubject) -> str:
    """Check the exit codes of success, failure, a missing program, and a signal."""
    run = subject.sandbox.exec
    expect("exit code of true", run(["true"]).exit_code, 0)
    expect("exit code of 'exit 3'", run("exit 3").exit_code, 3)
    expect("exit code of a missing program", run(["there-is-no-such-program"]).exit_code, 127)
    expect("exit code after SIGSEGV", run("kill -SEGV $$").exit_code, -11)
    return "0, 3, 127 and -11 come back as such"


def both_outputs(subject: SandboxSubject) -> str:
    """Check that stdout and stderr are returned separately, complete and in order."""
    result = subject.sandbox.exec("seq 1 2000; echo bad >&2")
    expect("stdout", result.stdout, "".join(f"{number}\n" for number in range(1, 2001)))
    expect("stderr", result.stderr, "bad\n")
    return "kept apart, whole and in order"


def shell_or_program(subject: SandboxSubject) -> str:
    """Check that a string runs as a shell line, and that a sequence reaches the program unchanged."""
    expect("shell line", subject.sandbox.exec("echo $((1 + 2))").stdout, "3\n")
    expect("program", subject.sandbox.exec(["echo", "$((1 + 2))", "a  b", "", "'"]).stdout, "$((1 + 2)) a  b  '\n")
    return "a string is a shell line, a sequence is not"


def standard_input(subject: SandboxSubject) -> str:
    """Check that standard input arrives completely and ends, and that a program need not read it."""
    run, much = subject.sandbox.exec, b"0123456789abcdef" * 40_000
    expect("bytes counted by wc", run(["wc", "-c"], stdin=much).stdout.strip(), str(len(much)))
    expect("cat of nothing", done(run(["cat"], timeout_s=10)).stdout, "")
    expect("a program that reads none of it", run(["true"], stdin=much).exit_code, 0)
    expect("text", run(["cat"], stdin="grüß\n").stdout, "grüß\n")
    return f"{len(much)} bytes arrive, an end arrives, unread input is dropped"


def environment(subject: SandboxSubject) -> str:
    """Check that given environment variables arrive, and none of the host's."""
    os.environ["AGENTGYM_CHECK_SECRET"] = "of the host"
    try:
        result = subject.sandbox.exec("env", env={"GIVEN": "a=b c"})
    finally:
        del os.environ["AGENTGYM_CHECK_SECRET"]
    demand("GIVEN=a=b c\n" in result.stdout, "a variable that was given is not there")
    demand("AGENTGYM_CHECK_SECRET" not in result.stdout, "a variable of the host is there")
    demand("GIVEN" not in subject.sandbox.exec("env").stdout, "a variable of one call is there in the next")
    return "given variables arrive, the host's do not"


def working_folder(subject: SandboxSubject) -> str:
    """Check that programs start in the workspace or in the given folder."""
    sandbox = subject.sandbox
    expect("pwd", sandbox.exec("pwd").stdout.strip(), sandbox.workspace)
    sandbox.write("deep/er/file", "")
    expect("pwd in a folder", sandbox.exec("pwd", cwd="deep/er").stdout.strip(), f"{sandbox.workspace}/deep/er")
    refused(lambda: sandbox.exec("pwd", cwd="missing"), "a missing folder", "not_found")
    refused(lambda: sandbox.exec("pwd", cwd="/"), "a folder outside", "outside_workspace")
    return "the workspace by default; missing and outside folders are refused"


def odd_bytes(subject: SandboxSubject) -> str:
    """Check that output that is not UTF-8 is returned as text."""
    expect("stdout", subject.sandbox.exec(r"printf 'a\377b'").stdout, "a\ufffdb")
    return "replaced"


def output_cap(subject: SandboxSubject) -> str:
    """Check that both outputs are capped and marked as cut, and that the program is not blocked."""
    with subject.other(output_bytes=1000) as sandbox:
        result = done(sandbox.exec("head -c 3000000 /dev/zero; head -c 1001 /dev/zero >&2; echo ended > ended"))
        expect("bytes kept", (len(result.stdout), len(result.stderr)), (1000, 1000))
        expect("marked as cut", (result.stdout_cut, result.stderr_cut, result.is_cut), (True, True, True))
        expect("the program went on", sandbox.read("ended"), b"ended\n")
        result = sandbox.exec("head -c 1000 /dev/zero")
        expect("exactly the cap is not cut", (len(result.stdout), result.is_cut), (1000, False))
    return "1000 of 3,000,000 bytes kept, marked, and the program ended by itself"


def python_code(subject: SandboxSubject) -> str:
    """Check that Python code behaves as with ``python3 -c``."""
    run = subject.sandbox.run_python
    expect("print", done(run("print(1)")).stdout, "1\n")
    result = run("def f():\n    return 1 / 0\nf()")
    expect("exit code of a traceback", result.exit_code, 1)
    demand(result.stderr.startswith("Traceback (most recent call last):\n"), f"no traceback: {result.stderr[:200]!r}")
    demand(result.stderr.endswith("ZeroDivisionError: division by zero\n"), f"another error: {result.stderr[-200:]!r}")
    expect("SyntaxError", (run("1 +").exit_code, "SyntaxError" in run("1 +").stderr), (1, True))
    expect("sys.exit(7)", run("import sys; sys.exit(7)").exit_code, 7)
    result = run("raise SystemExit('why')")
    expect("sys.exit('why')", (result.exit_code, result.stderr), (1, "why\n"))
    expect("input()", run("print(input()[::-1])", stdin="abc\n").stdout, "cba\n")
    expect("__main__", run("print(__name__)").stdout, "__main__\n")
    subject.sandbox.write("mine.py", "value = 5")
    expect("a module of the workspace", run("import mine; print(mine.value)").stdout, "5\n")
    expect("atexit", run("import atexit; atexit.register(print, 'bye')").stdout, "bye\n")
    return "output, tracebacks, exit codes, input and imports as of python3 -c"


def python_afresh(subject: SandboxSubject) -> str:
    """Check that one piece of Python code leaves no state for the next."""
    run = subject.sandbox.run_python
    done(run("import builtins, sys, os; x = builtins.y = sys.z = 1; os.environ['W'] = '1'; os.chdir('/')"))
    seen = run("import builtins, sys, os; print('x' in globals(), hasattr(builtins, 'y'), hasattr(sys, 'z'), "
               "'W' in os.environ, os.getcwd())").stdout  # fmt: skip
    expect("what is left", seen, f"False False False False {subject.sandbox.workspace}\n")
    first, second = (run("import random; print(random.random())").stdout for _ in range(2))
    demand(first != second, "two pieces of Python draw the same random number")
    return "no variable, environment or random state is left"


def many_threads(subject: SandboxSubject) -> str:
    """Check that calls from several threads each get their own answer."""
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: subject.sandbox.run_python(f"print({n})").stdout, range(24)))
    expect("answers", answers, [f"{number}\n" for number in range(24)])
    return "24 calls from 8 threads, each with its own answer"


def bad_requests(subject: SandboxSubject) -> str:
    """Check that invalid arguments raise errors and do not harm the sandbox."""
    run, longest_s = subject.sandbox.exec, subject.sandbox.limits.wall_s
    for timeout_s in (0.0, -1.0, longest_s + 1):
        _raises(ConfigError, f"timeout_s={timeout_s}", timeout_s=timeout_s, subject=subject)
    _raises(SandboxRefusedError, "an unknown user", user="nobody-of-that-name", subject=subject)
    for command in ([], ["a\0b"]):
        try:
            run(command)
        except ConfigError:
            continue
        raise CheckFailed(f"the command {command!r} was not refused")
    expect("after all that", done(run(["echo", "fine"])).stdout, "fine\n")
    return "time-outs out of range, unknown users, empty commands and NUL are refused"


def _raises(error: type[Exception], what: str, subject: SandboxSubject, **arguments: object) -> None:
    try:
        subject.sandbox.exec(["true"], **arguments)  # type: ignore[arg-type]
    except error:
        return
    raise CheckFailed(f"{what} was not refused")


def timeout_output(subject: SandboxSubject) -> str:
    """Check that a call ends at its time-out, with the output so far marked as cut."""
    for name, result in (
        ("shell", subject.sandbox.exec("echo first; sleep 60; echo second", timeout_s=0.5)),
        ("python", subject.sandbox.run_python("print('first')\nimport time\ntime.sleep(60)", timeout_s=0.5)),
    ):
        expect(f"{name}: stdout so far", result.stdout, "first\n")
        expect(f"{name}: marked", (result.timed_out, result.is_cut, result.limit), (True, True, "wall"))
        demand(result.exit_code < 0, f"{name}: exit code {result.exit_code}, expected a signal's")
        demand(result.wall_s < 0.5 + _PATIENCE_S, f"{name}: took {result.wall_s:.1f} s instead of 0.5")
    return "the output so far, marked as cut"


def timeout_children(subject: SandboxSubject) -> str:
    """Check that a time-out kills the processes inside and does not only end the client's wait."""
    sandbox = subject.sandbox
    line = f"({_TICKER.format('ticks')}) & {_TICKER.format('ticks')}"
    expect("timed out", sandbox.exec(line, timeout_s=0.5).timed_out, True)
    _stands_still(subject, "ticks")
    return "child processes too"


def deaf_to_signals(subject: SandboxSubject) -> str:
    """Check that a time-out ends a loop that ignores all signals it can."""
    result = subject.sandbox.run_python(PROGRAMS["ignored_signals"], timeout_s=0.5)
    expect("timed out", result.timed_out, True)
    demand(result.wall_s < 0.5 + _PATIENCE_S, f"took {result.wall_s:.1f} s instead of 0.5")
    return f"killed after {result.wall_s:.1f} s"


def leftovers(subject: SandboxSubject) -> str:
    """Check that background processes end with their call and do not delay it."""
    start = time.monotonic()
    waiting = "until [ -s ticks ]; do sleep 0.05; done; echo ended"
    result = done(subject.sandbox.exec(f"({_TICKER.format('ticks')}) & {waiting}"))
    demand(time.monotonic() - start < _PATIENCE_S, "a background process that has the outputs open held the call up")
    expect("stdout", result.stdout, "ended\n")
    _stands_still(subject, "ticks")
    return "a background process ends with the call that started it"


def daemons(subject: SandboxSubject) -> str:
    """Check that daemons with their own session end with the call, too."""
    subject.sandbox.run_python(PROGRAMS["daemons"])
    _stands_still(subject, "ticks")
    return "a daemon, three times forked and with sessions of its own, ends with its call"


def after_a_timeout(subject: SandboxSubject) -> str:
    """Check that after a time-out the sandbox still works and its files are unchanged."""
    subject.sandbox.write("kept", "yes")
    subject.sandbox.exec("sleep 60", timeout_s=0.2)
    expect("a file", subject.sandbox.read("kept"), b"yes")
    expect("the next call", done(subject.sandbox.exec(["echo", "fine"])).stdout, "fine\n")
    return "files are kept and the next call works"


def processor_time(subject: SandboxSubject) -> str:
    """Check that a process that exceeds its CPU time is killed, and that the result names the limit."""
    with subject.other(cpu_s=1) as sandbox:
        result = sandbox.exec(["python3", "-c", "while True: pass"])
    expect("limit", result.limit, "cpu")
    demand(result.exit_code < 0, f"exit code {result.exit_code}, expected a signal's")
    return f"ended after {result.cpu_s:.1f} s of processor time with a limit of 1"


def usage(subject: SandboxSubject) -> str:
    """Check that results report wall seconds and CPU seconds."""
    result = subject.sandbox.run_python("import time\ntime.sleep(0.2)\nx = sum(range(3_000_000))")
    demand(0.2 <= result.wall_s < 0.2 + _PATIENCE_S, f"wall_s is {result.wall_s} for a sleep of 0.2 s and some work")
    demand(0 < result.cpu_s <= result.wall_s + 0.05, f"cpu_s is {result.cpu_s} of {result.wall_s} s")
    return f"{result.wall_s:.2f} s and {result.cpu_s:.2f} s"


def _stands_still(subject: SandboxSubject, path: str) -> None:
    """Fail if a file is still growing."""
    before = subject.sandbox.read(path)
    demand(bool(before), "it did not run at all")
    time.sleep(0.25)
    after = subject.sandbox.read(path)
    if not subject.claims("time") and after != before:
        raise CheckFailed(f"it still runs; {NOT_CLAIMED.format('time')}, but a plain process must end")
    expect("bytes written after its end", len(after) - len(before), 0)
