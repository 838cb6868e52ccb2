"""Environments by name, on top of Gymnasium's registry.

``make`` takes an id (``agentgym/Household-v0``), ``module:Id``, or ``path/to/file.py:Id`` for an environment in a
user's own file. Packages add environments through the entry-point group ``agentgym.envs``: each entry names a module
that registers them when it is imported.

Gymnasium and numpy take 0.1 s of a processor to import, so this module imports them only inside functions.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

from agentgym import entry_points
from agentgym.env.arguments import ArgumentTypeError, typed_arguments
from agentgym.errors import MissingExtraError, UnknownNameError, UsageError, require_extra, require_known, unknown_name
from agentgym.import_hooks import when_imported
from agentgym.installation import install_command, with_commands
from agentgym.plugins import found_file, import_module, named_object, run_file
from agentgym.settings import checked_turns

if TYPE_CHECKING:
    from agentgym.env.env import Env

Machine = Literal["chromium", "isolation", "java"]
_PROBES: Mapping[Machine, str] = MappingProxyType(
    {
        "chromium": "agentgym.envs.gui.chromium:why_not",
        "isolation": "agentgym.sandboxes.ladder:why_no_isolation",
        "java": "agentgym.envs.adapters.scienceworld:why_not",
    }
)
"""Functions that return why a feature of the machine is missing; empty texts where it is there."""
_MISSING = re.compile(r"missing \d+ required [\w-]+ arguments?: (.*?)(?: was raised from|$)")
"""Python's error for arguments that a constructor needs, with what Gymnasium adds to it."""
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvEntry:
    """Facts about an environment that the registry knows without importing it."""

    id: str
    summary: str
    extra: str | None = None
    """Extra that must be installed; None if the core package suffices."""
    requires: tuple[str, ...] = ()
    """Modules that the environment imports."""
    install: str = ""
    """Command that installs the requirements, if they are not the extra's alone."""
    machine: Machine | None = None
    """Feature of the machine without which no episode runs; None if there is none."""
    needs: tuple[str, ...] = ()
    """Arguments without which it has no tasks, such as the folder of its data."""

    @property
    def version(self) -> str:
        """Version in the id: ``v0`` of ``agentgym/Household-v0``."""
        return self.id.rpartition("-")[2]

    @property
    def install_command(self) -> str:
        """Command that installs the requirements."""
        return with_commands(self.install) or install_command(self.extra or "all-cpu")

    @property
    def is_available(self) -> bool:
        """True if all modules that the environment requires are installed."""
        return all(importlib.util.find_spec(module) is not None for module in self.requires)

    def lacks(self, kwargs: Mapping[str, object] = MappingProxyType({})) -> str:
        """Return what this machine lacks for episodes, with the command that adds it; empty if it lacks nothing.

        Args:
            kwargs: arguments of the environment; ``sandbox="process"`` needs no sandbox that isolates.
        """
        if not self.is_available:
            return f"not installed: {self.install_command}"
        if self.machine is None or (self.machine == "isolation" and kwargs.get("sandbox", "auto") != "auto"):
            return ""
        return str(named_object(_PROBES[self.machine])())

    @property
    def needed(self) -> str:
        """The arguments that a user must give, as they are typed; empty if there are none.

        Example:
            >>> find("agentgym/WebArena-v0").needed
            'tasks_file=... addresses=...'
        """
        return " ".join(f"{name}=..." for name in self.needs)


_entries: dict[str, EnvEntry] = {}
_newly_registered: list[str] = []
_registered_in: dict[str, Path] = {}  # file of the call of register(), by id
_ids_of_file: dict[Path, tuple[str, ...]] = {}


def register(
    id: str,
    entry_point: str | Callable[..., Env],
    *,
    summary: str = "",
    max_turns: int | None = None,
    extra: str | None = None,
    requires: Sequence[str] = (),
    install: str = "",
    **kwargs: object,
) -> None:
    """Register an environment under a name: ``[namespace/]Name-vN``.

    Args:
        id: the name; registering the same id again replaces it, as in Gymnasium. Entry points of installed packages
            replace none.
        entry_point: the class, or ``"module:Class"`` to import it only when an environment is made.
        summary: one line for ``agentgym list``; by default the class docstring's first line.
        max_turns: turns after which an episode is truncated.
        extra: the extra of agentgym that the environment needs; None if it needs none.
        requires: modules that must be installed; they are looked up, not imported.
        install: the command that installs the requirements, if they are not the extra's alone; ``{extra NAME}`` in it
            is the command that installs an extra of agentgym.
        kwargs: default arguments of the class.

    Raises:
        UsageError: the id is malformed, the entry point is an instance, or an installed package registers an id that
            exists.
    """
    if id in _entries and entry_points.are_importing():
        raise UsageError(f"environment {id!r} exists already; register it under another id, such as Mine-v0")
    given: object = entry_point
    if not (isinstance(given, str) or callable(given)):
        kind = type(given).__name__
        raise UsageError(
            f"register({id!r}, ...) takes the class {kind}, not an instance of it: each episode needs its own"
        )
    if not summary and not isinstance(entry_point, str):
        summary = (entry_point.__doc__ or "").strip().partition("\n")[0]
    if max_turns is not None:
        kwargs["max_turns"] = max_turns
    _register_in_gymnasium(id, entry_point, kwargs)
    _entries[id] = EnvEntry(id=id, summary=summary, extra=extra, requires=tuple(requires), install=install)
    _newly_registered.append(id)
    _registered_in[id] = Path(sys._getframe(1).f_code.co_filename)


def register_later(entry: EnvEntry, entry_point: str) -> None:
    """Register an environment here at once, and in Gymnasium as soon as Gymnasium is imported.

    Its id is not checked before, so this is for the built-in environments.
    """
    _entries[entry.id] = entry
    when_imported("gymnasium", partial(_register_in_gymnasium, entry.id, entry_point, {}))


def _register_in_gymnasium(id: str, entry_point: str | Callable[..., Env], kwargs: dict[str, Any]) -> None:
    import gymnasium

    try:
        gymnasium.register(id=id, entry_point=entry_point, kwargs=kwargs, disable_env_checker=True, order_enforce=False)
    except gymnasium.error.Error as error:
        raise UsageError(f"cannot register {id!r}: {error}; an id is [namespace/]Name-vN") from error


def entries() -> tuple[EnvEntry, ...]:
    """Return all registered environments, those of installed packages included, sorted by id."""
    entry_points.import_all(entry_points.ENVS)
    return tuple(_entries[name] for name in sorted(_entries))


def make(reference: str, **kwargs: Any) -> Env:
    """Make an environment.

    Raises:
        UnknownNameError: there is no such id; the message names similar ones.
        MissingExtraError: the environment needs an extra; the message names the command that installs it.
        EnvError: ``url`` names servers, and none of them answers.

    Example:
        >>> env = make("agentgym/Household-v0", num_receptacles=6)
        >>> observation, info = env.reset(seed=0)
        >>> observation[0].role
        'user'
    """
    if "url" in kwargs and is_remote(kwargs):
        return _make_remote(reference, kwargs)
    entry = find(reference)
    if not entry.is_available:
        raise MissingExtraError(entry.id, entry.extra or "all-cpu", entry.install_command)
    check_arguments(entry, kwargs)
    try:
        return _made(entry, typed_arguments(entry.id, creator_of(entry), kwargs))
    except ArgumentTypeError:
        _raise_own_error(entry, kwargs)
        raise


def _raise_own_error(entry: EnvEntry, kwargs: dict[str, Any]) -> None:
    """Raise the environment's own error about its arguments, if it has one: its words are better than a type's."""
    try:
        _made(entry, kwargs).close()
    except UsageError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
    except Exception:  # a value of the wrong type may fail anywhere
        return


def _made(entry: EnvEntry, kwargs: dict[str, Any]) -> Env:
    import gymnasium

    from agentgym.env.env import Env

    mode, modes = kwargs.get("render_mode"), getattr(creator_of(entry), "metadata", {}).get("render_modes", ())
    if mode is not None and modes and mode not in modes:  # Gymnasium warns, and goes on
        raise UsageError(f"{entry.id}: render_mode={mode!r}: expected {' or '.join(map(repr, modes))}")
    try:
        made = gymnasium.make(entry.id, **kwargs).unwrapped
    except TypeError as error:
        if missing := _MISSING.search(str(error)):
            names = " ".join(f"{name}=VALUE" for name in re.findall(r"'(\w+)'", missing[1]))
            raise UsageError(f"{entry.id} needs arguments: {names}") from error
        raise UsageError(f"{entry.id}: {error}{_constructor_advice(entry, str(error))}") from error
    if not isinstance(made, Env):
        raise UsageError(f"{entry.id} made a {type(made).__name__}, expected a subclass of agentgym.Env")
    return made


def _constructor_advice(entry: EnvEntry, error: str) -> str:
    """Return how a class takes an argument of its base class, such as ``max_turns`` of :func:`register`."""
    from agentgym.env.env import Env

    named = _UNEXPECTED.search(error)
    made_by = creator_of(entry)
    if not named or not inspect.isclass(made_by) or named[1] not in inspect.signature(Env.__init__).parameters:
        return ""
    return "; write def __init__(self, ..., **kwargs) with super().__init__(**kwargs), which takes it"


def is_remote(kwargs: Mapping[str, object]) -> bool:
    """Return True if the arguments name servers that run the environment (``url="ws://HOST:PORT"``)."""
    return str(kwargs.get("url", "")).lstrip().startswith(("ws://", "wss://"))


def _make_remote(reference: str, kwargs: Mapping[str, Any]) -> Env:
    require_extra(f"{reference} at {kwargs['url']}", "serve", "websockets")
    from agentgym.remote.env import RemoteEnv

    return RemoteEnv(reference, **kwargs)


def id_of(reference: str, kwargs: Mapping[str, object]) -> str:
    """Return the id of an environment with these arguments. One that a server runs need not be known here.

    Raises:
        UsageError: there is no such environment here, and the arguments name no server.
    """
    try:
        return find(reference).id
    except UsageError:
        if not is_remote(kwargs):
            raise
        return reference


def with_id(reference: str) -> str:
    """Return a reference with its id: ``file.py:Id`` for a ``file.py`` that registers one environment.

    Raises:
        UsageError: the file does not exist, or registers no or several environments.
    """
    return f"{reference}:{find(reference).id}" if reference.endswith(".py") else reference


def find(reference: str) -> EnvEntry:
    """Return the entry for an id, ``module:Id`` or ``file.py:Id``, after importing the module or file if one is named.

    Raises:
        UnknownNameError: there is no such id.
        UsageError: there is no such module or file.
    """
    source, _, name = reference.rpartition(":")
    names: Sequence[str] = ()
    if reference.endswith(".py"):
        source, name = reference, ""
    if source.endswith(".py"):
        names = _load_file(Path(source))
        name = name or _only(names, source)
    elif source:
        import_module(source)
    if name not in _entries:
        entry_points.import_all(entry_points.ENVS)
    if source.endswith(".py") and name not in _entries:
        others = f"only {', '.join(names)}" if names else "nor any other"
        raise UnknownNameError(f"{source} registers no environment {name!r}, {others}")
    usual = f"agentgym list shows all; one of a file is FILE.py:{name}"
    require_known("environment", name, _entries, entry_points.hint(usual))
    return _entries[name]


def reference_to(id: str) -> str:
    """Return the reference by which a command finds a registered environment; ``ENV`` if it is not registered.

    Example:
        >>> reference_to("agentgym/Household-v0"), reference_to("Nowhere-v0")
        ('agentgym/Household-v0', 'ENV')
    """
    for path, ids in _ids_of_file.items():
        if id in ids:
            return f"{os.path.relpath(path)}:{id}"
    return id if id in _entries else "ENV"


def parameters_of(entry: EnvEntry) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of an environment's constructor, or None if it takes any arguments.

    If the constructor has ``**kwargs``, the parameters of its base classes are included.

    Raises:
        MissingExtraError: the class cannot be imported without its extra.
    """
    made_by = creator_of(entry)
    if not inspect.isclass(made_by):
        found = dict(inspect.signature(made_by).parameters)
        return None if any(p.kind is p.VAR_KEYWORD for p in found.values()) else found
    found = {}
    for owner in made_by.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = list(inspect.signature(vars(owner)["__init__"]).parameters.values())[1:]
        found |= {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


_OF_SPLITS = (
    "the split of tasks is --split of agentgym eval and play, eval.split in training, "
    "and reset(options={'split': ...}) in Python"
)


def check_arguments(entry: EnvEntry, kwargs: Mapping[str, object]) -> None:
    """Raise an error for arguments that an environment does not take.

    Raises:
        UnknownNameError: an argument is unknown; the message names similar ones.
        UsageError: the address of an environment server has another scheme than ws and wss.
        MissingExtraError: the class cannot be imported without its extra.
    """
    if is_remote(kwargs):  # the server checks the arguments
        return
    known = parameters_of(entry)
    for key in kwargs:
        if known is not None and key not in known:
            if key == "url":
                raise UsageError(f"url={kwargs[key]} is no environment server: expected ws://HOST:PORT or wss://...")
            raise unknown_name(f"argument of {entry.id}:", key, known, _OF_SPLITS if key == "split" else "")


def turn_limit(reference: str, kwargs: Mapping[str, object]) -> int | None:
    """Return the turn limit of an environment's episodes without making the environment; None if neither arguments nor
    registry give one, or if only a server knows the environment.

    Raises:
        UsageError: the argument is not a whole number, or there is no such environment.
    """
    if "max_turns" in kwargs:
        return None if kwargs["max_turns"] is None else checked_turns(kwargs["max_turns"])
    try:
        entry = find(reference)
    except UsageError:
        if is_remote(kwargs):
            return None
        raise
    if not entry.is_available:
        return None
    import gymnasium

    registered = gymnasium.spec(entry.id).kwargs.get("max_turns")
    parameter = (parameters_of(entry) or {}).get("max_turns")
    default = parameter.default if parameter is not None and isinstance(parameter.default, int) else None
    return cast("int | None", registered or default or getattr(creator_of(entry), "max_turns", None))


def creator_of(entry: EnvEntry) -> Any:
    """Return the class or function that makes the environment.

    Raises:
        MissingExtraError: the class cannot be imported without its extra.
    """
    if not entry.is_available:
        raise MissingExtraError(entry.id, entry.extra or "all-cpu", entry.install_command)
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    entry_point = gymnasium.spec(entry.id).entry_point
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _only(names: Sequence[str], source: str) -> str:
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise UsageError(f"{source} registers {found}; name one, as in {source}:{names[0] if names else 'Name-v0'}")
    return names[0]


def _load_file(path: Path) -> tuple[str, ...]:
    """Run a file unless it has run unchanged before, and return the ids that it registers."""
    path = found_file(path)
    _newly_registered.clear()
    if run_file(path):
        _ids_of_file[path.resolve()] = tuple(dict.fromkeys(_newly_registered))
    ids = _ids_of_file.get(path.resolve())
    if ids is None:  # it ran for another of its components, such as a policy, or as the script
        ids = tuple(id for id, file in _registered_in.items() if file.resolve() == path.resolve())
    return ids


def command_in(reason: str) -> str:
    """Return the first command in a reason, in backquotes or an ``apt-get`` or ``pip install``; empty if there is none.

    Example:
        >>> command_in("bubblewrap is not installed: apt-get install bubblewrap; or another")
        'apt-get install bubblewrap'
    """
    found = re.search(r"`([^`]+)`|((?:apt-get|pip) install [^;,)]+)", reason)
    return (found[1] or found[2]) if found else ""
