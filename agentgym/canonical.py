"""Canonical text of values: two texts are equal exactly if the values are. State keys and content hashes use it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, TypeGuard

# strings come first, so that words inside them are not replaced
_NON_FINITE = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
_KEPT = {"Infinity": "1e999", "-Infinity": "-1e999", "NaN": '"NaN"'}


def canonical(value: object) -> str:
    """Return a text that is equal exactly for equal values, in any process.

    Sets are sorted, mappings are sorted by key, and a tuple equals a list of the same items. Keys of mappings are text,
    numbers or tuples, and no two keys may have the same text.

    Raises:
        TypeError: a value is not text, a number, a boolean, None or a container of those, so that its text would hold a
            memory address; or two keys of a mapping have the same text.

    Example:
        >>> canonical({"open": {"b", "a"}, "at": ("fridge", 1)})
        '{"at":["fridge",1],"open":["a","b"]}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """Return the 128-bit digest of :func:`canonical` in hexadecimal, 32 characters."""
    return hashlib.blake2b(canonical(value).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def strict_json(value: object, *, keeps_non_finite: bool = False, **layout: Any) -> str:
    """Render a value as strict JSON. Numbers that are not finite, which JSON does not have, become ``null``.

    Args:
        keeps_non_finite: write infinities as numbers beyond a double's range and NaN as the text ``"NaN"`` instead.
            Python, pydantic and numpy read both back.
        layout: ``indent`` and ``separators`` of :func:`json.dumps`.

    Example:
        >>> strict_json({"loss": float("nan")}), strict_json([float("-inf")], keeps_non_finite=True)
        ('{"loss": null}', '[-1e999]')
    """
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:  # rare, so the text is searched only in this case
        written = _KEPT if keeps_non_finite else {}
        return _NON_FINITE.sub(
            lambda found: found[0] if found[0][0] == '"' else written.get(found[0], "null"), json.dumps(value, **layout)
        )


MAX_DEPTH = 50
"""Deepest nesting allowed in JSON from a policy or a peer."""
_MAX_BITS = 1023  # largest whole number; a larger one raises OverflowError when a tool converts it with `float`
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(text: str | bytes) -> Any:
    """Decode JSON from an untrusted source.

    Raises:
        ValueError: the text is not JSON, or it is nested deeper than Python's stack (``json`` alone raises
            ``RecursionError`` then).

    Example:
        >>> read_json("[" * 100_000)
        Traceback (most recent call last):
        ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


_KNOWN = frozenset(("name", "arguments", "parameters", "id", "type", "call_id", "tool_call_id", "index", "status"))
"""Keys that a call may have."""


def read_arguments(call: Mapping[str, Any], *, ignores_more: bool = False) -> Mapping[str, Any]:
    """Return the arguments of a call that came as a JSON object: the value of ``arguments``, or of ``parameters``.

    They are an object, or JSON text of one. Null, blank text and a call without the key have no arguments. Keys whose
    value is null count as missing.

    Args:
        ignores_more: further keys beside the arguments are ignored, for calls that were read by another program before.

    Raises:
        ValueError: the arguments are something else, or the call has a key whose value would be lost.

    Example:
        >>> read_arguments({"name": "look", "arguments": " "}), read_arguments({"name": "f", "parameters": '{"x": 1}'})
        ({}, {'x': 1})
        >>> read_arguments({"name": "look", "args": {"at": "mug"}})
        Traceback (most recent call last):
        ValueError: the call has the unknown key 'args'; its arguments belong into 'arguments'
    """
    given = [key for key in ("arguments", "parameters") if call.get(key) is not None]
    unknown = sorted(str(key) for key in call if key not in _KNOWN and call[key] is not None)
    if unknown and not (given and ignores_more):
        raise ValueError(f"the call has the unknown key {unknown[0]!r}; its arguments belong into 'arguments'")
    if len(given) > 1:
        raise ValueError("the call has both 'arguments' and 'parameters', expected one of them")
    value = call[given[0]] if given else None
    if isinstance(value, str):
        try:
            value = read_json(value) if value.strip() else None
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{given[0]} must be a JSON object")
    return value or {}


def packaged(package: str, name: str) -> Any:
    """Return the content of a TOML or JSON file beside the modules of a package.

    Example:
        >>> packaged("agentgym.envs", "environments.toml")["Household-v0"]["class"]
        'household.env:HouseholdEnv'
    """
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


def require_writable(value: object, depth: int = 0) -> None:
    """Raise an error for a decoded value that tools cannot take or records cannot store.

    Raises:
        ValueError: the value is nested deeper than :data:`MAX_DEPTH`, or it holds a number that is not finite or beyond
            a double's range, or text with half of a surrogate pair.

    Example:
        >>> require_writable({"price": 10**400})
        Traceback (most recent call last):
        ValueError: a number beyond a double's range
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            require_writable(key, depth + 1)
            require_writable(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            require_writable(item, depth + 1)
    elif fault := _fault_of(value):
        raise ValueError(fault)


def _fault_of(value: object) -> str:
    """Return why a text or number cannot be stored, or an empty text if it can."""
    if isinstance(value, str):
        is_broken = not value.isascii() and _SURROGATE.search(value) is not None
        return "text with half of a surrogate pair" if is_broken else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "a number that is not finite"
    is_huge = isinstance(value, int) and value.bit_length() > _MAX_BITS
    return "a number beyond a double's range" if is_huge else ""


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        plain = {key if isinstance(key, str) else canonical(key): _plain(item) for key, item in value.items()}
        if len(plain) < len(value):
            raise TypeError(f"keys of a canonical mapping must differ as text; got {list(value)}")
        return plain
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return _plain(value.tolist())
    raise TypeError(f"a canonical value is text, a number, a bool, None or a container of those; got {type(value)}")


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for a whole number of JSON. True and false are none, although Python counts them as 1 and 0.

    Example:
        >>> is_whole(1), is_whole(True)
        (True, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a number of JSON, which true and false are not."""
    return is_whole(value) or isinstance(value, float)


def readable_json(value: object, **layout: Any) -> str:
    """Render a value as JSON for people, with letters of any script as they are; halves of surrogate pairs are escaped.

    Args:
        layout: arguments of :func:`json.dumps`, such as ``indent`` and ``default``.

    Example:
        >>> print(readable_json({"where": "Łódź", "odd": chr(0xD800)}))
        {"where": "Łódź", "odd": "\\ud800"}
    """
    text = json.dumps(value, ensure_ascii=False, **layout)
    return text if text.isascii() else _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def encodable(text: str) -> str:
    """Replace each half of a surrogate pair, which neither tokenizers nor files accept, with a question mark.

    Example:
        >>> encodable("na" + chr(0xD800))
        'na?'
    """
    return text.encode(errors="replace").decode()


def encodable_json(value: Any, max_depth: int) -> Any:
    """Return a decoded JSON value whose texts are :func:`encodable`.

    Raises:
        ValueError: the value is nested deeper than ``max_depth``.

    Example:
        >>> encodable_json({"text": ["na" + chr(0xD800)]}, 1)
        {'text': ['na?']}
    """
    if isinstance(value, str):
        return value if value.isascii() else encodable(value)
    if not isinstance(value, dict | list):
        return value
    if max_depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [encodable_json(item, max_depth - 1) for item in value]
    return {encodable(key): encodable_json(item, max_depth - 1) for key, item in value.items()}


def shell_word(path: object) -> str:
    """Return a path as one word of a command that a person copies into a shell.

    Example:
        >>> shell_word("runs/a"), shell_word("my runs/a")
        ('runs/a', "'my runs/a'")
    """
    return shlex.quote(str(path))
