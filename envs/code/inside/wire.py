"""The protocol between the judge and the work under test: values as JSON, and messages over a socket.

Data from the work are never unpickled, evaluated or looked up by name. Plain values are copied with exact types (an
instance of a subclass of ``str`` arrives as a ``str``). Any other object is sent as a reference that only its owner can
resolve.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

MAX_MESSAGE_BYTES = 16 << 20
_BIG = 1 << 63
_HEAD = struct.Struct(">I")
_DATES = {
    "datetime": (datetime.datetime, ("year", "month", "day", "hour", "minute", "second", "microsecond")),
    "date": (datetime.date, ("year", "month", "day")),
    "time": (datetime.time, ("hour", "minute", "second", "microsecond")),
    "timedelta": (datetime.timedelta, ("days", "seconds", "microseconds")),
}
Refer = Callable[[object], "dict[str, object]"]
Resolve = Callable[["dict[str, object]"], object]


class WireError(Exception):
    """The received bytes are not a valid value."""


def encode(value: object, refer: Refer) -> Any:
    """Encode a value as JSON data; ``refer`` returns the reference for an object that is not a plain value.

    Example:
        >>> encode({"a": (1, None)}, lambda value: {"r": 0})
        {'d': [['a', {'t': [1, None]}]]}
    """
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in _ENCODERS:
        if isinstance(value, kind):
            return plain(value, refer)
    return _of_library(value) or refer(value)


def _encode_int(value: int, refer: Refer) -> object:
    number = int.__index__(value)
    return number if -_BIG < number < _BIG else {"i": hex(number)}


def _encode_set(value: Any, refer: Refer) -> object:
    items = sorted((encode(item, refer) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return {"f" if isinstance(value, frozenset) else "s": items}


def _encode_dict(value: Any, refer: Refer) -> object:
    return {"d": [[encode(key, refer), encode(item, refer)] for key, item in dict.items(value)]}


# use the methods of the built-in type itself, since those of a subclass belong to the work
_ENCODERS: tuple[tuple[Any, Callable[[Any, Refer], object]], ...] = (
    (int, _encode_int),
    (float, lambda value, refer: float.__float__(value)),
    (str, lambda value, refer: "".join(str.__iter__(value))),
    ((bytes, bytearray), lambda value, refer: {"b": bytes(value).hex()}),
    (complex, lambda value, refer: {"c": [value.real, value.imag]}),
    (list, lambda value, refer: [encode(item, refer) for item in list.__iter__(value)]),
    (tuple, lambda value, refer: {"t": [encode(item, refer) for item in tuple.__iter__(value)]}),
    ((set, frozenset), _encode_set),
    (dict, _encode_dict),
)


def _of_library(value: object) -> dict[str, object] | None:
    for name, (kind, fields) in _DATES.items():
        if type(value) is kind and getattr(value, "tzinfo", None) is None:
            return {"x": [name, [getattr(value, field) for field in fields]]}
    if type(value) is fractions.Fraction:
        return {"x": ["Fraction", [str(value)]]}
    if type(value) is decimal.Decimal:
        return {"x": ["Decimal", [str(value)]]}
    if type(value) is range:
        return {"x": ["range", [value.start, value.stop, value.step]]}
    return None


def decode(data: Any, resolve: Resolve) -> Any:
    """Decode JSON data to a value; ``resolve`` returns the object of a reference.

    Raises:
        WireError: the data are not a valid value.
    """
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if isinstance(data, list):
        return [decode(item, resolve) for item in data]
    if not isinstance(data, dict):
        raise WireError("not a value")
    if "r" in data:
        return resolve(data)
    try:
        ((kind, content),) = data.items()
        return _DECODERS[kind](content, resolve)
    except (KeyError, ValueError, TypeError, ArithmeticError, OverflowError) as error:
        raise WireError(f"not a value: {type(error).__name__}") from None


def _decode_dict(content: Any, resolve: Resolve) -> object:
    return {decode(key, resolve): decode(item, resolve) for key, item in content}


def _decode_of_library(content: Any, resolve: Resolve) -> object:
    name, arguments = content
    if name in _DATES:
        return _DATES[name][0](*arguments)
    return {"Fraction": fractions.Fraction, "Decimal": decimal.Decimal, "range": range}[name](*arguments)


_DECODERS: dict[str, Callable[[Any, Resolve], object]] = {
    "i": lambda content, resolve: int(content, 16),
    "b": lambda content, resolve: bytes.fromhex(content),
    "c": lambda content, resolve: complex(*content),
    "t": lambda content, resolve: tuple(decode(item, resolve) for item in content),
    "s": lambda content, resolve: {decode(item, resolve) for item in content},
    "f": lambda content, resolve: frozenset(decode(item, resolve) for item in content),
    "d": _decode_dict,
    "x": _decode_of_library,
}


class Line:
    """One end of a connection for JSON messages."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: object) -> None:
        """Send a message."""
        data = json.dumps(message).encode()
        if len(data) > MAX_MESSAGE_BYTES:
            raise WireError(f"a message of {len(data)} bytes is too long")
        self._end.sendall(_HEAD.pack(len(data)) + data)

    def receive(self) -> dict[str, Any]:
        """Return the next message. Raise EOFError if the other end is closed, WireError if the data are invalid."""
        (length,) = _HEAD.unpack(self._exactly(_HEAD.size))
        if length > MAX_MESSAGE_BYTES:
            raise WireError(f"a message of {length} bytes is too long")
        try:
            message = json.loads(self._exactly(length))
        except (ValueError, RecursionError) as error:
            raise WireError(f"no message: {type(error).__name__}") from None
        if not isinstance(message, dict):
            raise WireError("a message is a JSON object")
        return message

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self._end.recv(count - len(data))
            except OSError:
                piece = b""
            if not piece:
                raise EOFError
            data += piece
        return data
