"""The pydantic model of a function's parameters: the schema that a model sees, and the check of its arguments.

Each parameter means what Python or pydantic means by it: type, bounds and default, by ``Annotated`` or by ``Field``. A
type without a JSON schema raises :class:`~agentgym.errors.ToolDefinitionError` with the tool's name and place.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from agentgym.errors import ToolDefinitionError, gist

if TYPE_CHECKING:
    from pydantic import BaseModel

_PLAIN: Final = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, type(None), Enum)
"""Types of defaults that are values for sure. Others could be parameter objects of a framework."""
_UNBOUND: Final = ("self", "cls")


class ArgumentModel:
    """The parameters of a function, without ``self`` or ``cls``.

    Args:
        function: a function, or the ``staticmethod`` or ``classmethod`` of one.
        texts: descriptions of parameters from the docstring. Those given by ``Field`` or ``Annotated`` win.
    """

    def __init__(self, function: Any, texts: Mapping[str, str]) -> None:
        self._function, self._texts = function, texts
        self._hints: Mapping[str, Any] | None = None

    def read_hints(self, names: Mapping[str, object]) -> None:
        """Evaluate the annotations and refuse parameters that have no schema.

        Nothing happens if an annotation names what is not defined yet; the first use then evaluates it.

        Args:
            names: local names at the place of the definition.

        Raises:
            ToolDefinitionError: a parameter cannot have a schema.
        """
        for known in ({}, names):  # first without, since a class may have a method `list`
            with suppress(NameError):
                self._hints = self._evaluated(known)
                self.__dict__["schema"] = self._made_schema()
                return

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments.

        Raises:
            ToolDefinitionError: a parameter cannot have a schema.
        """
        try:
            if self._hints is None:
                self._hints = self._evaluated({})
            return self._made_schema()
        except NameError as error:
            raise self._refusal(f"an annotation names what is not defined ({gist(error)})") from error

    def _made_schema(self) -> dict[str, Any]:
        """Return the schema.

        Raises:
            NameError: a model among the types names what is not defined yet.
            ToolDefinitionError: a parameter cannot have a schema.
        """
        from pydantic.errors import PydanticUserError
        from pydantic_core import SchemaError

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of defaults without JSON; the parameter is optional all the same
                schema = self._model.model_json_schema()
        except (PydanticUserError, SchemaError, TypeError, ValueError) as error:
            raise self._refusal(gist(error)) from error
        schema.pop("title", None)
        for prop in schema.get("properties", {}).values():
            prop.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def checked(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Return arguments by the names of the parameters, converted and completed with defaults.

        Raises:
            pydantic.ValidationError: an argument does not fit.
        """
        model = self._model.model_validate(dict(arguments))
        return {name: getattr(model, field) for name, field in self._fields.items()}

    @cached_property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """Parameters that a model gives."""
        found = list(inspect.signature(plain_function(self._function)).parameters.values())
        is_bound = not isinstance(self._function, staticmethod) and found and found[0].name in _UNBOUND
        return tuple(found[1:] if is_bound else found)

    @cached_property
    def _fields(self) -> dict[str, str]:
        """Names of the model's fields by parameter. Names that pydantic keeps for itself are replaced."""
        from pydantic import BaseModel

        def is_reserved(name: str) -> bool:
            return name.startswith(("_", "model_")) or hasattr(BaseModel, name)

        return {
            one.name: f"argument_{number}" if is_reserved(one.name) else one.name
            for number, one in enumerate(self.parameters)
        }

    @cached_property
    def _model(self) -> type[BaseModel]:
        # imported here because it takes 60 ms that `import agentgym` need not pay
        from pydantic_core import SchemaError

        try:
            return self._made("rust-regex")
        except SchemaError:  # patterns that look ahead or back; Python's engine takes no linear time
            return self._made("python-re")

    def _made(self, engine: Literal["rust-regex", "python-re"]) -> type[BaseModel]:
        from pydantic import ConfigDict, create_model

        fields: dict[str, Any] = {self._fields[one.name]: self._field(one, self._hint(one)) for one in self.parameters}
        config = ConfigDict(
            extra="forbid", coerce_numbers_to_str=True, arbitrary_types_allowed=False, regex_engine=engine
        )
        model: type[BaseModel] = create_model(plain_function(self._function).__name__, __config__=config, **fields)
        if not model.__pydantic_complete__:
            model.model_rebuild()
        if lost := fields.keys() - model.model_fields.keys():
            name = next(name for name, field in self._fields.items() if field in lost)
            raise TypeError(f"the annotation of the parameter {name!r} is for attributes of classes")
        return model

    def _field(self, parameter: inspect.Parameter, hint: Any) -> tuple[Any, Any]:
        """Return the type and the default of a parameter's field, as pydantic takes them."""
        from pydantic import Field
        from pydantic.fields import FieldInfo

        default = parameter.default
        own = getattr(hint, "__metadata__", ())
        kind = hint.__origin__ if own else hint
        if default is None and not _takes_none(hint):  # Python's implicit Optional
            kind = typing.Optional[kind]  # noqa: UP045  (a hint may be a special form, without |)
        texts = (one if isinstance(one, str) else getattr(one, "documentation", None) for one in own)
        description = next((text for text in texts if text), self._texts.get(parameter.name))
        # first of all, so that the author's fields win
        annotated = Annotated[(kind, Field(alias=parameter.name, description=description), *own)]  # type: ignore[valid-type]
        if default is inspect.Parameter.empty:
            return annotated, ...
        if not isinstance(default, (*_PLAIN, FieldInfo)):
            self._check_default(parameter, hint)
        return annotated, default

    def _check_default(self, parameter: inspect.Parameter, hint: Any) -> None:
        """Refuse a parameter object of another framework in place of a default: pydantic checks no defaults."""
        from pydantic import TypeAdapter, ValidationError
        from pydantic_core import PydanticSerializationError, to_jsonable_python

        try:
            to_jsonable_python(TypeAdapter(hint).validate_python(parameter.default))
        except (ValidationError, PydanticSerializationError):
            raise TypeError(
                f"the default of {parameter.name!r} is a {type(parameter.default).__name__}, which is no value of the "
                "parameter's type; give a value, None, or pydantic's Field"
            ) from None

    def _evaluated(self, names: Mapping[str, object]) -> dict[str, Any]:
        """Return the types of the parameters. Annotations of ``self`` and of the result do not matter.

        Raises:
            NameError: an annotation names what is not defined.
            ToolDefinitionError: it cannot be evaluated for another reason.
        """
        holder = SimpleNamespace(__annotations__={one.name: one.annotation for one in self.parameters})
        known = getattr(inspect.unwrap(plain_function(self._function)), "__globals__", {})
        try:
            return typing.get_type_hints(holder, known, dict(names), include_extras=True)
        except NameError:
            raise
        except Exception as error:  # any code may stand in an annotation
            raise self._refusal(f"an annotation cannot be evaluated ({type(error).__name__}: {gist(error)})") from error

    def _hint(self, parameter: inspect.Parameter) -> Any:
        return (self._hints or {})[parameter.name]

    def _refusal(self, why: str) -> ToolDefinitionError:
        first_line = why.partition(". Set `arbitrary_types_allowed")[0]
        name = next((one.name for one in self.parameters if self._is_to_blame(one)), "")
        told = f"the type of the parameter {name!r} has no JSON schema ({first_line})" if name else first_line
        return ToolDefinitionError(f"{named(self._function)}: {told}")

    def _is_to_blame(self, parameter: inspect.Parameter) -> bool:
        """Return True if a parameter's type alone has no schema."""
        from pydantic import TypeAdapter

        if self._hints is None:
            return False
        try:
            TypeAdapter(self._hint(parameter)).json_schema()
        except Exception:  # pydantic's, or of a type's own schema
            return True
        return False


def _takes_none(hint: Any) -> bool:
    from pydantic import TypeAdapter, ValidationError

    if type(None) in typing.get_args(hint):
        return True
    try:
        TypeAdapter(hint).validate_python(None)
    except ValidationError:
        return False
    return True


def plain_function(function: Any) -> Callable[..., Any]:
    """Return the function of a ``staticmethod`` or ``classmethod``; any other object unchanged."""
    found: Callable[..., Any] = getattr(function, "__func__", function)
    return found


def named(function: Any) -> str:
    """Return a tool's name with its class and its place, for errors."""
    plain = plain_function(function)
    owner = plain.__qualname__.rpartition(".")[0].rpartition(".")[2]
    of = f" of {owner}" if owner.isidentifier() else ""
    code = getattr(inspect.unwrap(plain), "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"tool {plain.__name__!r}{of}{place}"
