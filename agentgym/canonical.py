"""Values as text that is equal exactly for equal values: state keys and content hashes rest on it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

_NON_FINITE = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')  # texts first, so that words in them are left alone
_KEPT = {"Infinity": "1e999", "-Infinity": "-1e999", "NaN": '"NaN"'}


def canonical(value: object) -> str:
    """A text form that is equal exactly for equal values, in any process.

    Sets are sorted, mappings are sorted by key, tuples and lists are the same thing; anything else than text, numbers,
    booleans, None and containers of those is refused, since its text would be an address. Keys of mappings are text,
    or else numbers or tuples whose text must not coincide with that of another key.

    Example:
        >>> canonical({"open": {"b", "a"}, "at": ("fridge", 1)})
        '{"at":["fridge",1],"open":["a","b"]}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """128-bit hex digest of :func:`canonical`."""
    return hashlib.blake2b(canonical(value).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def strict_json(value: object, *, keeps_non_finite: bool = False, **layout: Any) -> str:
    """Render a value as JSON that every reader takes: numbers that are not finite, which JSON lacks, become ``null``.

    Args:
        keeps_non_finite: write infinities as numbers beyond a double's range and NaN as the text ``"NaN"`` instead,
            which Python, pydantic and numpy read back.
        layout: ``indent`` and ``separators`` of :func:`json.dumps`.

    Example:
        >>> strict_json({"loss": float("nan")}), strict_json([float("-inf")], keeps_non_finite=True)
        ('{"loss": null}', '[-1e999]')
    """
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:  # rare: only then is the text searched
        written = _KEPT if keeps_non_finite else {}
        return _NON_FINITE.sub(
            lambda found: found[0] if found[0][0] == '"' else written.get(found[0], "null"), json.dumps(value, **layout)
        )


MAX_DEPTH = 50
"""How deep JSON of a policy or a peer may be nested."""
_MAX_BITS = 1023  # of a whole number; one more and `float` of it is an OverflowError in the tool that takes it
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(text: str | bytes) -> Any:
    """Decode JSON of any origin.

    Raises:
        ValueError: it is no JSON, or nested deeper than Python's stack, for which ``json`` raises ``RecursionError``.

    Example:
        >>> read_json("[" * 100_000)
        Traceback (most recent call last):
        ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def require_writable(value: object, depth: int = 0) -> None:
    """Refuse a decoded value that tools cannot take or records cannot hold.

    Raises:
        ValueError: nested deeper than :data:`MAX_DEPTH`, a number that is not finite or larger than a double, or text
            with half of a surrogate pair.

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
    """Return why a text or number cannot be written, nothing if it can."""
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


def encodable(text: str) -> str:
    """Return a text with a question mark for each half surrogate, which neither tokenizers nor files take.

    Example:
        >>> encodable("na" + chr(0xD800))
        'na?'
    """
    return text.encode(errors="replace").decode()
