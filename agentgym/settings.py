"""Settings as users give them: ``key=value`` pairs, and configurations that are checked as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from agentgym.canonical import read_json
from agentgym.errors import ConfigError

T = TypeVar("T")


def read_pair(text: str) -> tuple[str, object]:
    """Return the key and the value of ``key=value``; a value is read as JSON if it parses, else taken as text.

    Raises:
        ConfigError: there is no equals sign, or no key before it.

    Example:
        >>> read_pair("num_objects=3"), read_pair("name=kitchen")
        (('num_objects', 3), ('name', 'kitchen'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"expected key=value, got {text!r}")
    try:
        return key, read_json(value)
    except ValueError:
        return key, value


def checked(kind: Callable[..., T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Build a configuration from plain nested dicts.

    Args:
        kind: a dataclass, the class itself.
        prefix: what the configuration is called in messages, before its keys.

    Raises:
        ConfigError: naming the first wrong key, what was expected and what was given.
    """
    from pydantic import ValidationError

    try:
        made: T = _adapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if isinstance(first["input"], str) and first["input"][:1] in ("[", "{"):
            message = 'lists and objects are written as JSON, as in \'[{"kind": "NAME"}]\''
        if not first["loc"]:
            raise ConfigError(message) from None
        where = ".".join([*([prefix] if prefix else []), *map(str, first["loc"])])
        given = "" if isinstance(first["input"], dict) else f", got {first['input']!r}"
        raise ConfigError(f"{where}: {message}{given}") from None
    return made


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # 60 ms that `import agentgym` need not pay

    return TypeAdapter(kind)
