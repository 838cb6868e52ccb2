"""Arguments of environments: converted to the types of the constructor's annotations, and written as plain data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from numbers import Integral, Real
from typing import Any, cast, get_args, get_origin, get_type_hints

from agentgym.errors import UsageError

_SEQUENCES = {Sequence, Collection, Iterable}


class ArgumentTypeError(UsageError):
    """An argument that does not fit its annotation."""


def typed_arguments(where: str, creator: Callable[..., object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Return arguments converted to the types that a class or function annotates them with.

    A date may be text, an enumeration's member its value, and a data class a mapping, as on the command line. Arguments
    without an annotation, or with one that cannot be resolved, stay as they are.

    Args:
        where: name of the environment in messages.

    Raises:
        ArgumentTypeError: a value does not fit; the message names the argument, the value, and what is expected.

    Example:
        >>> from datetime import date
        >>> def world(today: date, level: int = 1): ...
        >>> typed_arguments("World-v0", world, {"today": "2026-05-01", "level": 2})
        {'today': datetime.date(2026, 5, 1), 'level': 2}
    """
    hints = _hints(creator)
    return {
        name: _typed(f"{where}: {name}", hints[name], value) if name in hints else value
        for name, value in kwargs.items()
    }


def plain_arguments(where: str, kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return arguments as JSON can hold them: a date as text, an enumeration's member as its value, a set in order.

    Raises:
        UsageError: a value is neither plain data nor of a type that can be written as such.
    """
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    found: dict[str, object] = {}
    for name, value in kwargs.items():
        try:
            found[name] = to_jsonable_python(_plain(value))
        except (PydanticSerializationError, ValueError, TypeError) as error:
            raise UsageError(
                f"{where}: {name}={value!r} cannot be kept with the results or sent to a server, since it is no plain "
                "data; make the environment in a function and give that"
            ) from error
    return found


def _plain(value: object) -> object:
    """Return a value without numpy's numbers and without sets, whose order changes from process to process."""
    if isinstance(value, Iterator):
        raise TypeError("an iterator can be read only once")
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if type(value) is dict:
        return {key: _plain(one) for key, one in value.items()}
    return _own_number(value)


def _own_number(value: object) -> object:
    """Return a number of Python for one of numpy."""
    is_numpys = type(value).__module__ == "numpy"
    if is_numpys and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if is_numpys and isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return value


def _typed(where: str, hint: Any, value: object) -> object:
    from pydantic import ValidationError

    value = _plain(value) if isinstance(value, (set, frozenset)) else _own_number(value)
    adapter = _adapter(hint)
    if adapter is None:
        return value
    members = set(get_args(hint) or (hint,))
    if isinstance(value, bool) and bool not in members and members & {int, float}:  # pydantic reads true as 1
        raise ArgumentTypeError(f"{where}={value!r}: expected a number")
    if isinstance(value, float) and int in members and not members & {float, complex}:  # and 8.0 as 8
        raise ArgumentTypeError(f"{where}={value!r}: expected a whole number")
    try:
        found = cast("object", adapter.validate_python(value))
    except ValidationError as error:
        told = dict.fromkeys(_message(one) for one in error.errors())
        if timedelta in members:
            told = {"expected a duration, such as '00:02:30', 'PT2M30S' or a number of seconds": None}
        raise ArgumentTypeError(f"{where}={value!r}: {', or '.join(told)}") from None
    # JSON, TOML and the command line have lists alone, and an environment should not see which way a value came
    is_any_sequence = any((get_origin(one) or one) in _SEQUENCES for one in (hint, *members))
    return tuple(found) if isinstance(found, list) and is_any_sequence else found


def _message(error: Any) -> str:
    """Return pydantic's message about a value, with the place in it."""
    told = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    places = [str(place) for place in error["loc"] if isinstance(place, int)]
    return f"expected {told}" + (f" at {'.'.join(places)}" if places else "")


@cache
def _adapter(hint: Any) -> Any:
    """Return pydantic's adapter of an annotation; None for one that pydantic cannot read."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError
    from pydantic_core import SchemaError

    settings = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)
    try:
        return TypeAdapter(hint, config=settings)
    except (PydanticSchemaGenerationError, SchemaError, AttributeError):  # a protocol, say
        return None
    except PydanticUserError:  # a class with a configuration of its own
        try:
            return TypeAdapter(hint)
        except (PydanticUserError, PydanticSchemaGenerationError):
            return None


def _hints(creator: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of the arguments of a class, base classes included, or of a function."""
    if not inspect.isclass(creator):
        return _own_hints(creator)
    found: dict[str, Any] = {}
    for owner in creator.__mro__:
        if "__init__" in vars(owner) and owner is not object:
            found = _own_hints(vars(owner)["__init__"]) | found
    return found


def _own_hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # an annotation may name what only a type checker imports
        return {}
    variable = {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD}
    return {name: hint for name, hint in hints.items() if name != "return" and name not in variable}
