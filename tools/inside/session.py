"""The file of an interpreter session: definitions, values and settings, written at a cell's end and read at the next.

Values are pickled together, so that shared objects stay shared, and each one alone, so that one that cannot be read
does not take the others with it. A class or function of the session is pickled by name only if its source is kept.
Attributes of classes and functions, and the defaults of functions, are values, too.
"""

from __future__ import annotations

import abc
import io
import os
import pickle
import sys
import types
from typing import Any

MAX_BYTES = 8 << 20
OWN = ("__name__", "__builtins__", "__doc__", "__loader__", "__spec__", "__package__", "__annotations__")


class Settings:
    """Settings of the interpreter that a cell can change. No dataclass, whose import would slow every cell down."""

    def __init__(
        self,
        folder: str,
        variables: dict[str, str],
        limits: dict[str, int],
        decimal: Any = None,
        random: Any = None,
        numpy: Any = None,
    ) -> None:
        self.folder, self.variables, self.limits = folder, variables, limits
        self.decimal, self.random, self.numpy = decimal, random, numpy

    @classmethod
    def now(cls) -> Settings:
        """Return the current settings. Those of modules are absent if nobody has imported the module."""
        limits = {"setrecursionlimit": sys.getrecursionlimit(), "set_int_max_str_digits": sys.get_int_max_str_digits()}
        return cls(os.getcwd(), dict(os.environ), limits)

    def read_modules(self, seeded: set[str]) -> None:
        """Add the settings of modules that have been imported, and the random numbers of those that were seeded."""
        if "decimal" in sys.modules:
            self.decimal = sys.modules["decimal"].getcontext()
        if "random" in seeded:
            self.random = sys.modules["random"].getstate()
        if "numpy.random" in seeded:
            self.numpy = sys.modules["numpy.random"].get_state(legacy=False)

    @property
    def seeded(self) -> set[str]:
        """Modules whose random numbers the session has seeded."""
        return {name for name, state in (("random", self.random), ("numpy.random", self.numpy)) if state is not None}

    def apply(self) -> None:
        """Put these settings in force."""
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.variables)
        for name, value in self.limits.items():
            getattr(sys, name)(value)
        if self.decimal is not None:
            import decimal

            decimal.setcontext(self.decimal)
        if self.random is not None:
            import random

            random.setstate(self.random)
        if self.numpy is not None:
            import numpy

            numpy.random.set_state(self.numpy)


class _Stored:
    """Content of a session file."""

    def __init__(self, definitions: dict[str, str], together: bytes, alone: dict[str, bytes], settings: bytes) -> None:
        self.definitions, self.together, self.alone, self.settings = definitions, together, alone, settings


class _Pickler(pickle.Pickler):
    """A pickler that refuses classes and functions of the session whose source is not kept."""

    def __init__(self, file: io.BytesIO, definitions: dict[str, str]) -> None:
        super().__init__(file)
        self._definitions = definitions

    def reducer_override(self, value: Any) -> Any:
        is_own = isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__"
        if is_own and value.__qualname__.partition(".")[0] not in self._definitions:
            raise pickle.PicklingError(f"{value.__qualname__} cannot be defined again")
        return NotImplemented


def load(path: str, main: dict[str, object]) -> tuple[dict[str, str], set[str], set[str]]:
    """Read a session into a namespace. Print what is lost.

    Returns:
        The definitions, the modules whose random numbers were seeded, and attributes of imported modules and objects
        that were set, such as ``mpmath.mp.dps``.
    """
    if not os.path.exists(path):
        return {}, set(), set()
    try:
        with open(path, "rb") as file:
            stored = _Stored(*pickle.load(file))
    except Exception as error:
        print(f"[the variables of earlier calls are lost: {_words(error)}]", file=sys.stderr)
        return {}, set(), set()
    silenced = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    lost: dict[str, str] = {}
    settings = None
    try:
        waiting = _define(stored.definitions, main)
        values, lost = _read_values(stored)
        _put(values, main)
        failed = _define({name: stored.definitions[name] for name in waiting}, main)
        if lost and waiting:  # values that need one of these definitions
            values, lost = _read_values(stored)
        _put(values, main)
        lost |= {name: "its definition fails now" for name in failed}
        if stored.settings:
            settings = Settings(*pickle.loads(stored.settings))
            settings.apply()
    except Exception as error:
        lost["settings"] = _words(error)
    finally:
        sys.stdout, sys.stderr = silenced
    for name, why in lost.items():
        stored.definitions.pop(name, None)
        print(f"[lost since the last call: {name.strip('.')} ({why})]", file=sys.stderr)
    changed = {name[1:] for name in stored.alone if name.startswith(".") and not _is_of_session(main, name)}
    return stored.definitions, settings.seeded if settings else set(), changed


def _read_values(stored: _Stored) -> tuple[dict[str, object], dict[str, str]]:
    try:
        return pickle.loads(stored.together), {}
    except Exception:
        values, lost = dict[str, object](), dict[str, str]()
        for name, data in stored.alone.items():
            try:
                values[name] = pickle.loads(data)
            except Exception as error:
                lost[name] = _words(error)
        return values, lost


def _put(values: dict[str, object], main: dict[str, object]) -> None:
    """Set variables, and attributes of classes and functions (``.Bank.rate``)."""
    for name, value in values.items():
        if not name.startswith("."):
            main[name] = value
            continue
        owner, _, attribute = name[1:].rpartition(".")
        found = value_of(owner, main)
        if found is not None:
            setattr(found, attribute, value)


def value_of(path: str, main: dict[str, object]) -> Any:
    """Return what a dotted name stands for; None if there is nothing."""
    first, *rest = path.split(".")
    found = main.get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


def _is_of_session(main: dict[str, object], name: str) -> bool:
    """Return True for an attribute (``.Bank.rate``) of a class or function that the session has defined."""
    return getattr(main.get(name[1:].partition(".")[0]), "__module__", "") == "__main__"


def _define(definitions: dict[str, str], main: dict[str, object]) -> list[str]:
    """Run definitions. Return those that failed, which may need values first."""
    failed = []
    for name, source in definitions.items():
        try:
            exec(compile(source, "<cell>", "exec"), main)
        except Exception:
            failed.append(name)
    return failed


def save(
    path: str,
    main: dict[str, object],
    definitions: dict[str, str],
    at_start: Settings,
    changed: set[str],
    seeded: set[str],
    lost: list[str],
) -> None:
    """Write a session and print what is not kept.

    Args:
        path: the session's file.
        main: the namespace of the session.
        definitions: sources by name.
        at_start: settings before the session was read.
        changed: attributes of imported modules and objects that the session has set.
        seeded: modules whose random numbers the session has seeded.
        lost: what else the cell has changed and is not kept.
    """
    for name, value in main.items():
        if name not in OWN and name not in definitions and isinstance(value, types.ModuleType):
            definitions[name] = f"import {value.__name__} as {name}"
    values, alone = dict[str, object](), dict[str, bytes]()
    set_by_session = [(f".{path}", value_of(path, main)) for path in sorted(changed)]
    for name, value in [*main.items(), *_attributes(main, definitions), *set_by_session]:
        if name in OWN or name in definitions:
            continue
        try:
            alone[name] = _pickled(value, definitions)
            pickle.loads(alone[name])
            values[name] = value
        except Exception:
            alone.pop(name, None)
            if not name.startswith(".") or name[1:] in changed:  # the source of a class makes its attributes again
                lost.append(name.strip("."))
    try:
        while sum(map(len, alone.values())) > MAX_BYTES // 2:
            largest = max(alone, key=lambda name: len(alone[name]))
            del values[largest], alone[largest]
            lost.append(f"{largest.strip('.')} (too large)")
        settings = _settings(at_start, seeded)
        is_empty = not (definitions or values or settings)
        _write(path, None if is_empty else (definitions, _pickled(values, definitions), alone, settings))
    except Exception as error:
        print(f"[variables were not kept: {_words(error)}]", file=sys.stderr)
    if lost:
        print(f"[not kept for the next call: {', '.join(sorted(set(lost)))}]", file=sys.stderr)


def _settings(at_start: Settings, seeded: set[str]) -> bytes:
    """Return the settings as bytes; empty if the session has changed none."""
    now = Settings.now()
    before = (at_start.folder, at_start.variables, at_start.limits)
    has_changed = (now.folder, now.variables, now.limits) != before
    now.read_modules(seeded)
    if not has_changed and now.decimal is None and not now.seeded:
        return b""
    return pickle.dumps((now.folder, now.variables, now.limits, now.decimal, now.random, now.numpy))


def _attributes(main: dict[str, object], definitions: dict[str, str]) -> list[tuple[str, object]]:
    """Return the data in classes and functions of the session, as ``.owner.attribute`` and value."""
    found: list[tuple[str, object]] = []
    for owner in definitions:
        value: Any = main.get(owner)
        if getattr(value, "__module__", "") != "__main__":
            continue
        if isinstance(value, types.FunctionType):
            found += [(f".{owner}.{name}", one) for name, one in vars(value).items() if name != "__wrapped__"]
            defaults = (("__defaults__", value.__defaults__), ("__kwdefaults__", value.__kwdefaults__))
            found += [(f".{owner}.{name}", one) for name, one in defaults if one]
        elif type(value) in (type, abc.ABCMeta):  # not an Enum, whose members are fixed
            found += [
                (f".{owner}.{name}", one)
                for name, one in vars(value).items()
                if not name.startswith("__") and not _is_of_the_body(value, one)
            ]
    return found


def _is_of_the_body(owner: type, value: object) -> bool:
    """Return True for methods, descriptors and members that the class's source makes again."""
    if isinstance(value, types.FunctionType):
        return value.__qualname__.startswith(f"{owner.__qualname__}.")
    return hasattr(type(value), "__get__") or isinstance(value, owner) or value.__class__.__name__ == "_abc_data"


def _write(path: str, known: object) -> None:
    if known is None:
        if os.path.exists(path):
            os.remove(path)
        return
    with open(path + ".new", "wb") as file:
        pickle.dump(known, file)
    os.replace(path + ".new", path)


def _pickled(value: object, definitions: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, definitions).dump(value)
    return buffer.getvalue()


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
