"""The conformance kit for sandboxes: does one keep the contract, and hold what it claims?"""

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
"""The kit, in the order it runs. The guarantee ``time`` is what the checks of time-outs and daemons are about."""


def check_sandbox(factory: SandboxFactory, *, only: Callable[[str], bool] = lambda name: True) -> CheckReport:
    """Check that a kind of sandbox keeps the contract and holds what it claims here.

    Where a guarantee is not claimed, its check passes and says so; what is claimed must hold.

    Args:
        factory: opens a new sandbox with the limits it is given.
        only: which checks to run, by name.

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
        except SandboxError:  # its check has failed, or does so next
            sandbox.close()
    return factory(Limits())
