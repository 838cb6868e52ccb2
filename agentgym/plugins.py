"""Components by name. The same registry, decorator and lookup serve agentgym's own components and those of users.

A component is a function with a name: an estimator, a shaper, a loss, an engine. Each family has a :class:`Registry`
and a decorator (:mod:`agentgym.credit.component`, :mod:`agentgym.trainers.losses.component`). A configuration names a
registered component, ``module:name`` or ``path/to/file.py:name``. Packages add components through the entry-point group
``agentgym.components``: each entry names a module that registers them when it is imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar, get_type_hints

from agentgym import entry_points, user_modules
from agentgym.canonical import digest
from agentgym.errors import ConfigError, UnknownNameError, UsageError, blamed, check_type, unknown_name
from agentgym.settings import Settings, adapter, check_ranges, checked

Status = Literal["verified", "reproduced", "experimental", "user"]
"""``verified``: equal to the authors' released code on random inputs (``benchmarks/parity``). ``reproduced``: equal to
the paper's formulas; no code has been released. ``experimental``: reconstructed from an abstract or notes. ``user``:
not part of agentgym."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Settings):
    """Settings of one component. Subclasses add ``kind``, whose default is the component's name, and their own keys."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}
    off_at_0: ClassVar[str] = ""
    """Key whose value 0 turns the component off; empty if there is none."""

    def __post_init__(self) -> None:
        check_ranges(self, f"{kind(self) or type(self).__name__}: ")
        self.check_together()

    def check_together(self) -> None:
        """Reject combinations of values through :meth:`check`. Annotations check each value by itself."""

    def idle(self) -> str:
        """Return the reason why the component has no effect with these settings, or an empty text if it has one."""
        return f"{self.off_at_0} is 0" if self.off_at_0 and getattr(self, self.off_at_0) == 0 else ""

    def check(self, *, is_ok: bool, message: str) -> None:
        """Raise an error unless a condition holds.

        Raises:
            ConfigError: ``is_ok`` is False; the component's kind precedes the message.
        """
        if not is_ok:
            raise ConfigError(f"{kind(self) or type(self).__name__}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Options):
    """A component of a list that has no settings of its own, as in ``Named(kind="mine.py:halved")``."""

    kind: str = ""


_LINKED = ("envs", "sandboxes", "tools", "trainers")
"""Packages of agentgym that are folders beside it in the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A named function with its options, its source and its status."""

    name: str
    family: str
    function: Callable[..., object] | str
    """The function, or ``module:function`` to import it only when it is called, for functions that need torch."""
    options: type[Options] | None = None
    """Class of its settings; None if it has none."""
    paper: str = ""
    """Title of the paper or other text that first described the method."""
    parity: str = ""
    """Released code whose results it equals, as ``owner/name@commit:file``."""
    by_authors: bool = True
    """False if that code is another project's implementation of the paper."""
    status: Status = "user"
    limits: str = ""
    """Parts of its paper that it does not support, as in ``one game per run``."""
    test: str = ""
    """Test that compares it with a worked example, as ``file::test``."""
    check: Callable[..., Awaitable[None]] | str = ""
    """Coroutine function of its options that raises an error if the component cannot work, or its
    ``module:function``; empty for none. Scorers only: evaluations call it before the first episode."""

    @property
    def note(self) -> str:
        """Warning to show at the start of a run; empty unless the component is experimental."""
        if self.status != "experimental":
            return ""
        return f'{self.name} is experimental: reconstructed from what is public about "{self.paper}", not from its code'

    @property
    def call(self) -> Callable[..., Any]:
        """The function, imported if necessary."""
        return imported(self.function)

    async def check_ready(self, options: Options | None) -> None:
        """Call the component's own check, if it has one, and let its error through."""
        if self.check:
            await imported(self.check)(options)

    @property
    def module(self) -> str:
        """Name of the module that defines the function."""
        return self.function.partition(":")[0] if isinstance(self.function, str) else self.function.__module__

    @property
    def file(self) -> str:
        """File of the function: a path below the repository for agentgym's own components."""
        if self.module.startswith("agentgym."):
            parts = self.module.split(".")
            return "/".join(parts[1:] if parts[1] in _LINKED else parts) + ".py"
        return getattr(sys.modules.get(self.module), "__file__", None) or self.module

    @property
    def is_own(self) -> bool:
        """True for a user's component, whatever status it claims: its results are checked."""
        return self.status == "user" or not self.module.startswith("agentgym.")

    def reads(self, name: str) -> bool:
        """Return True if the function has a parameter of that name that its own options do not fill."""
        own = {field.name for field in fields(self.options)} if self.options else set()
        return name in parameters_of(self.function) and name not in own

    def arguments(self, values: Mapping[str, Any], options: Any) -> dict[str, Any]:
        """Return the function's keyword arguments, each from ``values`` or from the option of that name.

        Args:
            values: arguments that the caller offers, by name (``table``, ``step``, ...).
            options: the component's settings, None if it has none.
        """
        own = {field.name for field in fields(options)} if options is not None else set()
        return {
            name: options if name == "options" else getattr(options, name) if name in own else values[name]
            for name, parameter in inspect.signature(self.call).parameters.items()
            if name == "options" or name in own or name in values or parameter.default is parameter.empty
        }

    def invoke(self, values: Mapping[str, Any], options: Any) -> Any:
        """Call the function with :meth:`arguments`.

        Raises:
            ConfigError: a user's function raised an error of its own; the message names the component.
        """
        with blamed(f"{self.family} {self.name!r}") if self.is_own else nullcontext():
            return self.call(**self.arguments(values, options))


C = TypeVar("C", bound=Component)
F = TypeVar("F", bound=Callable[..., object])


class Registry(Mapping[str, C], Generic[C]):
    """The components of one family by name, in alphabetical order.

    A look-up imports modules as needed: ``module:name`` or ``file.py:name``, else agentgym's own components, and the
    entry points of installed packages for a name that is not among these. So packages may import all of agentgym.

    Args:
        family: name of the family in error messages, as in ``estimator``.
        builtin: module that registers agentgym's own components when it is imported, or a package of such modules.
        offered: names of the parameters that a function of this family may take in addition to its options.
        is_open: True if users may register components of this family.
    """

    _every: ClassVar[list[Registry[Any]]] = []
    """All registries, so that a name of another family is told from a name of none."""

    def __init__(self, family: str, builtin: str, offered: Collection[str], *, is_open: bool = True) -> None:
        self.family = family
        self._is_open = is_open
        Registry._every.append(self)
        self.offered = frozenset(offered)
        self._builtin = builtin
        self._components: dict[str, C] = {}
        self._refused: dict[str, str] = {}  # by name, with the reason
        self._is_loaded = False

    def add(self, component: C) -> None:
        """Register a component.

        A component of a user's file that cannot be called is refused when it is looked up, so that the others of its
        file can be used.

        Raises:
            ConfigError: another module has registered the name, or nothing fills a parameter of the function.
        """
        if not component.module.startswith("agentgym."):
            self._builtins()  # first, so that a user's name that is taken is the user's mistake
        before = self._components.get(component.name)
        if before is not None and before.module != component.module:
            raise ConfigError(
                f"{self.family} {component.name!r} is already registered by {before.module}; "
                f"choose another name for that of {component.module}"
            )
        if not isinstance(component.function, str) and (unfilled := self.unfilled(component)):
            offered = ", ".join(sorted(self.offered))
            may = f"may take options, its options' keys and {offered}" if offered else "takes no parameters"
            refusal = (
                f"{self.family} {component.name!r} takes {', '.join(unfilled)}, which nothing fills; such a function "
                f"{may}"
            )
            if not component.module.startswith(_OF_FILES):
                raise ConfigError(refusal)
            self._refused[component.name] = refusal
            return
        self._refused.pop(component.name, None)
        self._components[component.name] = component

    def registered(self, name: str) -> C | None:
        """Return the component of a name if it is registered so far; nothing is imported."""
        return self._components.get(name)

    def unfilled(self, component: C) -> list[str]:
        """Return the parameters of a component's function that neither the family, its options nor defaults fill."""
        return sorted(
            name
            for name, parameter in inspect.signature(component.call).parameters.items()
            if parameter.default is parameter.empty and component.reads(name) and name not in self.offered | {"options"}
        )

    def __getitem__(self, reference: str) -> C:
        """Return the component that a name, ``module:name`` or ``file.py:name`` refers to.

        Raises:
            UnknownNameError: there is no such component; the message names similar ones.
            ConfigError: the reference is no text.
            UsageError: there is no such module or file.
        """
        check_type(self.family, reference, str, "the name of one")
        source, _, name = reference.rpartition(":")
        if source:
            import_source(source)
        found = self._components.get(name) or self._builtins().get(name) or self._all().get(name)
        if found is None and name in self._refused:
            raise ConfigError(self._refused[name])
        if found is None and source:
            raise UnknownNameError(
                f"{source} registers no {self.family} {name!r}{self._elsewhere(name)}, {self._registered_by(source)}"
            )
        if found is None and (elsewhere := self._elsewhere(name)):
            raise UnknownNameError(f"unknown {self.family} {name!r}{elsewhere}")
        if found is None:
            own = f"{name}:NAME" if name.endswith(".py") else f"module:name or file.py:{name or 'name'}"
            raise unknown_name(self.family, name, self, entry_points.hint(f"name one of your own as {own}"))
        return found

    def _elsewhere(self, name: str) -> str:
        """Return the families that have a component of this name, as the end of a message; empty if there are none."""
        families = {one.family for one in self._every if one is not self and name in one._builtins()}
        # in the order of the alphabet, since that of the imports differs
        articles = [f"an {family}" if family[0] in "aeiou" else f"a {family}" for family in sorted(families)]
        return f": it is {' and '.join(articles)}" if articles else ""

    def _registered_by(self, source: str) -> str:
        if not self._is_open:
            return f"and a {self.family} cannot be one of your own: {', '.join(self)} are all there are"
        module = _name_of_file(found_file(Path(source)).resolve()) if source.endswith(".py") else source
        own = sorted(one.name for one in self._components.values() if one.module == module)
        if own:
            return f"only {', '.join(own)}"
        return (
            f"and no other: write @{self.family.replace(' ', '_')}(NAME) above it (docs/components.md shows the import)"
        )

    def __contains__(self, reference: object) -> bool:
        """Return True if a name, or the last part of a reference, is registered. Nothing is imported."""
        return isinstance(reference, str) and any(
            reference.rpartition(":")[2] in found() for found in (self._builtins, self._all)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())

    def _builtins(self) -> dict[str, C]:
        if not self._is_loaded:
            self._is_loaded = True  # set before the imports, which may look names up themselves
            package = importlib.import_module(self._builtin)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{self._builtin}."):
                importlib.import_module(module.name)
        return self._components

    def _all(self) -> dict[str, C]:
        self._builtins()  # first, so that their names are theirs
        entry_points.import_all(entry_points.COMPONENTS)
        return self._components


class ByKind:
    """Annotation of a field that holds a component's options: ``Annotated[Any, ByKind(SHAPERS)]``.

    The value's ``kind`` names the component. With ``is_late``, a mapping stays a mapping, and the configuration reads
    it later, when it knows the component (:func:`read_options`). With ``takes_names``, the name alone is enough.

    Pydantic, which reads configurations, then takes the class of the options from the registry. Plain dataclasses
    ignore the annotation.
    """

    def __init__(self, registry: Mapping[str, Component], *, is_late: bool = False, takes_names: bool = False) -> None:
        self._registry, self._is_late, self._takes_names = registry, is_late, takes_names

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> object:
        return {"type": "function-plain", "function": {"type": "no-info", "function": self._read}}

    def filled(self, value: object) -> object:
        """Return a component's settings with the defaults of those left out, so that later changes can set them.

        Wrong ones stay as they are, for the error of the configuration that holds them.
        """
        named = {"kind": value} if self._takes_names and isinstance(value, str) else value
        if self._is_late or not isinstance(named, Mapping):
            return value
        try:
            return dataclasses.asdict(self._read(named))
        except ValueError:
            return named

    def _read(self, value: object) -> Any:
        if self._takes_names and isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping | Options):
            shown = {"kind": value if isinstance(value, str) else "NAME"}
            raise ValueError(f"expected a component's settings, as in {json.dumps(shown)}")
        if self._is_late:
            return value
        reference = kind(value)
        if not isinstance(reference, str):
            raise ValueError("expected the component's name under the key 'kind'")
        options = self._registry[reference].options or Named
        if isinstance(value, Options):
            return value
        own = next(field.default for field in fields(options) if field.name == "kind")
        made: Any = adapter(options).validate_python({**value, "kind": own})
        # a reference names its file, so a saved configuration keeps it as the kind
        return made if reference == own else replace(made, kind=reference)


def read_options(
    registry: Mapping[str, Component], reference: str, value: Mapping[str, object], prefix: str
) -> Options:
    """Read the options of a named component from a mapping, in which ``kind`` may be missing.

    Raises:
        ConfigError: the component has no settings, the mapping is another component's, or an entry is wrong.
    """
    component = registry[reference]
    if component.options is None:
        raise ConfigError(f"{prefix}: {component.family} {component.name!r} has no settings of its own")
    of = str(value.get("kind", reference))
    if of.rpartition(":")[2] != component.name:
        raise ConfigError(f"{prefix} are those of {of!r}, and the {component.family} is {reference!r}")
    made = checked(component.options, {**value, "kind": component.name}, prefix)
    # a reference names its file, so a saved configuration keeps it as the kind
    return dataclasses.replace(made, **{"kind": reference})


def kind(value: Any) -> Any:
    """Return the ``kind`` of a component's options, given as a mapping or as an :class:`Options` instance."""
    return value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)


def options_of(function: Callable[..., object]) -> type[Options] | None:
    """Return the class that a function's parameter ``options`` is annotated with, None if it has no such parameter.

    Example:
        >>> def shaped(table, options: Options | None = None): ...
        >>> options_of(shaped).__name__
        'Options'
    """
    if "options" not in inspect.signature(function).parameters:
        return None
    try:
        hint = get_type_hints(function).get("options")
    except NameError:  # annotations that name types imported under TYPE_CHECKING only
        return None
    choices = [hint, *getattr(hint, "__args__", ())]
    return next((c for c in choices if isinstance(c, type) and issubclass(c, Options)), None)


def checked_options(family: str, name: str, function: Callable[..., object], named: object) -> type[Options] | None:
    """Return the options class of a component: ``named``, or the annotation of its function's parameter ``options``.

    Raises:
        ConfigError: the class is not derived from :class:`Options`, or its ``kind`` is not the component's name.
    """
    options = options_of(function) if named is None else named
    if options is None:
        return None
    if not (isinstance(options, type) and issubclass(options, Options) and dataclasses.is_dataclass(options)):
        raise ConfigError(f"{family} {name!r}: options must be a dataclass derived from agentgym.plugins.Options")
    own = next((field.default for field in fields(options) if field.name == "kind"), None)
    if own != name:
        raise ConfigError(f"{family} {name!r}: {options.__name__} must have the key kind: str = {name!r}, got {own!r}")
    return options


def parameters_of(function: Callable[..., Any] | str) -> Mapping[str, bool]:
    """Return the names of a function's parameters, each with True if it has no default.

    A function that is given as ``module:function`` is not imported: its file says what it takes.

    Example:
        >>> dict(parameters_of("agentgym.plugins:parameters_of"))
        {'function': True}
    """
    if isinstance(function, str) and (written := _written_parameters(function)) is not None:
        return written
    parameters = inspect.signature(imported(function)).parameters
    return {name: one.default is one.empty for name, one in parameters.items()}


@functools.cache
def _written_parameters(reference: str) -> Mapping[str, bool] | None:
    """Return the parameters of a function by its file; None if its module only imports it."""
    module, _, name = reference.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            positional = [*node.args.posonlyargs, *node.args.args]
            first_default = len(positional) - len(node.args.defaults)
            found = {one.arg: at < first_default for at, one in enumerate(positional)}
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return found | {one.arg: default is None for one, default in named}
    return None


def imported(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a function, imported if it is given as ``module:function``."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


# ------------------------------------------------------------------------------------------- modules and files of users

_OF_FILES = "agentgym_user_"
"""Beginning of the names of modules that users' files become."""
_loaded_files: dict[Path, tuple[int, int]] = {}
COPIES_VARIABLE: Final = "AGENTGYM_FILE_COPIES"
"""Environment variable with the copies of users' files, which stand for those that are not found from the working
directory: a JSON object of the paths of copies by the paths that configurations name."""


def use_copies(copies: Mapping[str, Path]) -> None:
    """Use copies of files wherever the files themselves are not found, here and in processes that this one starts.

    Args:
        copies: the copies, by the paths that configurations name.
    """
    if copies:
        all_copies = _copies() | {str(Path(name)): str(copy.absolute()) for name, copy in copies.items()}
        os.environ[COPIES_VARIABLE] = json.dumps(all_copies)


def _copies() -> dict[str, str]:
    found: dict[str, str] = json.loads(os.environ.get(COPIES_VARIABLE) or "{}")
    return found


def found_file(path: Path) -> Path:
    """Return the path of a user's file: that of its copy if there is no such file."""
    return path if path.is_file() else Path(_copies().get(str(path), path))


def import_source(source: str) -> None:
    """Import a module given by its dotted name, or run a file given by its path, which ends in ``.py``.

    Raises:
        UsageError: there is no such module or file.
    """
    if source.endswith(".py"):
        run_file(Path(source))
    else:
        import_module(source)


def import_module(source: str) -> None:
    """Import a module by its dotted name, also from the working directory, as ``python -m`` does.

    Raises:
        UsageError: there is no such module.
    """
    if "/" in source or Path(source).is_file():
        raise UsageError(f"{source} is not a Python file; write FILE.py:NAME, or MODULE:NAME")
    top = source.partition(".")[0]
    is_here = Path(top).is_dir() or Path(f"{top}.py").is_file()
    if is_here and top.isidentifier() and top not in sys.modules and importlib.util.find_spec(top) is None:
        sys.path.append(str(Path.cwd()))
    try:
        importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise
        path = f"{source.replace('.', '/')}.py"
        raise UsageError(f"no module {source!r}; to use a file, write its path: {path}:NAME") from error


def named_object(reference: str) -> Any:
    """Return the object that ``module:name`` or ``path/to/file.py:name`` refers to.

    Raises:
        UsageError: there is no such module or file, or it defines no such name.
    """
    source, _, name = reference.rpartition(":")
    import_source(source)
    module = sys.modules.get(_name_of_file(found_file(Path(source)).resolve()) if source.endswith(".py") else source)
    found = getattr(module or sys.modules["__main__"], name, None)
    if found is None:
        raise UsageError(f"{source} has no {name!r}")
    return found


def run_file(path: Path) -> bool:
    """Run a user's file as a module unless it has run unchanged before. Return True if it ran.

    The script that Python was started with is not run a second time, since its components are registered already.

    Raises:
        UsageError: there is no such file, or it imports relatively, as only a module of a package can.
    """
    path = found_file(path)
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}" + ("" if path.is_absolute() else f" in {Path.cwd()}"))
    path = path.resolve()
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None and Path(script).resolve() == path:
        return False
    stamp = (path.stat().st_mtime_ns, path.stat().st_size)
    if _loaded_files.get(path) == stamp:
        return False
    module_name = _name_of_file(path)
    spec = importlib.util.spec_from_file_location(
        module_name, path, loader=user_modules.SourceAlone(module_name, str(path))
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    user_modules.open_folder(path.parent)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise UsageError(f"{path} imports relatively, as only a part of a package can; {_as_module(path)}") from error
    _loaded_files[path] = stamp
    return True


def _as_module(path: Path) -> str:
    """Return the advice to name a file as a module of its package, or to import otherwise where there is none."""
    if not (path.parent / "__init__.py").is_file():
        return "write `import NAME` in place of `from . import NAME` for modules beside it"
    root = path.parent.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    return f"name it as {name}:NAME" + ("" if root == Path.cwd() else f" in the folder {root}")


def _name_of_file(path: Path) -> str:
    return f"{_OF_FILES}{path.stem}_{digest(str(path))[:8]}"
