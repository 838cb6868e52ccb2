"""All error classes of agentgym, and :func:`boundary`, which turns foreign exceptions into them.

The cause decides the class. A mistake of the *user* is a :class:`UsageError` (exit code 2). A failure of the
*infrastructure* is an :class:`InfrastructureError` (never a reward). A mistake of the *policy* is a :class:`ToolError`
(shown to the model and trained on).
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from agentgym.installation import install_command

Result = TypeVar("Result")


class AgentGymError(Exception):
    """Root of every error agentgym raises on purpose."""


# ------------------------------------------------------------------------------------------------ the user's doing


class UsageError(AgentGymError, ValueError):
    """A mistake that the user can correct; commands print it as one line and exit with code 2."""


class ConfigError(UsageError):
    """A configuration whose recipe, key or value is not allowed."""


class UnknownNameError(ConfigError):
    """An environment, component, recipe, policy, suite or key that does not exist."""

    name = ""
    """The name that is unknown, where one is at fault."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed; the message is the command that installs it.

    Args:
        what: what needs the dependency.
        extra: the extra of agentgym that installs it.
        command: the command to name, if it is not :func:`agentgym.installation.install_command`'s.
    """

    def __init__(self, what: str, extra: str, command: str = "") -> None:
        command = command or install_command(extra)
        super().__init__(f"{what} needs the extra '{extra}': {command}")
        self.extra = extra
        self._given = what, extra, command

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return type(self), self._given  # pickle would otherwise rebuild the error from its message alone


class ToolDefinitionError(UsageError):
    """A tool without a docstring, type hints or a permitted name."""


class SandboxRefusedError(UsageError):
    """A sandbox cannot give a required guarantee on this machine."""


class MachineError(UsageError):
    """This machine lacks a program or a right that is needed; the message names the command that adds it."""


class MissingDataError(UsageError):
    """A file or folder that an environment reads is not on this machine.

    ``train --dry-run`` notes it, since the machine of the run may have the data. Any other :class:`UsageError` of an
    environment's class ends the dry run.
    """


class CorruptDataError(UsageError):
    """A checkpoint, record or model folder that cannot be read."""


# ---------------------------------------------------------------------------------------------- caller's own slip


class ResetNeededError(AgentGymError, RuntimeError):
    """``step`` was called before ``reset`` or after the episode's end."""


class ClosedError(AgentGymError, RuntimeError):
    """The environment or engine was used after ``close``."""


# --------------------------------------------------------------------------------------- the infrastructure's doing


class InfrastructureError(AgentGymError):
    """A failure that the policy did not cause; never a reward."""

    failed_part: str = ""
    """The part that failed, as in :attr:`agentgym.types.Trajectory.failed_part`; empty if only a cause names it."""


class EnvError(InfrastructureError):
    """An environment crashed."""


class EnvTimeoutError(InfrastructureError):
    """An environment or tool did not answer in time."""


class RewardError(EnvError):
    """A reward that is not finite or is too large to learn from."""


class HungError(EnvTimeoutError):
    """Code in the main thread ran past its time limit and was interrupted."""


class EngineError(InfrastructureError):
    """An engine failed to generate or to take new weights."""


class ReplayMismatchError(InfrastructureError):
    """Replaying recorded actions led to a state that differs from the recorded one."""


class SandboxError(InfrastructureError):
    """The sandbox itself failed, not the program that ran in it."""

    failed_part = "sandbox"


class SandboxUnavailableError(SandboxError):
    """A part of a sandbox is not available: the daemon is down, a program is missing, or namespaces are not allowed."""


class SandboxImageError(SandboxError):
    """The image is missing or lacks what a sandbox needs."""


class SandboxDiskFullError(SandboxError):
    """The machine's disk is full. (A full workspace is the policy's mistake: :class:`SandboxFileError`.)"""


class SandboxDeadError(SandboxError):
    """A sandbox died or stopped answering in the middle of its work."""


class RunStoppedError(AgentGymError):
    """A run stopped itself; the message is the reason, such as too many failures or a loss that is not finite."""


class EpisodesFailedError(RunStoppedError):
    """The infrastructure failed too many episodes of a run; resumed, it plays them again."""


class RunHaltedError(RunStoppedError):
    """The disk or another rank stopped a run; resumed, it goes on."""


# ------------------------------------------------------------------------------------------------ the policy's doing


class PolicyFaultError(AgentGymError):
    """The policy's message cannot be rendered; its episode ends as ``policy_error``."""


class PromptTooLongError(AgentGymError):
    """The first prompt of an episode leaves no room for a completion; the episode ends without a turn."""


class ToolError(AgentGymError):
    """A tool rejects a call; the message is shown to the model, which may try again."""

    def __init__(self, message: str, error_type: str = "tool_error") -> None:
        super().__init__(message)
        self.error_type = error_type


class SandboxSpentError(ToolError):
    """A program in a sandbox has ended the sandbox (memory, processes, signals), which can no longer be used.

    An environment may continue in a new sandbox, or let this error end the episode as a mistake of the policy.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "sandbox_spent")


class SandboxFileError(ToolError):
    """A file in a sandbox is missing, of the wrong kind, too large, or outside the workspace."""


# ------------------------------------------------------------------------------------------------------- helpers


@contextmanager
def boundary(
    error_class: type[InfrastructureError], what: str, passing: tuple[type[AgentGymError], ...] = (AgentGymError,)
) -> Iterator[None]:
    """Turn any exception raised in the ``with`` block into an infrastructure error.

    ``TimeoutError`` becomes :class:`EnvTimeoutError`; any other exception becomes ``error_class`` with the original as
    its cause. Cancellation and Ctrl-C always propagate untouched.

    Args:
        error_class: class of the error that foreign exceptions become.
        what: the operation, which starts the message, as in ``env.step``.
        passing: agentgym's own errors that propagate unchanged; by default all of them.

    Example:
        >>> with boundary(EnvError, "env.step"):
        ...     1 / 0
        Traceback (most recent call last):
        agentgym.errors.EnvError: env.step: ZeroDivisionError: division by zero
    """
    try:
        yield
    except passing:
        raise
    except TimeoutError as error:
        raise EnvTimeoutError(f"{what}: {str(error) or 'timed out'}") from error
    except Exception as error:
        raise error_class(f"{what}: {error_text(error)}") from error


@contextmanager
def blamed(part: str) -> Iterator[None]:
    """Turn any exception of a user's part in the ``with`` block into a :class:`ConfigError` that names the part.

    agentgym's own errors, cancellation and Ctrl-C propagate untouched.

    Example:
        >>> with blamed("estimator 'mine'"):
        ...     1 / 0
        Traceback (most recent call last):
        agentgym.errors.ConfigError: estimator 'mine' failed: ZeroDivisionError: division by zero
    """
    try:
        yield
    except AgentGymError:
        raise
    except Exception as error:
        raise ConfigError(f"{part} failed: {error_text(error)}") from error


@contextmanager
def contained_exit() -> Iterator[None]:
    """Turn ``SystemExit``, and others that are no ``Exception``, into a ``RuntimeError``.

    It is for code of an environment, which must not end the run. Cancellation and Ctrl-C propagate untouched.

    Example:
        >>> with contained_exit():
        ...     raise SystemExit(2)
        Traceback (most recent call last):
        RuntimeError: SystemExit: 2
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        from asyncio import CancelledError  # imported here, so that errors cost no start of a command

        if isinstance(error, CancelledError | GeneratorExit | KeyboardInterrupt):
            raise
        raise RuntimeError(error_text(error)).with_traceback(error.__traceback__) from error


_MOST_LISTED = 20
"""Most names that a message lists in full; of a longer list it gives the five nearest."""


def require_extra(what: str, extra: str, *modules: str, command: str = "") -> None:
    """Raise an error if a module that a feature needs is not installed.

    Raises:
        MissingExtraError: a module is missing; the message names ``what`` and the command that installs the extra,
            by default :func:`agentgym.installation.install_command`'s.
    """
    if not all(map(_is_installed, modules)):
        raise MissingExtraError(what, extra, command)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # the module is loaded but was created without a spec
        return True


def check_type(name: str, value: object, expected: type, example: str) -> None:
    """Raise an error for an argument of another type than expected.

    Args:
        example: how to make one, as in ``as in CreditConfig(estimator='gigpo')``.

    Raises:
        ConfigError: ``value`` is no instance of ``expected``.
    """
    if not isinstance(value, expected):
        raise ConfigError(f"{name} is {value!r}, expected {expected.__name__}, {example}")


def require_known(kind: str, name: str, known: Collection[str], hint: str = "") -> None:
    """Raise an error for a name that is not among the known ones.

    Raises:
        UnknownNameError: ``name`` is not in ``known``; :func:`unknown_name` writes the message.
    """
    if name not in known:
        raise unknown_name(kind, name, known, hint)


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """Return an error that names the unknown name, the nearest known name, and the names that exist.

    Example:
        >>> print(unknown_name("recipe", "houshold", ["household-demo", "household"]))
        unknown recipe 'houshold'; did you mean 'household'? known: household, household-demo
    """
    names = sorted(known)
    by_nearness = sorted(names, key=lambda candidate: (_likeness(name, candidate), candidate), reverse=True)
    longer = [candidate for candidate in names if name and candidate.startswith(name)]
    near = longer or [candidate for candidate in by_nearness[:1] if _likeness(name, candidate) >= 0.5]
    suggestion = f"; did you mean {near[0]!r}?" if near else ";"
    listed = f"known: {', '.join(names) or 'none'}"
    if len(names) > _MOST_LISTED:
        nearest = list(dict.fromkeys([*longer, *by_nearness]))[:5]
        listed = f"the nearest of {len(names)}: {', '.join(nearest)}"
    tail = f" ({hint})" if hint else ""
    error = UnknownNameError(f"unknown {kind} {name!r}{suggestion} {listed}{tail}")
    error.name = name
    return error


def _likeness(name: str, candidate: str) -> float:
    """Return the similarity of two names, 0 to 1, ignoring case and a candidate's namespace."""
    endings = (candidate, candidate.rpartition("/")[2].casefold())
    return max(
        difflib.SequenceMatcher(None, ending, said).ratio()
        for ending, said in zip(endings, (name, name.casefold()), strict=True)
    )


def error_text(error: BaseException) -> str:
    """Return an error's class and message; many timeouts have no message.

    Example:
        >>> error_text(KeyError("token")), error_text(TimeoutError())
        ("KeyError: 'token'", 'TimeoutError without a message')
    """
    text = str(error)
    return f"{type(error).__name__}: {text}" if text.strip() else f"{type(error).__name__} without a message"


def gist(error: BaseException) -> str:
    """Return the first line of an error's message, or all lines as one if the first ends in a colon.

    Example:
        >>> gist(ValueError("no shard 2\\nlook at ...")), gist(ValueError("expected one of:\\n(1) a file\\n(2) a name"))
        ('no shard 2', 'expected one of: (1) a file (2) a name')
    """
    text = str(error).strip()
    first_line = text.partition("\n")[0].rstrip()
    return " ".join(text.split()) if first_line.endswith(":") else first_line


def first_cause(error: BaseException) -> BaseException:
    """Return the error to report: of a group of concurrent failures, the first that agentgym raised on purpose.

    Example:
        >>> first_cause(ExceptionGroup("two", [ValueError("x"), UsageError("no such task")]))
        UsageError('no such task')
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, AgentGymError)), causes[0])


def failed_part_of(error: BaseException | None) -> str:
    """Return the part of the infrastructure that an error or its first cause with one names; empty if none does.

    Example:
        >>> failed_part_of(SandboxDeadError("it is gone"))
        'sandbox'
    """
    if part := getattr(error, "failed_part", ""):
        return str(part)
    cause = None if error is None else error.__cause__
    return "" if cause is None or cause is error else failed_part_of(cause)  # `raise error from error` is its own cause


def raising_first_cause(call: Callable[[], Result]) -> Result:
    """Return the result of a call. If concurrent parts of it fail, raise their :func:`first_cause`, not the group.

    Example:
        >>> def fails():
        ...     raise ExceptionGroup("two", [ValueError("x"), UsageError("no such task")])
        >>> raising_first_cause(fails)
        Traceback (most recent call last):
        agentgym.errors.UsageError: no such task
    """
    try:
        return call()
    except BaseExceptionGroup as group:
        cause = first_cause(group)
    raise cause  # outside the handler, so that its traceback does not begin with the group's
