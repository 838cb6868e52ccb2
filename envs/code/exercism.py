"""Exercism's Python exercises, each with instructions, a stub, a test module and an example solution.

They are read from a JSON Lines file (``slug``, ``blurb``, ``instructions``, and ``stub``, ``tests``, ``example`` as
maps from file names to contents) or from a folder of exercises as in a checkout of github.com/exercism/python
(``<slug>/.docs/instructions.md``, ``.meta/config.json``, ``.meta/example.py``). The package contains neither.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from agentgym.canonical import digest, read_json
from agentgym.envs.code.problems import RepairProblem, is_in_split
from agentgym.envs.rows import lines_of
from agentgym.errors import CorruptDataError, MissingDataError, UsageError, error_text, require_known
from agentgym.types import Task

DATA_VARIABLE: Final = "AGENTGYM_SHARED_DATA"
FILE: Final = "code/exercism_python_practice.jsonl"
"""Path of the file below the folder in :data:`DATA_VARIABLE`."""

NOT_GRADABLE: Final[Mapping[str, str]] = {
    "grep": "its tests replace open() of the work by a function that takes keyword arguments",
    "paasio": "its tests derive classes from the work's",
    "react": "its tests look into lists that the work changes",
}
"""Exercises that are left out, with the reason: their tests need access to the process of the agent's program, which
the grader (:func:`~agentgym.envs.code.grading.grade_suite`) does not give."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise, with files by name."""

    slug: str
    instructions: str
    stub: dict[str, str]
    tests: dict[str, str]
    example: dict[str, str]
    """The stub's files in a correct solution."""

    @cached_property
    def content_hash(self) -> str:
        """Return a digest of the whole exercise."""
        return digest([self.instructions, self.stub, self.tests, self.example])

    def problem(self, *, shows_tests: bool) -> RepairProblem:
        """Return the exercise as a problem. Its tests are hidden, and also public if ``shows_tests``."""
        files, tests = ", ".join(sorted(self.stub)), ", ".join(sorted(self.tests))
        shown = f"The tests are in {tests}. " if shows_tests else ""
        return RepairProblem(
            statement=(
                f"{self.instructions.strip()}\n\nComplete {files}, so that the tests of the exercise pass, then submit."
                f" {shown}Functions and classes keep the names that the stub gives them.\n\n"
                + "\n\n".join(f"{name}:\n{text.strip()}" for name, text in sorted(self.stub.items()))
            ),
            files={**self.stub, **self.tests} if shows_tests else dict(self.stub),
            hidden_tests=self.tests,
            solution=self.example,
            public_tests=tuple(sorted(self.tests)) if shows_tests else (),
        )


def find_exercises(path: str | Path | None = None) -> Path:
    """Return the path of the exercises: ``path``, or else the one below ``$AGENTGYM_SHARED_DATA``.

    Raises:
        UsageError: there are no exercises; the message says what to do.
    """
    if path is not None:
        found = Path(path)
        if not found.exists():
            raise MissingDataError(
                f"no Exercism exercises at {str(found)!r}: expected a .jsonl file or a folder of exercises"
            )
        return found
    folder = os.environ.get(DATA_VARIABLE)
    if folder is None:
        raise UsageError(
            f"Exercism's exercises do not come with agentgym: name them by exercism_path=..., a .jsonl file or the "
            f"folder exercises/practice of github.com/exercism/python, or set {DATA_VARIABLE} to a folder with {FILE}"
        )
    found = Path(folder) / FILE
    if not found.is_file():
        raise MissingDataError(f"{DATA_VARIABLE} is {folder!r}, but there is no {FILE} in it")
    return found


def load_exercises(path: str | Path) -> Mapping[str, Exercise]:
    """Load all exercises of a file or folder, sorted by slug.

    Raises:
        UsageError: there is no such file, or it contains no exercise.
        CorruptDataError: an exercise is incomplete; the message says where.
    """
    place = Path(path)
    if not place.exists():
        raise UsageError(f"no Exercism exercises at {str(path)!r}")
    newest = max((entry.stat().st_mtime_ns for entry in (place.iterdir() if place.is_dir() else [place])), default=0)
    exercises = _loaded(place.resolve(), newest)
    if not exercises:
        raise UsageError(f"{str(path)!r} holds no exercises: expected lines of JSON, or folders with .meta/config.json")
    return exercises


def exercism_tasks(path: str | Path | None, split: str, extra_data: Mapping[str, object]) -> tuple[Task, ...]:
    """Return the exercises of one split as tasks. The slug of an exercise decides its split.

    Args:
        path: see :func:`find_exercises`.
        split: train, valid or test.
        extra_data: data of a task in addition to the slug and a digest of the content.
    """
    return tuple(
        Task(
            id=f"{split}-{exercise.slug}",
            split=split,
            seed=0,
            data={**extra_data, "slug": exercise.slug, "content_hash": exercise.content_hash},
        )
        for exercise in load_exercises(find_exercises(path)).values()
        if is_in_split(exercise.slug, split) and exercise.slug not in NOT_GRADABLE
    )


def exercise_of(task: Task, path: str | Path | None) -> Exercise:
    """Return the exercise of a task.

    Raises:
        UnknownNameError: there is no such exercise.
        UsageError: the exercise has changed since the task was made.
    """
    exercises = load_exercises(find_exercises(path))
    slug = str(task.data.get("slug", ""))
    require_known("exercise", slug, exercises)
    if task.data.get("content_hash", exercises[slug].content_hash) != exercises[slug].content_hash:
        raise UsageError(f"exercise {slug!r} differs from the one that task {task.id} was made of; use the same data")
    return exercises[slug]


@lru_cache(maxsize=4)
def _loaded(place: Path, _newest: int) -> Mapping[str, Exercise]:
    found = _from_folders(place) if place.is_dir() else _from_lines(place)
    return {exercise.slug: exercise for exercise in sorted(found, key=lambda exercise: exercise.slug)}


def _from_lines(file: Path) -> Iterator[Exercise]:
    for number, line in lines_of(file):
        try:
            row = read_json(line)
            yield Exercise(
                slug=row["slug"],
                instructions=row["instructions"],
                stub=_texts(row["stub"]),
                tests=_texts(row["tests"]),
                example=_texts(row["example"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(f"{file}, line {number}: no exercise: {error_text(error)}") from error


def _from_folders(root: Path) -> Iterator[Exercise]:
    for config in root.glob("*/.meta/config.json"):
        folder = config.parent.parent
        try:
            names = json.loads(config.read_text(encoding="utf-8"))["files"]
            docs = [folder / ".docs" / name for name in ("instructions.md", "instructions.append.md")]
            solution, example = names["solution"], names["example"]
            yield Exercise(
                slug=folder.name,
                instructions="\n\n".join(doc.read_text(encoding="utf-8").strip() for doc in docs if doc.is_file()),
                stub=_files(folder, [*solution, *names.get("editor", ())]),
                tests=_files(folder, names["test"]),
                # example files are in .meta, in the order of the solution's files
                example={name: (folder / at).read_text("utf-8") for name, at in zip(solution, example, strict=True)},
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(f"{folder}: no exercise: {error_text(error)}") from error


def _files(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def _texts(files: object) -> dict[str, str]:
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()) or not files:
        raise TypeError(f"expected a map from file names to texts, got {type(files).__name__}")
    return dict(files)
