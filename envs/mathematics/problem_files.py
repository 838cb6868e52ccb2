"""Problems as MATH, MATH-500 and the data sets of AIME publish them.

=========  ============================================================================================
data set   rows
=========  ============================================================================================
MATH       one JSON object a file below ``train/`` and ``test/``: ``problem``, ``level``, ``type``, ``solution``
MATH-500   ``problem``, ``solution``, ``answer``, ``subject``, ``level``, ``unique_id``
AIME 2024  ``ID``, ``Problem``, ``Solution``, ``Answer`` (Maxwell-Jia), or the names in small letters
AIME 2025  ``problem``, ``answer``, ``id`` (math-ai), or ``question``, ``answer`` (opencompass)
=========  ============================================================================================

Sources: "Measuring Mathematical Problem Solving With the MATH Dataset" (hendrycks/math), "Let's Verify Step by Step".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from agentgym.envs.mathematics.equivalence import last_boxed
from agentgym.envs.rows import ROW_SUFFIXES, read_rows
from agentgym.errors import CorruptDataError, MissingDataError, UsageError

_QUESTION: Final = ("problem", "question")
_ID: Final = ("unique_id", "id")
_KIND: Final = ("type", "subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class MathProblem:
    """A problem with its answer in LaTeX."""

    id: str
    text: str
    answer: str
    kind: str = ""
    """Subject, such as ``Algebra``; empty if the file has none."""
    level: str = ""
    """``1`` to ``5``; empty if the file has none."""
    split: str = "test"


def read_problems(source: str | Path) -> Mapping[str, MathProblem]:
    """Return the problems of a file, or of all files of a folder, by id.

    A problem is for training if its file's name, or a folder above it within ``source``, begins with ``train``.

    Raises:
        UsageError: there is no such file, or none in the folder.
        CorruptDataError: a row has no question, no answer, or one that cannot be read from a box, or two have the same
            id.
    """
    path = Path(source).expanduser().resolve()
    if not path.exists():
        raise MissingDataError(f"problems: there is no file or folder {path}; give a file of MATH, MATH-500 or AIME")
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _read(path, stamp)


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> Mapping[str, MathProblem]:
    found: dict[str, MathProblem] = {}
    for file, within in _files(path):
        parts = within.parts if path.is_dir() else (path.name,)
        split = "train" if any(part.lower().startswith("train") for part in parts) else "test"
        is_one_problem = file.suffix == ".json" and path.is_dir()
        for number, row in enumerate(read_rows(file)):
            fallback = within.with_suffix("").as_posix() if is_one_problem else f"{within.stem}-{number}"
            problem = _problem(row, f"{file}, row {number}", fallback, split)
            if problem.id in found:
                raise CorruptDataError(f"{file}, row {number}: the id {problem.id!r} is there twice")
            found[problem.id] = problem
    if not found:
        raise UsageError(f"problems: {path} holds no problems; expected files that end in {', '.join(ROW_SUFFIXES)}")
    return found


def _files(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield files and their paths within the source."""
    if path.is_file():
        yield path, Path(path.name)
        return
    for file in sorted(path.rglob("*"), key=_in_order):
        if file.suffix in ROW_SUFFIXES:
            yield file, file.relative_to(path)


def _in_order(path: Path) -> tuple[object, ...]:
    """Order ``2.json`` before ``10.json``."""
    return (path.parent.as_posix(), len(path.name), path.name)


def _problem(row: Mapping[str, Any], place: str, fallback: str, split: str) -> MathProblem:
    named = {str(key).lower(): value for key, value in row.items() if value is not None}
    text, answer = _first(named, _QUESTION), str(named.get("answer", "")).strip()
    if not answer:
        answer = last_boxed(str(named.get("solution", ""))) or ""
    if not text or not answer:
        missing = "answer, nor a solution with \\boxed{}" if text else "problem"
        raise CorruptDataError(f"{place} has no {missing}; its keys are {', '.join(map(str, row))}")
    read = last_boxed(f"\\boxed{{{answer}}}")
    if read != answer:
        raise CorruptDataError(
            f"{place}: nobody can give the answer {answer[:80]!r} in \\boxed{{}}, which the grader would read as "
            f"{(read or 'no answer')[:80]!r}; correct its braces, and write it without \\boxed"
        )
    return MathProblem(
        id=_first(named, _ID) or fallback,
        text=text,
        answer=answer,
        kind=_first(named, _KIND),
        level=str(named.get("level", "")).removeprefix("Level").strip(),
        split=split,
    )


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(row[name]).strip() for name in names if name in row), "")
