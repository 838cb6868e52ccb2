"""GAIA's questions from its ``metadata`` files, with the files beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from agentgym.envs.rows import read_rows
from agentgym.errors import CorruptDataError, UsageError

FOLDERS: Final = {"valid": "validation", "test": "test"}
"""GAIA's folders by split."""
_METADATA: Final = ("metadata.jsonl", "metadata.parquet")
_HIDDEN: Final = "?"
"""Placeholder for the hidden answers of the test split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaiaQuestion:
    """A question with its answer and its file."""

    id: str
    text: str
    answer: str
    level: str
    split: str
    path: Path | None = None


def read_gaia(folder: str | Path) -> Mapping[str, GaiaQuestion]:
    """Return the questions with known answers by id.

    Args:
        folder: folder with ``validation/metadata.jsonl`` (or ``.parquet``), such as ``2023`` of the data set.

    Raises:
        UsageError: there is no such folder or file, or a question's file is missing.
        CorruptDataError: a row is incomplete, or an id occurs twice.
    """
    return _read(Path(folder).expanduser().resolve())


@lru_cache(maxsize=4)
def _read(folder: Path) -> Mapping[str, GaiaQuestion]:
    found: dict[str, GaiaQuestion] = {}
    for split, name in FOLDERS.items():
        path = next((folder / name / file for file in _METADATA if (folder / name / file).is_file()), None)
        for number, row in enumerate(read_rows(path) if path is not None else ()):
            question = _question(row, f"{path}, row {number}", split, folder / name)
            if question is not None and question.id in found:
                raise CorruptDataError(f"{path}, row {number}: the id {question.id!r} is there twice")
            if question is not None:
                found[question.id] = question
    if not found:
        raise UsageError(
            f"{folder} has no questions with answers; data_dir is the folder `2023` of GAIA, with "
            "validation/metadata.jsonl or validation/metadata.parquet and the files beside it"
        )
    return found


def _question(row: Mapping[str, Any], place: str, split: str, folder: Path) -> GaiaQuestion | None:
    """Return the question of a row, or None if its answer is hidden, as in the test split."""
    try:
        name, text = str(row["task_id"]), str(row["Question"])
        answer, level, file = str(row["Final answer"]), str(row["Level"]), str(row.get("file_name") or "")
    except KeyError as error:
        raise CorruptDataError(f"{place} has no {error}; its keys are {', '.join(map(str, row))}") from None
    if answer == _HIDDEN:
        return None
    if Path(file).name != file:
        raise CorruptDataError(f"{place}: file_name {file!r} is no name of a file")
    if file and not (folder / file).is_file():
        raise UsageError(f"{folder / file} is missing, which GAIA's task {name} is about; put it beside the metadata")
    return GaiaQuestion(
        id=name, text=text, answer=answer, level=level, split=split, path=folder / file if file else None
    )
