"""One error tree, and one place where foreign errors enter it.

Three questions decide a class: did the *user* make a mistake (:class:`UsageError`, exit code 2), did the
*infrastructure* fail (:class:`InfrastructureError`, never a reward), or is it the *policy's* doing
(:class:`ToolError`, shown to the model and trained on)?
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager


class AgentGymError(Exception):
    """Root of every error agentgym raises on purpose."""


# ------------------------------------------------------------------------------------------------ the user's doing


class UsageError(AgentGymError, ValueError):
    """Something the user can put right; commands print it as one line and exit with code 2."""


class ConfigError(UsageError):
    """A recipe, key or value that cannot be."""


class UnknownNameError(ConfigError):
    """An environment, component, recipe, policy, suite or key that does not exist."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed; the message is the command that installs it.

    ``command`` is another command than that of the extra, where there is a better one.
    """

    def __init__(self, what: str, extra: str, command: str = "") -> None:
        command = command or f"pip install 'agentgym[{extra}]'"
        super().__init__(f"{what} needs the extra '{extra}': {command}")
        self.extra = extra
        self._given = what, extra, command

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return type(self), self._given  # by default an error is made again from its message


class ToolDefinitionError(UsageError):
    """A tool without a docstring, type hints or a permitted name."""


class SandboxRefusedError(UsageError):
    """A sandbox cannot give what was required of it on this machine."""


class CorruptDataError(UsageError):
    """A checkpoint, record or model folder that cannot be read."""


# ---------------------------------------------------------------------------------------------- caller's own slip


class ResetNeededError(AgentGymError, RuntimeError):
    """``step`` was called before ``reset`` or after the episode's end."""


class ClosedError(AgentGymError, RuntimeError):
    """The environment or engine was used after ``close``."""


# --------------------------------------------------------------------------------------- the infrastructure's doing


class InfrastructureError(AgentGymError):
    """Something that is not the policy's doing failed; never a reward."""


class EnvError(InfrastructureError):
    """An environment crashed."""


class EnvTimeoutError(InfrastructureError):
    """An environment or tool did not answer in time."""


class RewardError(EnvError):
    """A reward is no number to learn from: not finite, or too large."""


class HungError(EnvTimeoutError):
    """Code in the main thread did not come to an end in time and was interrupted."""


class EngineError(InfrastructureError):
    """An engine failed to generate or to take new weights."""


class ReplayMismatchError(InfrastructureError):
    """Replaying recorded actions led to another state than the recorded one."""


class SandboxError(InfrastructureError):
    """A sandbox failed, not what ran in it."""


class SandboxUnavailableError(SandboxError):
    """A part of a sandbox is not to be had: daemon down, program missing, namespaces not allowed."""


class SandboxImageError(SandboxError):
    """The image is missing or lacks what a sandbox needs."""


class SandboxDiskFullError(SandboxError):
    """The machine's disk is full (a full workspace is the policy's doing: :class:`SandboxFileError`)."""


class SandboxDeadError(SandboxError):
    """A sandbox died or stopped answering in the middle of its work."""


class RunStoppedError(AgentGymError):
    """A run stopped itself, with its reason (too many failures, loss not finite)."""


# ------------------------------------------------------------------------------------------------ the policy's doing


class PolicyFaultError(AgentGymError):
    """The policy's message cannot be rendered; its episode ends as ``policy_error``."""


class PromptTooLongError(AgentGymError):
    """The first prompt of an episode leaves no room for a completion; the episode ends without a turn."""


class ToolError(AgentGymError):
    """A tool refuses a call; the message is shown to the model, which may try again."""

    def __init__(self, message: str, error_type: str = "tool_error") -> None:
        super().__init__(message)
        self.error_type = error_type


class SandboxSpentError(ToolError):
    """A program in a sandbox has ended it (memory, processes, signals); nothing more can be done in that sandbox.

    An environment may go on in a new one, or let this end the episode as a mistake of the policy.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "sandbox_spent")


class SandboxFileError(ToolError):
    """A file in a sandbox is not there, not of the right kind, too large, or outside the workspace."""


# ------------------------------------------------------------------------------------------------------- helpers


@contextmanager
def boundary(
    error_class: type[InfrastructureError], what: str, passing: tuple[type[AgentGymError], ...] = (AgentGymError,)
) -> Iterator[None]:
    """Classify whatever fails inside, once, where it happens.

    ``TimeoutError`` becomes :class:`EnvTimeoutError`; any other exception becomes ``error_class`` with the original as
    its cause. Cancellation and Ctrl-C always propagate untouched.

    Args:
        passing: errors of our own tree that propagate as they are; by default all of them.

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
        raise error_class(f"{what}: {type(error).__name__}: {error}") from error


_MOST_LISTED = 20
"""Names that a message lists in full; of more it names the five nearest."""


def require_extra(what: str, extra: str, *modules: str) -> None:
    """Refuse what needs modules that are not installed.

    Raises:
        MissingExtraError: for ``what``, with the command that installs the extra.
    """
    if not all(map(_is_installed, modules)):
        raise MissingExtraError(what, extra)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it is loaded, and was made without a spec
        return True


def require_known(kind: str, name: str, known: Collection[str], hint: str = "") -> None:
    """Refuse a name that is not known.

    Raises:
        UnknownNameError: that :func:`unknown_name` returns.
    """
    if name not in known:
        raise unknown_name(kind, name, known, hint)


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """Return an error that says what was asked for, what is near it and what exists.

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
    return UnknownNameError(f"unknown {kind} {name!r}{suggestion} {listed}{tail}")


def _likeness(name: str, candidate: str) -> float:
    """Return how alike two names are, from 0 to 1; a candidate's namespace and capitals may be left out."""
    endings = (candidate, candidate.rpartition("/")[2].casefold())
    return max(
        difflib.SequenceMatcher(None, ending, said).ratio()
        for ending, said in zip(endings, (name, name.casefold()), strict=True)
    )


def first_cause(error: BaseException) -> BaseException:
    """The error to report: out of a group of concurrent failures, the first that agentgym raised on purpose.

    Example:
        >>> first_cause(ExceptionGroup("two", [ValueError("x"), UsageError("no such task")]))
        UsageError('no such task')
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, AgentGymError)), causes[0])
