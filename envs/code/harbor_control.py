"""Control runs of a Harbor task's verifier, which tell its own faults from those of the work.

A verifier may leave no reward that Harbor would take, or none that its runner's report supports, or run out of time. It
then grades the unchanged workspace, and if it fails there, the work of the task's solution. If it succeeds on one of
them, the work has caused the failure and earns 0. Otherwise the verifier is broken.

A verifier may also leave less than a full reward because it did not find a program, file or module
(:mod:`agentgym.envs.code.harbor_missing`). The grade then holds if the solution earns its reward here. Otherwise the
verifier is broken if the sandbox lacks what only its image can provide, or if the solution does not provide it either.
Without a solution, the unchanged workspace shows whether a message about it is the verifier's own.

A broken verifier is an :class:`~agentgym.errors.EnvError`. A control that speaks for
the verifier is not repeated for the same task and kind of sandbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from agentgym.envs.code.file_tree import add_tree
from agentgym.envs.code.harbor import HarborTask
from agentgym.envs.code.harbor_config import host_values
from agentgym.envs.code.harbor_missing import Missing
from agentgym.envs.code.harbor_verifier import Verified, agent_variables, run_verifier, variables_of_image
from agentgym.envs.code.shared_pool import SharedPool
from agentgym.envs.code.workspace import appended
from agentgym.errors import EnvError, UsageError
from agentgym.sandbox import Snapshot

_SOLUTION: Final = ".agentgym-solution"
_TOLD: Final = 500
"""Characters of a verifier's output in messages."""
_T = TypeVar("_T")


def verified(
    pool: SharedPool, task: HarborTask, start: Snapshot, left: Snapshot, *, is_traced: bool = False
) -> Verified:
    """Run a task's verifier in a sandbox of a pool; see :func:`~agentgym.envs.code.harbor_verifier.run_verifier`."""
    with pool.acquire() as sandbox:
        env = task.verifier_env(variables_of_image(task, sandbox))
        return run_verifier(task, sandbox, env, start, left, is_traced=is_traced)


def require_sound(pool: SharedPool, task: HarborTask, start: Snapshot, ran: Verified) -> None:
    """Require that a verifier which left no grade leaves one for the unchanged workspace or for the solution.

    Raises:
        EnvError: it does not.
    """
    control = _unchanged(pool, task, start)
    if _grades(control):
        return
    solved = _solved(pool, task, start)
    if solved is not None and solved.is_sound and solved.reward > 0:
        return
    raise EnvError(
        f"Harbor task {task.name!r} has a broken verifier: {ran.problem}. On the unchanged workspace it fails, too: "
        f"{control.problem}; it said {control.output[-_TOLD:] or 'nothing'!r}"
    )


def require_nothing_missing(pool: SharedPool, task: HarborTask, start: Snapshot, left: Snapshot, ran: Verified) -> None:
    """Require that a verifier with less than a full reward found all that the work was not meant to provide.

    Raises:
        EnvError: it did not.
    """
    missing = ran.missing
    if not ran.has_runner and not missing:
        traced = partial(verified, pool, task, start, left, is_traced=True)
        missing = _once(pool, task, "trace", traced, lambda again: not again.missing).missing
    if not missing:
        return
    solved = _solved(pool, task, start)
    if solved is None:
        repeated = {item for item in _unchanged(pool, task, start).missing if not item.is_open}
    elif solved.reward >= 1 or (solved.reward > 0 and not missing & solved.missing):
        return
    else:
        repeated = set(solved.missing)
    missing = frozenset(item for item in missing if item in repeated or (item.is_absent and not item.is_open))
    if missing:
        raise EnvError(
            f"Harbor task {task.name!r} has a broken verifier: it left the reward {ran.reward:g}, and lacks or cannot "
            f"run {_listed(missing)}; it said {ran.output[-_TOLD:] or 'nothing'!r}. Add what is missing to the image. "
            "If the tests work without it, a solution/solve.sh that earns a full reward shows that"
        )


def _listed(missing: frozenset[Missing]) -> str:
    return ", ".join(sorted({"a network" if item.kind == "network" else repr(item.name) for item in missing}))


def _unchanged(pool: SharedPool, task: HarborTask, start: Snapshot) -> Verified:
    return _once(pool, task, "start", partial(verified, pool, task, start, start, is_traced=True), _grades)


def _solved(pool: SharedPool, task: HarborTask, start: Snapshot) -> Verified | None:
    """Return the verifier's result for the work of the task's solution; None if there is none or it fails."""

    def run() -> Verified | None:
        left = _solution_work(pool, task, start)
        return None if left is None else verified(pool, task, start, left, is_traced=True)

    return _once(pool, task, "solution", run, lambda solved: solved is not None and solved.reward > 0)


def _solution_work(pool: SharedPool, task: HarborTask, start: Snapshot) -> Snapshot | None:
    if "solve.sh" not in task.solution:
        return None
    try:
        values = host_values(task.solution_env, f"Harbor task {task.name!r}, [solution.env]")
    except UsageError:  # this machine lacks a variable of the solution, which the tests do without
        return None
    with pool.acquire() as sandbox:
        places = {task.workdir: sandbox.workspace, "/solution": f"{sandbox.workspace}/{_SOLUTION}"}
        sandbox.restore(
            appended(start, partial(add_tree, tree=task.placed_tree(task.solution, places), folder=_SOLUTION))
        )
        env = agent_variables(task, sandbox) | {name: task.placed(value, places) for name, value in values.items()}
        ran = sandbox.exec(["bash", f"{sandbox.workspace}/{_SOLUTION}/solve.sh"], env=env)
        sandbox.exec(["rm", "-rf", _SOLUTION])
        return sandbox.snapshot() if ran.exit_code == 0 else None


def _grades(control: Verified) -> bool:
    return control.rewards is not None and (control.reward > 0 or control.has_runner_answered)


_results: dict[Hashable, object] = {}
_lock = threading.Lock()


def _once(
    pool: SharedPool, task: HarborTask, control: str, run: Callable[[], _T], is_final: Callable[[_T], bool]
) -> _T:
    """Return the result of a control, kept for the task and the kind of sandbox if it is final."""
    key = (pool.kind, task.content_hash, frozenset(task.solution.items()), control)
    with _lock:
        if key in _results:
            return _results[key]  # type: ignore[return-value]  # of the same control
    found = run()
    if isinstance(found, Verified):
        found = replace(found, output=found.output[-_TOLD:])
    if is_final(found):
        with _lock:
            _results[key] = found
    return found
