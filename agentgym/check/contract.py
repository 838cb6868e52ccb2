"""Checks of the contract of :class:`~agentgym.env.env.Env`: order of calls and returned values."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import gymnasium.utils.env_checker
import numpy as np

from agentgym.canonical import strict_json
from agentgym.check.determinism import random_episodes
from agentgym.check.episodes import MAX_TURNS, CheckEpisode, brief, play
from agentgym.check.outages import retried
from agentgym.check.policies import oracle_action, random_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject, tasks_of
from agentgym.env.game_env import GameEnv
from agentgym.env.tasks import SPLITS
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ClosedError, ResetNeededError, RewardError, UsageError
from agentgym.json_schema.reading import TYPES, children, choices, listed, properties, resolved, target, types_of
from agentgym.tool import CONTROL_VERBS
from agentgym.types import JsonSchema, Observation, RewardPart, RewardRole, Task

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_TOLERANCE = 1e-9
_ORACLE_EPISODES = 2
_SAMPLED_TASKS = 500  # tasks per split


def gymnasium_api(subject: Subject) -> str:
    """Check that Gymnasium's own checker passes."""
    env = subject.factory()
    if env.max_turns == 1:
        env.max_turns = 2  # Gymnasium's checker reports an error if an episode ends after one step
    shown = contextlib.redirect_stdout(io.StringIO())  # the checker tries every render mode, ``human`` among them
    with warnings.catch_warnings(record=True) as caught, shown:
        warnings.simplefilter("always")
        try:
            checked = partial(gymnasium.utils.env_checker.check_env, env, skip_render_check=env.max_turns == 2)
            retried(checked)  # it resets and steps often, so that one outage should not be its result
        finally:
            env.close()
    said = sorted({re.sub(r"\x1b\[\d+m", "", str(warning.message)) for warning in caught})
    return f"passes with {len(said)} warnings: {'; '.join(said)}" if said else "passes without a warning"


def tool_schemas(subject: Subject) -> str:
    """Check that every tool has a unique name, a description and a valid JSON schema."""
    with contextlib.closing(subject.factory()) as env:
        specs = env.tools
        lacks_tools = isinstance(env, ToolEnv) and type(env).respond is ToolEnv.respond
        name = type(env).__name__
    if not specs and lacks_tools:
        raise CheckFailed(
            f"{name} is a ToolEnv without a tool: write @tool above the methods that the model calls. An environment "
            "that takes free text subclasses Env and implements respond(action)"
        )
    if not specs:
        return "not applicable: no tools, the environment takes free text"
    names = [spec.name for spec in specs]
    problems = [f"{name}: two tools have this name" for name in set(names) if names.count(name) > 1]
    for spec in specs:
        if not _TOOL_NAME.fullmatch(spec.name):
            problems.append(f"{spec.name!r}: a name is letters, digits, _ and -, at most 64, and starts with a letter")
        if not spec.description.strip():
            problems.append(f"{spec.name}: no description")
        problems += [f"{spec.name}: {problem}" for problem in schema_problems(spec.parameters)]
    if problems:
        raise CheckFailed("; ".join(problems))
    bare = [f"{spec.name}.{parameter}" for spec in specs for parameter in undescribed(spec.parameters)]
    return f"{len(specs)} tools" + (f"; parameters without a description: {', '.join(bare)}" if bare else "")


def control_verbs(subject: Subject) -> str:
    """Check that no tool lets an agent reset, snapshot or grade its environment."""
    with contextlib.closing(subject.factory()) as env:
        found = sorted(CONTROL_VERBS & {spec.name for spec in env.tools})
    if found:
        raise CheckFailed(f"control verbs offered as tools: {', '.join(found)}")
    return f"none of {', '.join(sorted(CONTROL_VERBS))} is a tool"


def episodes(subject: Subject) -> str:
    """Check that episodes of a random policy raise no exception; warn if they have no end."""
    played = list(random_episodes(subject))
    found = f"{sum(len(episode.steps) for episode in played)} turns of {subject.num_episodes} episodes"
    if never := _never_valid(played):
        return f"warning: {found}, in which no call of {', '.join(never)} had arguments that the tool takes"
    num_open = sum(not episode.is_over for episode in played)
    with contextlib.closing(subject.factory()) as env:
        if env.max_turns is not None or not num_open:
            return found
        is_game = isinstance(env, GameEnv)
    how_many = f"{num_open} had no end after {MAX_TURNS} turns" if num_open < len(played) else "of which none ended"
    told = f"{found}, {how_many}, and the environment has no limit: set max_turns in its class"
    if num_open < len(played) or _oracle_ends(subject):
        return f"warning: {told}"
    end = "return no actions() in its last positions" if is_game else "end it by finish() or is_over()"
    raise CheckFailed(f"{told}, or {end}")


def _oracle_ends(subject: Subject) -> bool:
    """Return True if the oracle ends an episode, so that the environment has an end."""
    try:
        return any(episode.is_over for episode in _oracle_episodes(subject))
    except Exception:  # the check of the oracle tells why
        return False


def _never_valid(played: Sequence[CheckEpisode]) -> list[str]:
    """Return the tools whose every random call was refused for its arguments, so that no check has run them."""
    said = [message.result for one in played for told in one.observations for message in told if message.result]
    refused = {result.name for result in said if result.error_type == "invalid_arguments"}
    return sorted(refused - {result.name for result in said if result.error_type != "invalid_arguments"})


def order_of_calls(subject: Subject) -> str:
    """Check that ``step`` and ``astep`` raise errors before ``reset`` and after the end."""
    with contextlib.closing(subject.factory()) as env:
        _must_raise(ResetNeededError, "step() before reset()", lambda: env.step("x"))
        _must_raise(ResetNeededError, "astep() before reset()", lambda: asyncio.run(env.astep("x")))
        for number, task in enumerate(subject.tasks()):
            for policy in (oracle_action, random_action):
                try:
                    episode = play(env, policy, task, subject.rng(5, number))
                except UsageError:
                    continue  # no oracle
                if episode.is_over:
                    _must_raise(ResetNeededError, "step() after the end", lambda: env.step("x"))
                    _must_raise(ResetNeededError, "astep() after the end", lambda: asyncio.run(env.astep("x")))
                    return "refused before reset() and after the end"
        return "refused before reset(); no episode of the sample ended, so the end was not tried"


def closing(subject: Subject) -> str:
    """Check that an episode may be left and ``close`` called twice, and that other calls raise errors afterwards."""
    unused, used = subject.factory(), subject.factory()
    task = subject.tasks(1)[0]
    for _ in range(2):  # the second reset finds what the first episode left
        used.reset(options={"task": task})
        asyncio.run(used.aend_episode())
    for env in (unused, used):
        env.close()
        env.close()
        asyncio.run(env.aclose())
        _must_raise(ClosedError, "reset() after close()", partial(env.reset, options={"task": task}))
        _must_raise(ClosedError, "step() after close()", partial(env.step, "x"))
    return "idempotent, also after end_episode(); reset() and step() are refused afterwards"


def observations(subject: Subject) -> str:
    """Check that observations are user and tool messages that a tokenizer can encode; only the last may be empty."""
    num_messages = 0
    for episode in random_episodes(subject):
        for turn, observation in enumerate(episode.observations):
            where = f"task {episode.task.id}, turn {turn}"
            if not observation and not (episode.is_over and turn == len(episode.steps)):
                raise CheckFailed(f"{where}: the observation is empty")
            _check_messages(where, observation)
            num_messages += len(observation)
    return f"{num_messages} messages in {subject.num_episodes} episodes"


def rewards(subject: Subject) -> str:
    """Check that parts sum to the reward of each turn and rewards to the return, and that all are finite.

    The oracle plays, too, since it earns rewards that random actions may never earn.
    """
    num_turns = 0
    for episode in (*random_episodes(subject), *_oracle_episodes(subject)):
        for turn, step in enumerate(episode.steps, 1):
            where = f"task {episode.task.id}, turn {turn}"
            parts = step.info.get("reward_parts")
            if not isinstance(parts, tuple) or not all(isinstance(part, RewardPart) for part in parts):
                raise CheckFailed(f"{where}: info['reward_parts'] is {brief(parts)}, expected a tuple of RewardPart")
            if not isinstance(step.info.get("is_valid"), bool):
                raise CheckFailed(f"{where}: info['is_valid'] is {step.info.get('is_valid')!r}, expected a bool")
            _check_sum(where, parts, step.reward)
            num_turns += 1
        if episode.is_over and not isinstance(episode.steps[-1].info.get("success"), bool):
            raise CheckFailed(f"task {episode.task.id}: the episode ended without info['success']")
        every_part = tuple(part for step in episode.steps for part in step.info["reward_parts"])
        _check_sum(f"task {episode.task.id}, return", every_part, sum(step.reward for step in episode.steps))
    return f"{num_turns} turns"


def _oracle_episodes(subject: Subject) -> Iterator[CheckEpisode]:
    """Yield a few episodes of the oracle; none if there is no oracle or it fails, which another check reports.

    Raises:
        RewardError: a reward is not finite.
    """
    with contextlib.closing(subject.factory()) as env:
        for number, task in enumerate(subject.tasks(_ORACLE_EPISODES)):
            try:
                env.reset(options={"task": task})
                env.oracle()
                yield play(env, oracle_action, task, subject.rng(7, number))
            except RewardError:
                raise
            except Exception:
                return


def splits(subject: Subject) -> str:
    """Check that no task is in two splits, and that every task names its split, has its own id and can be recorded."""
    env = subject.factory()
    owner: dict[str, str] = {}
    content: dict[tuple[str, str], str] = {}
    sizes = []
    try:
        for split in SPLITS:
            tasks = tasks_of(env, split)
            sizes.append(f"{split} {len(tasks)}")
            for task in _sample(tasks, subject.rng(6)):
                if task.split != split:
                    raise CheckFailed(f"task {task.id} is in split {split} but says it is of {task.split!r}")
                other = owner.setdefault(task.content_hash, split)
                if other != split:
                    raise CheckFailed(f"task {task.id} of split {split} is also in split {other}")
                if content.setdefault((split, task.id), task.content_hash) != task.content_hash:
                    raise CheckFailed(f"two tasks of split {split} have the id {task.id!r}")
                _check_recordable(task)
    finally:
        env.close()
    return f"disjoint in a sample of {len(owner)} tasks ({', '.join(sizes)})"


def _check_recordable(task: Task) -> None:
    try:
        strict_json(task.data)
    except (TypeError, ValueError) as error:
        raise CheckFailed(
            f"the data of task {task.id} cannot be recorded ({error}); use text, numbers, lists and dicts"
        ) from error


def _sample(tasks: Sequence[Task], rng: np.random.Generator) -> Iterator[Task]:
    if len(tasks) <= _SAMPLED_TASKS:
        yield from tasks
        return
    for number in rng.choice(len(tasks), size=_SAMPLED_TASKS, replace=False):
        yield tasks[int(number)]


def _must_raise(error_class: type[Exception], what: str, function: Callable[[], object]) -> None:
    try:
        function()
    except error_class:
        return
    except Exception as error:
        raise CheckFailed(f"{what} raised {type(error).__name__} ({error}), expected {error_class.__name__}") from error
    raise CheckFailed(f"{what} went through, expected {error_class.__name__}")


def _check_messages(where: str, observation: Observation) -> None:
    for message in observation:
        if message.role not in ("user", "tool"):
            raise CheckFailed(f"{where}: a message of role {message.role!r}, expected user or tool")
        if message.role == "tool" and message.result is None:
            raise CheckFailed(f"{where}: a tool message without a result")
        try:
            message.text.encode()
        except UnicodeEncodeError as error:
            raise CheckFailed(f"{where}: the text cannot be encoded ({error})") from error


def _check_sum(where: str, parts: tuple[RewardPart, ...], reward: float) -> None:
    for part in parts:
        if not isinstance(part.role, RewardRole):
            raise CheckFailed(f"{where}: part {part.name!r} has the role {part.role!r}, expected a RewardRole")
    total = sum(part.value for part in parts)
    is_finite = abs(total) < float("inf") and abs(reward) < float("inf")  # a comparison with nan is False, too
    if not is_finite:
        raise CheckFailed(f"{where}: the reward is {reward}, its parts sum to {total}; rewards are finite")
    if abs(total - reward) > _TOLERANCE * max(1.0, abs(reward)):
        raise CheckFailed(f"{where}: the reward is {reward}, its parts sum to {total}")


# ------------------------------------------------------- JSON schemas that chat templates and servers accept

_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "if", "then", "else", "not")


def schema_problems(parameters: object) -> Iterator[str]:
    """Yield the faults of the JSON schema of a tool's parameters.

    Example:
        >>> list(schema_problems({"type": "object", "properties": {"k": {"type": "int"}}, "required": ["n"]}))
        ["required names 'n', which is no property", "properties.k: unknown type 'int'"]
    """
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"not JSON: {error}"
        return
    if not isinstance(parameters, Mapping):
        yield f"a schema is an object, not {parameters!r}"
        return
    if parameters.get("type") != "object":
        yield f"the type of a tool's parameters is 'object', not {parameters.get('type')!r}"
    yield from _problems(parameters, "", parameters)


def free_texts(schema: JsonSchema) -> list[str]:
    """Return the names of parameters that take any text.

    Example:
        >>> free_texts({"properties": {"door": {"type": "string"}, "key": {"type": "string", "enum": ["a", "b"]}}})
        ['door']
    """
    return [
        name
        for name, part in properties(schema, schema).items()
        if "string" in types_of(part, schema) and not choices(part, schema) and "pattern" not in resolved(part, schema)
    ]


def undescribed(parameters: JsonSchema) -> list[str]:
    """Return the names of parameters without a description."""
    fields = properties(parameters, parameters)
    return [name for name, schema in fields.items() if not resolved(schema, parameters).get("description")]


def _problems(schema: object, path: str, root: JsonSchema) -> Iterator[str]:
    at = f"{path}: " if path else ""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield f"{at}a schema is an object, not {schema!r}"
        return
    types = schema.get("type", [])
    for name in types if isinstance(types, list | tuple) else [types]:
        if name not in TYPES:
            yield f"{at}unknown type {name!r}"
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield f"{at}enum is not a list of values"
    if "$ref" in schema and target(str(schema["$ref"]), root) is None:
        yield f"{at}$ref {schema['$ref']!r} leads nowhere"
    known = properties(schema, root)
    for name in listed(schema.get("required")):
        if name not in known and not path.rpartition(".")[0].endswith(_ALTERNATIVES):
            yield f"{at}required names {name!r}, which is no property"
    for where, child in children(schema):
        yield from _problems(child, f"{path}.{where}" if path else where, root)
