"""The files of AppWorld's ``data`` folder that the environment needs.

Source: "AppWorld: A Controllable World of Apps and People for Benchmarking Interactive Coding Agents" (ACL 2024); the
package ``appworld`` (Apache-2.0), whose ``appworld download data`` writes the folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from agentgym.canonical import digest, read_json
from agentgym.errors import CorruptDataError, MissingDataError, UsageError, require_known
from agentgym.types import Task

ROOT_VARIABLE: Final = "APPWORLD_ROOT"
"""AppWorld's own environment variable, which names the folder that contains ``data``."""
DATASETS: Final = {
    "train": "train", "valid": "dev", "test": "test_normal", "test_challenge": "test_challenge",
    "dev": "dev", "test_normal": "test_normal",
}  # fmt: skip
"""AppWorld's datasets by split; two splits have another name in AppWorld."""
_NAMES: Final = {"dev": "valid", "test_normal": "test"}
_GET: Final = (
    "with a Python that has appworld, run `appworld install` and `appworld download data --root FOLDER`, and export "
    f"{ROOT_VARIABLE}=FOLDER"
)


class AppWorldData:
    """AppWorld's ``data`` folder.

    Args:
        folder: folder with ``datasets``, ``tasks``, ``base_dbs`` and ``api_docs``; by default ``data`` in
            ``$APPWORLD_ROOT``.

    Raises:
        UsageError: there is no such folder.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        root = os.environ.get(ROOT_VARIABLE)
        if folder is None and not root:
            raise MissingDataError(f"data_dir is missing, AppWorld's folder `data`; {_GET}")
        self.folder = (Path(root or "", "data") if folder is None else Path(folder)).expanduser().resolve()
        for name in ("datasets", "tasks"):
            if not (self.folder / name).is_dir():
                raise MissingDataError(f"{self.folder} has no folder {name}, so it is not AppWorld's `data`; {_GET}")

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split in the dataset's order.

        Raises:
            UnknownNameError: there is no such split.
            UsageError: a file is missing.
        """
        require_known("split of AppWorld", split, DATASETS)
        return [self._task(name, _NAMES.get(split, split)) for name in self.ids(split)]

    def ids(self, split: str) -> tuple[str, ...]:
        """Return the task ids of a dataset."""
        path = self.folder / "datasets" / f"{DATASETS[split]}.txt"
        if not path.is_file():
            raise MissingDataError(f"there is no {path}, which lists AppWorld's {DATASETS[split]} tasks; {_GET}")
        return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())

    def split_of(self, name: str) -> str | None:
        """Return the split whose dataset contains a task, or None."""
        for split in ("train", "valid", "test", "test_challenge"):
            if (self.folder / "datasets" / f"{DATASETS[split]}.txt").is_file() and name in self.ids(split):
                return split
        return None

    def task_folder(self, name: str) -> Path:
        """Return a task's folder.

        Raises:
            UsageError: there is none.
        """
        folder = self.folder / "tasks" / name
        if Path(name).name != name or not (folder / "specs.json").is_file():
            raise UsageError(f"no task {name!r} in {self.folder / 'tasks'}; take tasks from tasks(split)")
        return folder

    def digest(self, name: str) -> str:
        """Return a digest of the task's instruction, supervisor and date."""
        return digest(self._read(self.task_folder(name) / "specs.json"))

    def difficulty(self, name: str) -> str:
        """Return AppWorld's difficulty of a task, ``1`` to ``3``; empty if it is unknown."""
        path = self.task_folder(name) / "ground_truth" / "metadata.json"
        return str(self._read(path).get("difficulty", "")) if path.is_file() else ""

    def solution(self, name: str) -> str | None:
        """Return AppWorld's own solution of a task, or None, as for the test sets."""
        path = self.task_folder(name) / "ground_truth" / "compiled_solution.py"
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def _task(self, name: str, split: str) -> Task:
        return Task(id=name, split=split, seed=0, data={"task": name, "digest": self.digest(name)})

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            found = read_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CorruptDataError(f"{path} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise CorruptDataError(f"{path} is no JSON object")
        return found
