"""Settings from users: parse ``key=value`` pairs, check numbers, and build configurations from nested dicts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from agentgym.canonical import read_json
from agentgym.errors import ConfigError, UsageError, unknown_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The range of numbers allowed in a field of settings; :func:`check_ranges` rejects others.

    Example:
        >>> str(Range(above=0, at_most=1)), 0 in Range(above=0, at_most=1)
        ('above 0 and at most 1', False)
    """

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def __contains__(self, number: float) -> bool:
        return self.at_least <= number <= self.at_most and self.above < number < self.below and math.isfinite(number)

    def __str__(self) -> str:
        if math.isfinite(self.at_least) and math.isfinite(self.at_most):
            return f"between {self.at_least:,.10g} and {self.at_most:,.10g}"
        bounds = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return " and ".join(f"{words} {bound:,.10g}" for words, bound in bounds.items() if math.isfinite(bound))


Positive: TypeAlias = Annotated[float, Range(above=0)]
NonNegative: TypeAlias = Annotated[float, Range(at_least=0)]
Fraction: TypeAlias = Annotated[float, Range(at_least=0, at_most=1)]
PositiveFraction: TypeAlias = Annotated[float, Range(above=0, at_most=1)]
Count: TypeAlias = Annotated[int, Range(at_least=1)]
Natural: TypeAlias = Annotated[int, Range(at_least=0)]


class _ByKeyword(type):
    """The metaclass of :class:`Settings`. It is not a decorator, so that users' own subclasses have it, too."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            parts = [part for part in fields(cls) if part.init]  # type: ignore[arg-type]
            if (wrong := _wrong_keys(cls.__name__, parts, args, kwargs)) is None:
                raise
            raise wrong from error


def _wrong_keys(
    name: str, parts: Sequence[Field[Any]], args: Sequence[object], kwargs: Mapping[str, object]
) -> ConfigError | None:
    known = [part.name for part in parts]
    if unknown := [key for key in kwargs if key not in known]:
        return unknown_name(f"key of {name}", unknown[0], known)
    if args and known and parts[0].kw_only:
        return ConfigError(f"{name} takes its keys by name, as in {name}({known[0]}=...)")
    required = [part.name for part in parts if part.default is MISSING and part.default_factory is MISSING]
    missing = [key for key in required[len(args) :] if key not in kwargs]
    return ConfigError(f"{name} needs {', '.join(missing)}") if missing else None


class Settings(metaclass=_ByKeyword):
    """The base of dataclasses of settings, which says in one line what is wrong with the keys that it is made with.

    Raises:
        UnknownNameError: a key does not exist; the message names a similar one.
        ConfigError: a key is missing, or a value is given without its key.
    """

    __slots__ = ()


def check_ranges(settings: object, prefix: str = "") -> None:
    """Raise an error if a value is outside the :class:`Range` of its field, none of its choices, or no list or mapping.

    Args:
        settings: a dataclass whose fields are annotated, as in ``votes: Count`` or ``norm: Literal["mean", "none"]``.
        prefix: text before the field's name in the message.

    Raises:
        ConfigError: a value is out of range, no number, no choice, or of another kind than its field, such as a dict
            for a configuration; the message names the first such field.
    """
    kind: Any = type(settings)
    _check_groups(settings, prefix)
    for name, (allowed, is_whole, takes_others) in _ranges(kind).items():
        value: Any = getattr(settings, name)
        is_number = isinstance(value, Real)  # numpy's numbers, too
        if is_number:
            check_number(f"{prefix}{name}", value, allowed)
            if is_whole and value != int(value):
                raise ConfigError(f"{prefix}{name} must be a whole number, got {value!r}")
        elif not takes_others:
            raise ConfigError(f"{prefix}{name} must be a number {allowed}, got {value!r}")
    for name, choices in _choices(kind).items():
        value = getattr(settings, name)
        # of a user's component the kind is a reference: file.py:NAME
        if value not in choices and name != "kind":
            raise ConfigError(f"{prefix}{name} must be one of {', '.join(map(str, choices))}; got {value!r}")
    for name, (container, words) in _containers(kind).items():
        value = getattr(settings, name)
        if isinstance(value, str) or not isinstance(value, container):
            raise ConfigError(f"{prefix}{name} must be {words}, got {value!r}")


def _check_groups(settings: object, prefix: str) -> None:
    kind: Any = type(settings)
    for name, (group, takes_none) in _groups(kind).items():
        value = getattr(settings, name)
        if not isinstance(value, group) and not (takes_none and value is None):
            raise ConfigError(f"{prefix}{name} is {value!r}, expected {group.__name__}(...)")


def check_number(name: str, value: float, allowed: Range) -> None:
    """Raise an error for a number outside a range.

    Raises:
        ConfigError: the number is out of range; the message gives name, range and number.
    """
    if value not in allowed:
        raise ConfigError(f"{name} must be {allowed if math.isfinite(value) else 'finite'}, got {value}")


def checked_turns(max_turns: object) -> int:
    """Return a limit of turns that a user gave.

    Raises:
        UsageError: it is not a whole number of at least 1.

    Example:
        >>> checked_turns(3)
        3
    """
    if type(max_turns) is bool or not isinstance(max_turns, Integral):
        raise UsageError(f"max_turns must be a whole number, got {max_turns!r}")
    if max_turns < 1:
        raise UsageError(f"max_turns must be at least 1, got {max_turns}")
    return int(max_turns)


@cache
def _members(kind: Callable[..., object]) -> dict[str, tuple[Any, ...]]:
    """Return the annotation of each field, split into its parts where it is a union."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # annotations that name types imported under TYPE_CHECKING only
        return {}
    is_union = {name: isinstance(hint, UnionType) or get_origin(hint) is Union for name, hint in hints.items()}
    return {name: get_args(hint) if is_union[name] else (hint,) for name, hint in hints.items()}


@cache
def _ranges(kind: Callable[..., object]) -> dict[str, tuple[Range, bool, bool]]:
    """Return the range of each field that has one, whether it takes whole numbers only, and whether it also takes
    something else, as in ``Count | None``.
    """
    return {
        name: (mark, part.__origin__ is int, len(parts) > 1)
        for name, parts in _members(kind).items()
        for part in parts
        for mark in getattr(part, "__metadata__", ())
        if isinstance(mark, Range)
    }


@cache
def _choices(kind: Callable[..., object]) -> dict[str, tuple[object, ...]]:
    """Return the values of each field that is a ``Literal``, or a ``Literal`` or None."""
    return {
        name: tuple(choice for part in parts for choice in (get_args(part) or (None,)))
        for name, parts in _members(kind).items()
        if all(get_origin(part) is Literal or part is type(None) for part in parts)
    }


@cache
def _containers(kind: Callable[..., object]) -> dict[str, tuple[type, str]]:
    """Return the class of each field that holds several values, and its name in a message."""
    kinds: dict[type, tuple[type, str]] = {tuple: (Sequence, "a list"), Mapping: (Mapping, "a mapping")}
    return {
        name: kinds[origin]
        for name, (part, *others) in _members(kind).items()
        if not others and (origin := get_origin(part)) in kinds
    }


@cache
def _groups(kind: Callable[..., object]) -> dict[str, tuple[type, bool]]:
    """Return the class of each field that holds settings of its own, and whether the field may be None."""
    return {
        name: (part, bool(others))
        for name, (part, *others) in _members(kind).items()
        if isinstance(part, _ByKeyword) and others in ([], [type(None)])
    }


def read_pair(text: str) -> tuple[str, object]:
    """Return the key and the value of ``key=value``. A value that is valid JSON is decoded; any other value stays text.

    Raises:
        ConfigError: the equals sign or the key is missing.

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


def read_pairs(texts: Iterable[str]) -> dict[str, object]:
    """Return the keys and values of several ``key=value``, as :func:`read_pair` reads them.

    Raises:
        ConfigError: the equals sign or the key is missing, or a key is given twice.
    """
    pairs: dict[str, object] = {}
    for key, value in map(read_pair, texts):
        if key in pairs:
            raise ConfigError(f"{key} is given twice: {json.dumps(pairs[key])} and {json.dumps(value)}")
        pairs[key] = value
    return pairs


def checked(
    kind: Callable[..., T], values: Mapping[str, object], prefix: str = "", *, ignores_unknown: bool = False
) -> T:
    """Build a configuration from plain nested dicts.

    Args:
        kind: the dataclass to build.
        values: its fields; nested dataclasses as nested mappings.
        prefix: name of the configuration in messages, placed before its keys.
        ignores_unknown: leave out keys that do not exist, as those in files of other versions.

    Raises:
        UnknownNameError: a key does not exist; the message suggests similar keys.
        ConfigError: a key or value is wrong; the message names the first one, what was expected and what was given.
    """
    from pydantic import ValidationError

    if not ignores_unknown:
        _refuse_unknown(kind, values, prefix)
    try:
        made: T = adapter(kind).validate_python(values)
    except ValidationError as error:
        first, *others = error.errors()
        message, loc = first["msg"].removeprefix("Value error, "), first["loc"]
        is_scalar = not isinstance(first["input"], Mapping)  # the input of a missing key is the mapping around it
        if loc and is_scalar and _at(values, loc[:-1]) is first["input"]:  # the last part names a member of a union
            loc = loc[:-1]
            either = [one["msg"] for one in others if one["loc"][:-1] == loc and one["input"] is first["input"]]
            message = ", or ".join([message, *(words.removeprefix("Input ") for words in either)])
        where = ".".join([*([prefix] if prefix else []), *map(str, loc)])
        if first["type"] in ("tuple_type", "list_type") and loc:
            is_name = isinstance(first["input"], str) and _holds_components(kind, loc)
            member = {"kind": first["input"]} if is_name else first["input"]
            message = f"expected a list, as in '{where}={json.dumps([member], default=str)}'"
        if isinstance(first["input"], str) and first["input"][:1] in ("[", "{"):
            message = 'lists and objects are written as JSON, as in \'[{"kind": "NAME"}]\''
        if not loc:
            raise ConfigError(message) from None
        given = "" if isinstance(first["input"], dict) else f", got {first['input']!r}"
        raise ConfigError(f"{where}: {message}{given}") from None
    return made


@cache
def adapter(kind: Any) -> Any:
    """Return pydantic's reader of a class, which takes milliseconds to make."""
    from pydantic import TypeAdapter  # imported here because it takes 60 ms that `import agentgym` need not pay

    return TypeAdapter(kind)


def field_types(kind: Any, *, with_annotations: bool = False) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields by their names.

    Example:
        >>> field_types(Range)["below"]
        <class 'float'>
    """
    return _field_types(kind, with_annotations)


def _holds_components(kind: Any, loc: Sequence[str | int]) -> bool:
    """Return True if the field at a path is a list of components, whose annotation says how each is read."""
    for name in loc:
        if not is_dataclass(kind):
            return False
        kind = field_types(kind, with_annotations=True)[str(name)]
    marks = (mark for member in get_args(kind) for mark in getattr(member, "__metadata__", ()))
    return any(hasattr(mark, "__get_pydantic_core_schema__") for mark in marks)


def _refuse_unknown(kind: Any, values: object, where: str) -> None:
    if get_origin(kind) in (Union, UnionType):
        groups = [one for one in get_args(kind) if is_dataclass(one)]
        kind = groups[0] if len(groups) == 1 else None  # of several, the value says which
    if get_origin(kind) in (tuple, list) and isinstance(values, list | tuple):
        for index, value in enumerate(values):
            _refuse_unknown(get_args(kind)[0], value, f"{where}.{index}")
    if get_origin(kind) is Mapping and isinstance(values, Mapping):
        for name, value in values.items():
            _refuse_unknown(get_args(kind)[1], value, f"{where}.{name}")
    if not is_dataclass(kind) or not isinstance(values, Mapping):
        return
    try:
        hints = field_types(kind)
    except NameError:  # annotations that name types imported under TYPE_CHECKING only
        return
    known = [part.name for part in fields(kind)]
    paths = {name: ".".join(filter(None, [where, str(name)])) for name in (*known, *values)}
    for name, value in values.items():
        if name not in known:
            raise unknown_name("key", paths[name], [paths[one] for one in known])
        _refuse_unknown(hints[name], value, paths[name])


def _at(values: object, loc: Sequence[str | int]) -> object:
    """Return the value at a path of nested dicts; None if there is none."""
    for name in loc:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


@cache  # resolving the annotations of all groups takes half of the time of building a configuration
def _field_types(kind: Any, with_annotations: bool) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=with_annotations)
