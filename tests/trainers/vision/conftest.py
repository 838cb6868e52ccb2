"""Folders of tiny models that see, one per family and session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from testkit.seeing import seeing_folder


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a family to the folder of its model."""
    made: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in made:
            made[family] = seeing_folder(family, tmp_path_factory.mktemp(family))
        return made[family]

    return of
