"""The conformance kit for sandboxes: checks of the contract and of the guarantees that a sandbox claims."""

from __future__ import annotations

from collections.abc import Callable

from agentgym.check.report import CheckReport, run_check
from agentgym.check.sandbox import files, guarantees, running
from agentgym.check.sandbox.subject import SandboxFactory, SandboxSubject
from agentgym.errors import SandboxError
from agentgym.sandbox import Limits, Sandbox

SANDBOX_CHECKS: dict[str, Callable[[SandboxSubject], str]] = {
    "exit codes": running.exit_codes,
    "both outputs": running.both_outputs,
    "shell or program": running.shell_or_program,
    "standard input": running.standard_input,
    "environment": running.environment,
    "working folder": running.working_folder,
    "odd bytes": running.odd_bytes,
    "output cap": running.output_cap,
    "python": running.python_code,
    "python afresh": running.python_afresh,
    "many threads": running.many_threads,
    "bad requests": running.bad_requests,
    "time-out: output so far": running.timeout_output,
    "time-out: children": running.timeout_children,
    "time-out: deaf to signals": running.deaf_to_signals,
    "time-out: afterwards": running.after_a_timeout,
    "leftovers": running.leftovers,
    "daemons": running.daemons,
    "processor time": running.processor_time,
    "usage": running.usage,
    "files: round trip": files.round_trip,
    "files: odd names": files.odd_names,
    "files: missing": files.missing_files,
    "files: outside": files.outside_paths,
    "files: listing": files.listing,
    "files: large": files.large_files,
    "files: full workspace": files.full_workspace,
    "snapshots": files.snapshots,
    "snapshots: empty": files.empty_snapshot,
    "reset": files.fresh_start,
    "guarantee: filesystem": guarantees.filesystem,
    "guarantee: network": guarantees.network,
    "guarantee: memory": guarantees.memory,
    "guarantee: pids": guarantees.num_processes,
    "guarantee: cpu": guarantees.processor_share,
    "guarantee: user": guarantees.own_user,
    "open files": guarantees.open_files,
    "two users": guarantees.two_users,
    "apart": guarantees.apart,
    "capabilities": guarantees.capability_report,
    "life and end": guarantees.life_and_end,
    "closed in a call": guarantees.closed_in_a_call,
}
"""All checks, in the order in which they run. The checks of time-outs and daemons cover the guarantee ``time``."""


def check_sandbox(factory: SandboxFactory, *, only: Callable[[str], bool] = lambda name: True) -> CheckReport:
    """Check that a kind of sandbox keeps the contract and its claimed guarantees on this machine.

    If the sandbox does not claim a guarantee, the check of that guarantee passes and says so.

    Args:
        factory: opens a new sandbox with given limits.
        only: returns True for the name of a check that should run; by default for every name.

    Returns:
        A report with one result for each check.

    Example:
        >>> from agentgym.sandboxes.process import ProcessSandbox
        >>> report = check_sandbox(lambda limits: ProcessSandbox(limits), only=lambda name: name == "exit codes")
        >>> report.passed, report.env
        (True, 'process')
    """
    name, sandbox = "", None
    results = []
    try:
        for check, function in SANDBOX_CHECKS.items():
            if only(check):
                sandbox = _as_new(sandbox, factory)
                name = sandbox.capabilities().backend
                results.append(run_check(check, function, SandboxSubject(sandbox, factory)))
    finally:
        if sandbox is not None:
            sandbox.close()
    return CheckReport(env=name, passed=all(result.passed for result in results), checks=tuple(results))


def _as_new(sandbox: Sandbox | None, factory: SandboxFactory) -> Sandbox:
    if sandbox is not None:
        try:
            sandbox.reset()
            return sandbox
        except SandboxError:  # another check reports the broken sandbox
            sandbox.close()
    return factory(Limits())
