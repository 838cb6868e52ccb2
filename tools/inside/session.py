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
        self, folder: str, variables: dict[str, str], limits: dict[str, int], decimal: Any = None, random: Any = None
    ) -> None:
        self.folder, self.variables, self.limits = folder, variables, limits
        self.decimal, self.random = decimal, random

    @classmethod
    def now(cls) -> Settings:
        """Return the current settings. Those of modules are absent if nobody has imported the module."""
        limits = {"setrecursionlimit": sys.getrecursionlimit(), "set_int_max_str_digits": sys.get_int_max_str_digits()}
        return cls(os.getcwd(), dict(os.environ), limits)

    def read_modules(self, *, is_seeded: bool) -> None:
        """Add the settings of modules that have been imported."""
        if "decimal" in sys.modules:
            self.decimal = sys.modules["decimal"].getcontext()
        if "random" in sys.modules and is_seeded:
            self.random = sys.modules["random"].getstate()

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


def load(path: str, main: dict[str, object]) -> tuple[dict[str, str], bool]:
    """Read a session into a namespace. Print what is lost.

    Returns:
        The definitions, and True if the state of the random numbers belongs to the session.
    """
    if not os.path.exists(path):
        return {}, False
    try:
        with open(path, "rb") as file:
            stored = _Stored(*pickle.load(file))
    except Exception as error:
        print(f"[the variables of earlier calls are lost: {_words(error)}]", file=sys.stderr)
        return {}, False
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
    return stored.definitions, settings is not None and settings.random is not None


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
        owner, _, attribute = name[1:].partition(".")
        if owner in main:
            setattr(main[owner], attribute, value)


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
    patched: list[str],
    *,
    is_seeded: bool,
) -> None:
    """Write a session and print what is not kept.

    Args:
        path: the session's file.
        main: the namespace of the session.
        definitions: sources by name.
        at_start: settings before the session was read.
        patched: attributes of modules that the cell has set, which are not kept.
        is_seeded: True if the cell may have seeded the random numbers.
    """
    for name, value in main.items():
        if name not in OWN and name not in definitions and isinstance(value, types.ModuleType):
            definitions[name] = f"import {value.__name__} as {name}"
    lost, values, alone = list(patched), dict[str, object](), dict[str, bytes]()
    for name, value in [*main.items(), *_attributes(main, definitions)]:
        if name in OWN or name in definitions:
            continue
        try:
            alone[name] = _pickled(value, definitions)
            pickle.loads(alone[name])
            values[name] = value
        except Exception:
            alone.pop(name, None)
            if not name.startswith("."):  # the source of a class makes its attributes again
                lost.append(name)
    try:
        while sum(map(len, alone.values())) > MAX_BYTES // 2:
            largest = max(alone, key=lambda name: len(alone[name]))
            del values[largest], alone[largest]
            lost.append(f"{largest.strip('.')} (too large)")
        settings = _settings(at_start, is_seeded=is_seeded)
        is_empty = not (definitions or values or settings)
        _write(path, None if is_empty else (definitions, _pickled(values, definitions), alone, settings))
    except Exception as error:
        print(f"[variables were not kept: {_words(error)}]", file=sys.stderr)
    if lost:
        print(f"[not kept for the next call: {', '.join(sorted(lost))}]", file=sys.stderr)


def _settings(at_start: Settings, *, is_seeded: bool) -> bytes:
    """Return the settings as bytes; empty if the session has changed none."""
    now = Settings.now()
    before = (at_start.folder, at_start.variables, at_start.limits)
    has_changed = (now.folder, now.variables, now.limits) != before
    now.read_modules(is_seeded=is_seeded)
    if not has_changed and now.decimal is None and now.random is None:
        return b""
    return pickle.dumps((now.folder, now.variables, now.limits, now.decimal, now.random))


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
