"""The process that holds the work under test: it does what the judge asks of the work's objects, and nothing else.

It is told neither tests nor expected values: arguments come in, results go out.
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
    """A function of the tests, as the work sees it: it can be called."""

    def __init__(self, server: Server, number: int) -> None:
        self._server, self._number = server, number

    def __call__(self, *args: object) -> object:
        return self._server.call_back(self._number, args)


class Server:
    """Answers the judge."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._objects: list[object] = []  # kept, so that no number ever means another object
        self._numbers: dict[int, int] = {}
        self._callbacks: dict[int, Callback] = {}

    def serve(self) -> None:
        """Answer until the judge is gone."""
        while True:
            try:
                request = self._line.receive()
            except EOFError:
                return
            self._line.send(self._answer(request))

    def call_back(self, number: int, args: tuple[object, ...]) -> object:
        """Call a function of the tests, which may ask for more before it answers."""
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
        except BaseException as error:
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
    """Be the process that holds the work in ``folder``; does not return."""
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
