"""Our environments as TRL's ``environment_factory``: TRL generates, parses the calls and runs the tools.

TRL takes a class: every public method is a tool, ``reset(**row)`` returns the first observation, and reward functions
receive the instances. This direction has three limits:

* TRL cannot leave a rollout out of its loss. :func:`episode_return` returns None for a failed episode, which TRL keeps
  out of the group's mean and deviation and trains with advantage 0. Its tokens stay in the denominator of the loss, and
  a KL penalty or an entropy bonus still acts on them.
* TRL cannot repeat a rollout, so only a reset is retried.
* TRL gives one advantage to a whole episode.

:class:`~agentgym.trainers.trl.trainer.CreditGRPOTrainer` has none of these limits.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, Union

from agentgym.env.env import Env
from agentgym.env.tasks import require_tasks
from agentgym.errors import ConfigError, RunStoppedError, UsageError, require_extra
from agentgym.json_schema.reading import inlined, properties, required, resolved
from agentgym.registry import check_arguments, find, is_remote, make
from agentgym.rollout.request import EpisodeLimits
from agentgym.settings import Range, check_number
from agentgym.trainers.trl.episode import EpisodeSettings, EventLoopThread, TrlPlayer
from agentgym.types import Json, JsonSchema, Task, ToolSpec

if TYPE_CHECKING:
    from datasets import Dataset


TASK_COLUMNS = ("task_id", "task_split", "task_index", "task_seed")


class TrlEnvironment:
    """An environment in the form that TRL takes; :func:`environment_factory` adds the tools as methods.

    ``reset`` is the only other public method, because TRL treats public methods as tools.
    """

    _settings: EpisodeSettings
    _loop: EventLoopThread

    def __init__(self) -> None:
        self._episode = TrlPlayer(self._settings, self._loop)
        weakref.finalize(self, self._episode.close)  # TRL never closes an environment

    def reset(self, task_id: str = "", task_split: str = "", task_index: int | None = None, **columns: object) -> str:
        """Begin the episode of a dataset's row; other columns are ignored."""
        if task_index is None:
            raise UsageError(
                f"the rows of the dataset have no columns {', '.join(TASK_COLUMNS)}, by which all rollouts of a group "
                "start from one state; make the dataset with task_dataset()"
            )
        return self._episode.begin(task_split, task_index, task_id)


def environment_factory(
    env_id: str | Callable[[], Env],
    *,
    limits: EpisodeLimits = EpisodeLimits(),  # noqa: B008  (frozen)
    max_retries: int = 2,
    max_failure_rate: float = 0.5,
    **kwargs: object,
) -> type[TrlEnvironment]:
    """Return an environment class for ``GRPOTrainer(environment_factory=...)``, with its tools as methods.

    One tool call is one turn of the environment, even if the policy writes several calls at once. Observations are text
    that is appended to the last user message of the row's prompt.

    Args:
        env_id: a registered id, ``module:Id``, ``file.py:Id``, or a function that makes the environment.
        limits: time limits of a reset and of a call, after which the environment counts as hung.
        max_retries: number of retries of a reset, each on a new environment.
        max_failure_rate: share of failed episodes in a batch above which :func:`episode_return` stops the run.
        kwargs: arguments of the environment.

    Raises:
        UsageError: the environment has no tools, so that TRL has nothing to call.
        ConfigError: a tool has a name that TRL cannot expose.

    Example:
        >>> factory = environment_factory("agentgym/Household-v0")
        >>> household = factory()
        >>> household.reset(task_id="train-0", task_split="train", task_index=0)[:28]
        'You are in the middle of a r'
        >>> household.look()[:28]
        'You are in the middle of a r'
    """
    make_env = env_maker(env_id, kwargs)
    probe = make_env()
    tools, name = probe.tools, type(probe).__name__
    probe.close()
    if not tools:
        raise UsageError(f"{name} has no tools: TRL's environment_factory drives an environment by its tools alone")
    methods = {spec.name: tool_method(spec, _call) for spec in tools}
    settings = EpisodeSettings(
        make_env=make_env, limits=limits, max_retries=max_retries, max_failure_rate=max_failure_rate
    )
    return type(name, (TrlEnvironment,), {**methods, "_settings": settings, "_loop": EventLoopThread(name)})


def episode_return(
    prompts: Sequence[object],
    completions: Sequence[object],
    environments: Sequence[object],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: object,
) -> list[float | None]:
    """Return each episode's return: the reward function for :func:`environment_factory`.

    It is None for episodes whose infrastructure failed, and for other environments in a mixed run. The share of failed
    episodes, and the success of the others, are logged.

    Raises:
        RunStoppedError: the share of failed episodes in the batch is above ``max_failure_rate``.
    """
    ours = [environment for environment in environments if isinstance(environment, TrlEnvironment)]
    lost = [environment._episode for environment in ours if environment._episode.is_lost]
    _stop_if_failing(ours, lost)
    if log_metric is not None and ours:
        log_metric("rollouts/lost_share", len(lost) / len(ours))
        valid = [environment._episode for environment in ours if not environment._episode.is_lost]
        log_metric("rollouts/success", fmean([episode.success for episode in valid] or [0.0]))
    return [
        environment._episode.reward if isinstance(environment, TrlEnvironment) else None for environment in environments
    ]


def task_dataset(
    env_id: str | Callable[[], Env], split: str = "train", num_tasks: int = 1000, **kwargs: Any
) -> Dataset:
    """Return the first tasks of a split as a dataset for TRL, at most ``num_tasks``.

    Columns: ``task_id``, ``task_split``, ``task_index``, ``task_seed``, and ``prompt``, a user message without text to
    which TRL appends the first observation.

    Raises:
        MissingExtraError: the library ``datasets`` is not installed.
        UsageError: there is no such environment or split, or ``num_tasks`` is below 1.
    """
    check_number("num_tasks", num_tasks, Range(at_least=1))
    require_extra("task_dataset", "trl", "datasets")
    from datasets import Dataset

    env = env_maker(env_id, kwargs)()
    tasks = require_tasks(env.tasks, split, env.env_id)
    rows = [_row(tasks[index], split, index) for index in range(min(num_tasks, len(tasks)))]
    env.close()
    return Dataset.from_list(rows)


def _row(task: Task, split: str, index: int) -> dict[str, Json]:
    return {
        "prompt": [{"role": "user", "content": ""}],
        "task_id": task.id,
        "task_split": split,
        "task_index": index,
        "task_seed": task.seed,
    }


def env_maker(env_id: str | Callable[[], Env], kwargs: Mapping[str, object]) -> Callable[[], Env]:
    """Return a factory of the environment with an id and arguments; a function is returned unchanged.

    Raises:
        UsageError: there is no such environment, or it takes no such arguments.
    """
    if not isinstance(env_id, str):
        if kwargs:
            raise UsageError(f"{', '.join(kwargs)}: a function that makes the environment takes no arguments of it")
        return env_id
    if not is_remote(kwargs):  # only a server knows its environments
        check_arguments(find(env_id), kwargs)
    return lambda: make(env_id, **kwargs)


def _call(environment: TrlEnvironment, name: str, arguments: dict[str, object]) -> str:
    return environment._episode.call(name, arguments)


def _stop_if_failing(ours: Sequence[TrlEnvironment], lost: Sequence[TrlPlayer]) -> None:
    limit = max((environment._settings.max_failure_rate for environment in ours), default=1.0)
    if len(lost) > limit * len(ours):
        raise RunStoppedError(
            f"{len(lost)} of {len(ours)} episodes failed because of the infrastructure (limit {limit:.0%}); "
            f"the last: {lost[-1].error}"
        )


# ----------------------------- tool specifications as Python methods: the form from which TRL makes a tool schema again
# TRL takes tools as functions; transformers reads their type hints and Google-style docstring
# (``transformers.utils.get_json_schema``). What hints cannot say (bounds, patterns, the properties of an object) goes
# into the parameter's description as JSON, so that the model still reads it.

RESERVED = frozenset({"reset", "get_reward"})
"""Methods that TRL itself calls and does not treat as tools."""

MAX_DEPTH = 4
"""Most levels of lists and alternatives in a hint, because a recursive schema would have no end."""

_SCALARS: Mapping[str, object] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_SAID_BY_HINT = frozenset({"type", "description", "title", "enum", "const", "anyOf", "items", "$ref"})
_CALL = Callable[[Any, str, dict[str, object]], str]


def tool_method(spec: ToolSpec, call: _CALL) -> Callable[..., str]:
    """Build a method that TRL exposes as the tool ``spec``; it calls ``call(self, name, arguments)``.

    Raises:
        ConfigError: the tool or a parameter has a name that cannot be a method's or a parameter's.

    Example:
        >>> spec = ToolSpec("take", "Take an object.", {"required": ["what"], "properties": {
        ...     "what": {"type": "string", "description": "Its name."}, "num": {"type": "integer", "minimum": 1}}})
        >>> method = tool_method(spec, lambda self, name, arguments: f"{name} {arguments}")
        >>> method.__name__, str(inspect.signature(method))
        ('take', '(self, *, what: str, num: int = None) -> str')
        >>> method(None, what="mug")
        "take {'what': 'mug'}"
        >>> print(inspect.getdoc(method))
        Take an object.
        <BLANKLINE>
        Args:
            what: Its name.
            num: num (JSON schema: {"type": "integer", "minimum": 1})
    """
    _check_name(spec.name, f"tool {spec.name!r}")
    root = spec.parameters
    fields = properties(root, root)
    hints = {name: _hint(schema, root) for name, schema in fields.items()}

    def method(self: object, /, **arguments: object) -> str:
        return call(self, spec.name, arguments)

    method.__name__ = method.__qualname__ = spec.name
    method.__doc__ = _docstring(spec, fields)
    method.__annotations__ = hints
    method.__signature__ = _signature(spec, hints)  # type: ignore[attr-defined]
    return method


def _check_name(name: str, what: str) -> None:
    if name in RESERVED:
        raise ConfigError(f"{what}: TRL calls {name} itself, so that it would be no tool; rename it")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(f"{what}: TRL's tools are Python methods, and {name!r} cannot be the name of a public one")


def _signature(spec: ToolSpec, hints: Mapping[str, object]) -> inspect.Signature:
    needed = required(spec.parameters, spec.parameters)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for name, hint in hints.items():
        if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
            raise ConfigError(f"tool {spec.name!r}: TRL's tools are Python methods, and {name!r} cannot be a parameter")
        default = inspect.Parameter.empty if name in needed else None
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        )  # by keyword alone, so that one with a default may come before one without
    parameters[0] = parameters[0].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature(parameters, return_annotation=str)


def _hint(schema: object, root: JsonSchema, depth: int = 0) -> object:
    """Return the type hint that transformers converts back to ``schema``, or the nearest one."""
    schema = resolved(schema, root)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values and all(isinstance(value, str | int | float | None) for value in values):
        return Literal.__getitem__(tuple(values))
    kind = schema.get("type")
    if depth > MAX_DEPTH:  # a schema that contains itself
        return Any
    choices: list[JsonSchema] = list(schema.get("anyOf") or schema.get("oneOf") or ())
    if isinstance(kind, list | tuple):
        choices = [{"type": one} for one in kind]
    if choices:
        return Union.__getitem__(tuple(_hint(choice, root, depth + 1) for choice in choices))
    if kind == "array":
        return list[_hint(schema["items"], root, depth + 1)] if schema.get("items") else list  # type: ignore[misc]
    if kind == "object":
        return dict
    return _SCALARS.get(str(kind), Any)


def _docstring(spec: ToolSpec, fields: Mapping[str, JsonSchema]) -> str:
    lines = [_one_line(spec.description) or spec.name]
    if fields:
        described = {name: _describe(name, schema, spec.parameters) for name, schema in fields.items()}
        lines += ["", "Args:", *(f"    {name}: {text}" for name, text in described.items())]
    return "\n".join(lines)


def _describe(name: str, schema: JsonSchema, root: JsonSchema) -> str:
    text = _one_line(str(schema.get("description", ""))) or name
    if _is_said_by_hint(schema, root, 0):
        return text
    shown = inlined({key: value for key, value in schema.items() if key not in ("title", "description")}, root)
    return f"{text} (JSON schema: {json.dumps(shown)})"


def _is_said_by_hint(schema: object, root: JsonSchema, depth: int) -> bool:
    schema = resolved(schema, root)
    unsaid = {key for key, value in schema.items() if key not in _SAID_BY_HINT and (key, value) != ("default", None)}
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if schema.get("items") else [])]
    return not unsaid and depth <= MAX_DEPTH and all(_is_said_by_hint(part, root, depth + 1) for part in inner)


def _one_line(text: str) -> str:
    """Return text on one line, without characters that end a docstring's section or look like a list of choices."""
    flat = re.sub(r"\b(Args|Returns|Raises):", r"\1 -", " ".join(text.split()))
    return re.sub(r"\((choices:.*)\)$", r"[\1]", flat, flags=re.IGNORECASE)
