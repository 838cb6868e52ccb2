"""Suites: named, versioned lists of tasks on which policies are compared.

A suite is a short TOML or JSON file from agentgym (``suite_files/``) or from a user::

    name = "household-valid"
    version = 1
    summary = "200 errands in generated rooms"
    licence = "Apache-2.0"
    source = "agentgym, generated from seeds"

    [[parts]]
    env = "agentgym/Household-v0"
    split = "valid"
    num_tasks = 200

The content of a suite (environments, arguments, tasks, seeds, limits) has a hash. Only results with the same hash can
be compared. A hash in the file is checked when the suite is opened.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agentgym.canonical import digest, read_json
from agentgym.env.arguments import plain_arguments
from agentgym.env.env import Env
from agentgym.errors import (
    AgentGymError,
    CorruptDataError,
    MachineError,
    MissingExtraError,
    UsageError,
    require_known,
    unknown_name,
)
from agentgym.evals.config import EvalConfig
from agentgym.evals.scoring import BY_ENV, Scoring
from agentgym.installation import install_command, with_commands
from agentgym.registry import command_in, find, is_remote, make
from agentgym.settings import checked
from agentgym.types import Task

FOLDER = Path(__file__).parent / "suite_files"
SUFFIXES = (".toml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPath:
    """A folder of data that is not part of the package. It does not affect the content hash."""

    variable: str
    """Environment variable that holds the folder."""
    below: str = ""
    """File or folder inside it."""
    is_needed: bool = True
    """False if the environment can find the data elsewhere."""

    def resolve(self, argument: str) -> str | None:
        """Return the path, or None if there is none and none is needed.

        Raises:
            UsageError: the path is needed and missing.
        """
        folder = os.environ.get(self.variable)
        path = Path(folder, self.below) if folder else None
        if path is not None and path.exists():
            return str(path)
        if not self.is_needed:
            return None
        found = f"is {folder}, and there is no {self.below or 'such folder'}" if folder else "is not set"
        raise UsageError(f"{argument}: {self.variable} {found}; set it to the folder with {self.below or 'the data'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePart:
    """Tasks of one environment."""

    env: str
    split: str = "test"
    num_tasks: int = 0
    """Number of tasks from the start of the split; 0 takes all."""
    ids: tuple[str, ...] = ()
    """Ids of the tasks to take instead."""
    name: str = ""
    """Name of the part; by default the environment's name."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    paths: Mapping[str, DataPath] = field(default_factory=dict)
    """Arguments of the environment that are paths on this machine."""
    scorers: tuple[Mapping[str, object], ...] = ()
    """Scorers that define success instead of the environment (:mod:`agentgym.evals.scoring`)."""
    success_at: float = 1.0
    """Smallest score of a success."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", plain_arguments(self.env, self.kwargs))  # TOML has dates
        _ = self.scoring  # raises an error for wrong settings

    @property
    def scoring(self) -> Scoring:
        """Scoring of the part's episodes."""
        if not self.scorers:
            return BY_ENV
        return Scoring.read({"scorers": list(self.scorers), "success_at": self.success_at})

    @property
    def label(self) -> str:
        """Name of the part."""
        return self.name or self.env.rpartition("/")[2].lower()

    def found_paths(self) -> dict[str, str]:
        """Return the arguments that are paths and that exist on this machine.

        Raises:
            UsageError: a needed path is missing; the message says which file belongs where.
        """
        found = {argument: place.resolve(argument) for argument, place in self.paths.items()}
        return {argument: path for argument, path in found.items() if path is not None}

    def make_env(self) -> Env:
        """Make the part's environment.

        Raises:
            UsageError: the environment cannot be made here; the message says what is missing.
        """
        return make(self.env, **self.kwargs, **self.found_paths())

    def tasks(self, env: Env) -> tuple[Task, ...]:
        """Return the part's tasks.

        Raises:
            UsageError: the environment lacks some of the tasks.
        """
        known = env.tasks(self.split)
        if self.ids:
            by_id = {task.id: task for task in known}
            if missing := [name for name in self.ids if name not in by_id]:
                raise UsageError(f"{self.env} has no task {missing[0]!r} in split {self.split!r}")
            return tuple(by_id[name] for name in self.ids)
        if not len(known) or len(known) < self.num_tasks:
            raise UsageError(
                f"{self.env} has {len(known)} tasks in split {self.split!r}, not {self.num_tasks or 'any'}"
            )
        return tuple(known[: self.num_tasks or len(known)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The content of a suite's file."""

    name: str
    version: int
    """Version, which increases with every change of the content."""
    parts: tuple[SuitePart, ...]
    summary: str = ""
    licence: str = ""
    """Licence of the tasks' texts and data."""
    source: str = ""
    """Origin of the tasks."""
    mend: str = ""
    """Command to run if the suite cannot run; ``{extra NAME}`` in it is the one that installs an extra of agentgym."""
    seed: int = 0
    """Seed of the policy's sampling."""
    num_samples: int = 1
    """Episodes per task, with different seeds of the policy's sampling."""
    reset_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    content_hash: str = ""
    """Required value of :attr:`OpenSuite.content_hash`; empty if the data may change."""

    def __post_init__(self) -> None:
        labels = [part.label for part in self.parts]
        if not labels or len(set(labels)) != len(labels) or self.num_samples < 1:
            raise UsageError(f"suite {self.name}: it needs parts with different names, and num_samples of at least 1")
        if not set(self.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_."):
            raise UsageError(f"suite {self.name!r}: a name has small letters, digits, '-', '_' and '.'")

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name}@{self.version}"

    def require_data(self) -> None:
        """Raise an error if data of the suite are missing on this machine.

        Raises:
            UsageError: data are missing; the message says which file belongs where.
        """
        for part in self.parts:
            try:
                part.found_paths()
            except UsageError as error:
                raise UsageError(
                    f"suite {self.name}: {error}{f'. To mend it: {with_commands(self.mend)}' if self.mend else ''}"
                ) from None

    def config(self, part: SuitePart, policy: EvalConfig) -> EvalConfig:
        """Return the options of a policy's evaluation on a part: the model's and the limits from the policy's."""
        scoring = asdict(part.scoring) if part.scorers else {}
        kwargs = {**part.kwargs, **part.found_paths()}
        own: dict[str, Any] = {"env": part.env, "kwargs": kwargs, "split": part.split, "scoring": scoring}
        return replace(policy, **own, seed=self.seed, repeats=self.num_samples)

    def shortened(self, num_tasks: int) -> Suite:
        """Return a suite of the first tasks of every part, with another name and content."""
        parts = tuple(
            replace(part, ids=part.ids[:num_tasks])
            if part.ids
            else replace(part, num_tasks=min(part.num_tasks or num_tasks, num_tasks))
            for part in self.parts
        )
        return replace(self, name=f"{self.name}.first-{num_tasks}", parts=parts, content_hash="")

    def repeated(self, num_times: int) -> Suite:
        """Return a suite with so many episodes per task, with another name and content."""
        return replace(self, name=f"{self.name}.times-{num_times}", num_samples=num_times, content_hash="")

    def scored(self, scoring: Scoring) -> Suite:
        """Return a suite of the same tasks with other scorers, with another name and content."""
        parts = tuple(replace(part, scorers=scoring.scorers, success_at=scoring.success_at) for part in self.parts)
        return replace(self, name=f"{self.name}.scored-{digest(asdict(scoring))[:6]}", parts=parts, content_hash="")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPart:
    """A part with its tasks."""

    part: SuitePart
    tasks: tuple[Task, ...]
    """Tasks, each repeated once per episode."""
    make_env: Callable[[], Env]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSuite:
    """A suite that can run on this machine."""

    suite: Suite
    parts: tuple[OpenPart, ...]

    @property
    def content_hash(self) -> str:
        """128-bit hex digest of everything that affects a policy; names and paths are left out."""
        suite = self.suite
        return digest(
            {
                "parts": [
                    {
                        "env": opened.part.env,
                        "kwargs": dict(opened.part.kwargs),
                        "tasks": [[task.id, task.content_hash] for task in opened.tasks],
                        # leave scorers out if there are none, so that hashes from before scorers existed stay valid
                        **({"scoring": asdict(opened.part.scoring)} if opened.part.scorers else {}),
                    }
                    for opened in self.parts
                ],
                "seed": suite.seed,
                "timeouts_s": [suite.reset_timeout_s, suite.step_timeout_s],
            }
        )


def suite_names() -> tuple[str, ...]:
    """Return the names of agentgym's suites, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.iterdir() if path.suffix in SUFFIXES))


def load_suite(reference: str) -> Suite:
    """Load a suite by name or by the path of a file.

    Raises:
        UnknownNameError: there is no such suite; the message names similar ones.
        UsageError: there is no such file.
        CorruptDataError: the file is not a suite.

    Example:
        >>> load_suite("household-valid").parts[0].num_tasks
        200
    """
    path = Path(reference)
    if path.suffix not in SUFFIXES:
        require_known("suite", reference, suite_names(), "or the path of a .toml or .json file")
        path = FOLDER / f"{reference}.toml"
    if not path.is_file():
        beside = [str(file) for file in path.parent.glob("*") if file.suffix in SUFFIXES]
        raise unknown_name("suite file", reference, beside)
    try:
        text = path.read_text(encoding="utf-8")
        return checked(Suite, tomllib.loads(text) if path.suffix == ".toml" else read_json(text))
    except (UsageError, OSError, ValueError) as error:
        raise CorruptDataError(f"{path} is not a suite: {error}") from None


def open_suite(suite: Suite) -> OpenSuite:
    """Make the environments once and look up the tasks.

    Raises:
        UsageError: the suite cannot run here, or its tasks differ from those in its content hash.
    """
    opened = OpenSuite(suite=suite, parts=tuple(_open_part(part, suite.num_samples) for part in suite.parts))
    if suite.content_hash and opened.content_hash != suite.content_hash:
        raise UsageError(
            f"{suite.label} has changed: its tasks have the content hash {opened.content_hash}, its file says "
            f"{suite.content_hash}; install the data and the version of agentgym that the suite was made with"
        )
    return opened


def _open_part(part: SuitePart, num_samples: int) -> OpenPart:
    with contextlib.closing(part.make_env()) as env:
        tasks: Sequence[Task] = part.tasks(env)
    return OpenPart(part=part, tasks=tuple(tasks) * num_samples, make_env=part.make_env)


def require_machine(suite: Suite) -> None:
    """Raise an error if this machine lacks a program without which no episode of the suite runs.

    Raises:
        MachineError: it does; the message names the command that adds it.
    """
    for part in suite.parts:
        if not is_remote(part.kwargs) and (reason := find(part.env).lacks(part.kwargs)):
            raise MachineError(f"{part.env}: {reason}")


def mend_of(suite: Suite, error: AgentGymError) -> str:
    """Return the command that lets a suite run which could not because of an error; empty if the error says it."""
    if isinstance(error, MachineError):  # the suite's own advice is about its data
        return command_in(str(error))
    if not suite.mend and isinstance(error, MissingExtraError):
        return install_command(error.extra)
    return with_commands(suite.mend)


def suite_facts(suite: Suite) -> dict[str, Any]:
    """Return facts about a suite, and whether its tasks are available here, as plain data."""
    reason, mend, content_hash, num_tasks = "", "", suite.content_hash, None
    try:
        opened = open_suite(suite)
        content_hash, num_tasks = opened.content_hash, sum(len(part.tasks) for part in opened.parts)
        require_machine(suite)
    except AgentGymError as error:
        reason, mend = " ".join(str(error).split()), mend_of(suite, error)
    names = ("name", "version", "summary", "licence", "source")
    return {name: getattr(suite, name) for name in names} | {
        "envs": sorted({part.env for part in suite.parts}),
        "num_tasks": num_tasks,
        "content_hash": content_hash,
        "available": not reason,
        "reason": reason,
        "mend": mend,
    }
