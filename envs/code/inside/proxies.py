"""Proxies of the work's objects for the tests: each use is a request to the work's process.

An object that decides its own comparisons could claim to equal any expected value. If a test compares a result with a
plain value, the object's own comparison is therefore not called. An object of the work's own class is never equal to a
plain value. It supports ordering, membership and arithmetic only if the test itself names its class, as in ``from clock
import Clock``.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from agentgym.envs.code.inside.wire import Line, WireError, decode, encode


class WorkFailed(Exception):
    """The work's process has ended or violates the protocol."""


class NotPlain(WireError):
    """A reference was received where a plain value is required."""


class Work:
    """The connection to the work's process."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._classes: dict[int, type] = {}
        self._callbacks: list[Callable[..., object]] = []
        self.named: set[int] = set()
        """Ids of the classes that tests have named."""
        self.gives_plain_values = False
        """True if all results must be plain values, since an object would decide its own comparisons."""

    def load(self, name: str) -> types.ModuleType:
        """A module of the work."""
        return RemoteModule(name, self, self.do("import", name))

    def plain(self, args: Any) -> list[Any]:
        """Decode JSON data that must contain no references."""
        return [decode(arg, self._resolve) for arg in args]

    def do(self, operation: str, *args: object, **kwargs: object) -> Any:
        """Execute an operation in the work's process. Return its value or raise its error."""
        return self.ask(operation, args, kwargs)

    def ask(self, operation: str, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Execute an operation, as :meth:`do` does, with keyword arguments in a dict."""
        request: dict[str, Any] = {"do": operation, "args": [encode(arg, self._refer) for arg in args]}
        if kwargs:
            request["kwargs"] = {name: encode(value, self._refer) for name, value in kwargs.items()}
        try:
            self._line.send(request)
            while "callback" in (answer := self._line.receive()):
                self._line.send(self._called_back(answer))
            if "ok" in answer:
                return decode(answer["ok"], self._resolve_result)
            error = self._error(answer["raise"])
        except (EOFError, OSError):
            raise WorkFailed("the process of the work has ended") from None
        except NotPlain as refused:
            raise WorkFailed(str(refused)) from None
        except (KeyError, TypeError, ValueError, IndexError, RecursionError, WireError):
            raise WorkFailed("the process of the work does not answer as it should") from None
        raise error

    def _called_back(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self._callbacks[message["callback"]]
            return {
                "ok": encode(function(*[decode(arg, self._resolve_result) for arg in message["args"]]), self._refer)
            }
        except Exception as error:
            return {"raise": f"{type(error).__name__}"}

    def _refer(self, value: object) -> dict[str, object]:
        number = value.__dict__.get("_number") if isinstance(value, (Remote, RemoteModule, type)) else None
        if number is not None:
            return {"r": "work", "n": number}
        name = getattr(value, "__name__", "")
        if isinstance(name, str) and getattr(builtins, name, None) is value:
            return {"r": "builtin", "name": name}
        if not callable(value):
            raise WorkFailed(f"a value of the type {type(value).__name__} cannot be passed to the work")
        self._callbacks.append(value)
        return {"r": "judge", "n": len(self._callbacks) - 1}

    def _resolve_result(self, data: dict[str, object]) -> object:
        if self.gives_plain_values:
            raise NotPlain("the work returned an object, but a plain value was expected")
        return self._resolve(data)

    def _resolve(self, data: dict[str, Any]) -> object:
        number = data.get("n")
        if not isinstance(number, int):
            raise WireError("a reference has no number")
        if data["r"] == "judge":
            return self._callbacks[number]
        if "class" in data:
            return self._class_of(data)
        kind = self._class_of(data["type"]) if isinstance(data.get("type"), dict) else Remote
        made = object.__new__(kind if issubclass(kind, Remote) else Remote)
        made.__dict__.update(_work=self, _number=number)
        return made

    def _class_of(self, data: dict[str, Any]) -> type:
        number, (module, name) = data["n"], data["class"]
        if module == "builtins" and isinstance(known := getattr(builtins, str(name), None), type):
            return known
        if number not in self._classes:
            bases = [self._base(base) for base in data["bases"]]
            errors = tuple(base for base in bases if issubclass(base, Exception))
            if errors:
                made: type = type(str(name), errors, {"_number": number, "_work": self, **_ERROR_METHODS})
            else:
                remotes = tuple(base for base in bases if issubclass(base, Remote)) or (Remote,)
                made = RemoteClass.made(str(name), remotes, {"_number": number, "_work": self})
            self._classes[number] = made
        return self._classes[number]

    def _base(self, data: Any) -> type:
        found = self._class_of(data) if isinstance(data, dict) else getattr(builtins, str(data), object)
        return found if isinstance(found, type) else object

    def _error(self, data: dict[str, Any]) -> Exception:
        kind, text = self._resolve(data["class"]), str(data["text"])
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            return WorkFailed(f"the work ended with {getattr(kind, '__name__', 'an error')}")
        try:
            error = kind(*[decode(arg, self._resolve) for arg in data["args"]])
        except Exception:
            error = kind.__new__(kind)
        if kind.__module__ != "builtins":
            error.__dict__.update(_text=text, _remote=self._resolve(data["self"]))
        return error


class RemoteModule(types.ModuleType):
    """A module of the work."""

    def __init__(self, name: str, work: Work, remote: Any) -> None:
        super().__init__(name)
        self.__dict__.update(_work=work, _number=remote.__dict__["_number"])

    def __getattr__(self, name: str) -> Any:
        work: Work = self.__dict__["_work"]
        if name == "__all__":
            return [found for found in work.do("dir", self) if isinstance(found, str) and not found.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(name)
        value = work.do("getattr", self, name)
        # a class with the name of a function acts as one, so its objects may not decide comparisons
        if isinstance(value, type) and "_number" in value.__dict__ and name[:1].isupper():
            work.named.add(value.__dict__["_number"])
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__") or isinstance(value, types.ModuleType):
            super().__setattr__(name, value)
        else:
            self.__dict__["_work"].do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__["_work"].do("delattr", self, name)


class RemoteClass(type):
    """The metaclass of proxies for the work's classes."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> RemoteClass:
        if any("_number" in base.__dict__ for base in bases):
            raise WorkFailed("tests cannot derive from a class of the work")
        return super().__new__(cls, name, bases, namespace)

    @classmethod
    def made(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> RemoteClass:
        """Make a proxy class with the same bases as the work's class."""
        found = type.__new__(cls, name, bases, namespace)
        type.__init__(found, name, bases, namespace)
        return found

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return _work_of(cls).ask("call", (cls, *args), kwargs)

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _work_of(cls).do("getattr", cls, name)

    def __instancecheck__(cls, instance: object) -> bool:
        if "_number" not in cls.__dict__:
            return type.__instancecheck__(cls, instance)
        return type.__instancecheck__(Remote, instance) and bool(_work_of(cls).do("isinstance", instance, cls))

    def __iter__(cls) -> Any:
        return _work_of(cls).do("iter", cls)

    def __len__(cls) -> int:
        return int(_work_of(cls).do("len", cls))

    def __getitem__(cls, key: object) -> Any:
        return _work_of(cls).do("getitem", cls, key)

    def __bool__(cls) -> bool:
        return True


class Remote(metaclass=RemoteClass):
    """An object of the work."""

    def __getattr__(self, name: str) -> object:
        return _work_of(self).do("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _work_of(self).do("setattr", self, name, value)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return _work_of(self).ask("call", (self, *args), kwargs)

    def __eq__(self, other: object) -> bool:
        return type.__instancecheck__(Remote, other) and bool(_work_of(self).do("eq", self, other))

    def __ne__(self, other: object) -> bool:
        return not type.__instancecheck__(Remote, other) or bool(_work_of(self).do("ne", self, other))

    def __hash__(self) -> int:
        return int(_work_of(self).do("hash", self))

    def __contains__(self, item: object) -> bool:
        if _is_named(self):
            return bool(_work_of(self).do("contains", self, item))
        return any(found == item for found in self)

    def __iter__(self) -> Any:
        return _work_of(self).do("iter", self)

    def __str__(self) -> str:
        return _text(_work_of(self).do("str", self))

    def __repr__(self) -> str:
        return _text(_work_of(self).do("repr", self))

    def __exit__(self, *error: object) -> None:
        _work_of(self).do("exit", self)


def _work_of(proxy: Any) -> Work:
    work: Work = (
        type.__getattribute__(proxy, "__dict__")["_work"] if isinstance(proxy, type) else proxy.__dict__["_work"]
    )
    return work


def _is_named(proxy: Remote) -> bool:
    number = type(proxy).__dict__.get("_number")
    return number in _work_of(proxy).named


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WorkFailed("str() or repr() of an object of the work did not return text")
    return value


def _unary(name: str) -> Callable[..., object]:
    def method(self: Any, *args: Any) -> Any:
        return _work_of(self).do(name, self, *args)

    return method


def _binary(name: str, is_reflected: bool = False) -> Callable[[object, object], object]:
    def method(self: Any, other: Any) -> Any:
        if not type.__instancecheck__(Remote, other) and not _is_named(self):
            raise TypeError(f"a plain value was expected, got an object of the class {type(self).__name__}")
        return _work_of(self).do(name, *((other, self) if is_reflected else (self, other)))

    return method


for _name in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _binary(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift"):
    setattr(Remote, f"__{_name.strip('_')}__", _binary(_name))
    setattr(Remote, f"__r{_name.strip('_')}__", _binary(_name, is_reflected=True))
for _name in ("neg", "pos", "invert", "abs", "len", "next", "reversed", "bool", "int", "float", "index", "round"):
    setattr(Remote, f"__{_name}__", _unary(_name))
for _name in ("enter", "getitem", "setitem", "delitem"):
    setattr(Remote, f"__{_name}__", _unary(_name))


def _error_text(self: object) -> str:
    return str(self.__dict__.get("_text", ""))


def _error_attribute(self: object, name: str) -> object:
    if name.startswith("_") or "_remote" not in self.__dict__:
        raise AttributeError(name)
    return _work_of(type(self)).do("getattr", self.__dict__["_remote"], name)


_ERROR_METHODS: dict[str, object] = {"__str__": _error_text, "__getattr__": _error_attribute}


def words_of(error: BaseException) -> str:
    """Return the class of an error, and its message unless it could reveal expected values."""
    name = type(error).__name__
    if isinstance(error, AssertionError):
        return name
    is_builtin = getattr(builtins, name, None) is type(error)
    return f"{name}: {str(error)[:200]}" if is_builtin or isinstance(error, (WorkFailed, WireError)) else name
