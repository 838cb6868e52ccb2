"""The process that runs the work under test. It applies the operations that the judge requests to the work's objects.

It never receives the tests or the expected values, only arguments, and it returns only results. The work can therefore
not read the values that it should compute. :mod:`agentgym.envs.code.inside.wire` defines the messages.
"""

from __future__ import annotations

import importlib
import operator
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from agentgym.envs.code.inside.wire import Line, decode, encode

_OPERATIONS: dict[str, Callable[..., object]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv")},
    **{name: getattr(operator, name) for name in ("floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift")},
    **{
        name: getattr(operator, name)
        for name in ("rshift", "neg", "pos", "invert", "abs", "getitem", "contains", "index")
    },
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "import": importlib.import_module,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "call": lambda target, *args, **kwargs: target(*args, **kwargs),
    "isinstance": isinstance,
    "len": len,
    "iter": iter,
    "next": next,
    "reversed": reversed,
    "str": str,
    "repr": repr,
    "bool": bool,
    "hash": hash,
    "int": int,
    "float": float,
    "round": round,
    "enter": lambda target: type(target).__enter__(target),
    "exit": lambda target: type(target).__exit__(target, None, None, None),
    "dir": dir,
}


class Callback:
    """Stands for a function of the tests in the work's process; a call runs the function in the judge's process."""

    def __init__(self, server: Server, number: int) -> None:
        self._server, self._number = server, number

    def __call__(self, *args: object) -> object:
        return self._server.call_back(self._number, args)


class Server:
    """Executes the judge's requests, one at a time.

    A request names one of ``_OPERATIONS`` and its arguments. The answer is ``{"ok": value}``, or ``{"raise": ...}``
    with the class and arguments of the error. Objects that are not plain values stay here and are sent as numbers.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._objects: list[object] = []  # never freed: a reused id() would give an old number to a new object
        self._numbers: dict[int, int] = {}
        self._callbacks: dict[int, Callback] = {}

    def serve(self) -> None:
        """Answer requests until the judge closes the connection."""
        while True:
            try:
                request = self._line.receive()
            except EOFError:
                return
            self._line.send(self._answer(request))

    def call_back(self, number: int, args: tuple[object, ...]) -> object:
        """Call a function of the tests and return its result; it may send requests itself before it returns."""
        self._line.send({"callback": number, "args": [encode(arg, self._refer) for arg in args]})
        while True:
            message = self._line.receive()
            if "do" not in message:
                break
            self._line.send(self._answer(message))
        if "raise" in message:
            raise RuntimeError(message["raise"])
        return decode(message["ok"], self._resolve)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            args = [decode(arg, self._resolve) for arg in request["args"]]
            kwargs = {name: decode(value, self._resolve) for name, value in request.get("kwargs", {}).items()}
            return {"ok": encode(_OPERATIONS[request["do"]](*args, **kwargs), self._refer)}
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too: the work must not end its process
            try:
                args = [encode(arg, self._refer) for arg in error.args]
            except Exception:
                args = []
            try:
                text = str(error)
            except Exception:
                text = ""
            return {
                "raise": {"class": self._refer(type(error)), "args": args, "text": text, "self": self._refer(error)}
            }

    def _refer(self, value: object) -> dict[str, object]:
        if isinstance(value, Callback):
            return {"r": "judge", "n": value._number}
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        reference: dict[str, Any] = {"r": "work", "n": number}
        if isinstance(value, type):
            reference["class"] = [value.__module__, value.__name__]
            reference["bases"] = [_name_of(base) or self._refer(base) for base in value.__bases__]
        elif not _is_builtin(type(value)):
            reference["type"] = self._refer(type(value))
        return reference

    def _resolve(self, data: dict[str, Any]) -> object:
        if data["r"] == "work":
            return self._objects[data["n"]]
        if data["r"] == "builtin":
            import builtins

            return getattr(builtins, data["name"])
        return self._callbacks.setdefault(data["n"], Callback(self, data["n"]))


def _is_builtin(kind: type) -> bool:
    return kind.__module__ == "builtins"


def _name_of(kind: type) -> str | None:
    return kind.__name__ if _is_builtin(kind) else None


def serve(end: socket.socket, folder: str) -> None:
    """Turn this process into the server of the work in ``folder``; never returns.

    Standard input and output are redirected to ``/dev/null`` first, so that the work cannot write a verdict.

    Args:
        end: socket that is connected to the judge.
        folder: folder with the work; it, and its ``src`` if it has one, come first on the import path.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.chdir(folder)
        sys.path[:] = [folder, *(path for path in sys.path if path not in ("", folder))]
        if os.path.isdir(os.path.join(folder, "src")):
            sys.path.insert(0, os.path.join(folder, "src"))
        sys.argv = ["-c"]
        Server(Line(end)).serve()
    finally:
        os._exit(0)
