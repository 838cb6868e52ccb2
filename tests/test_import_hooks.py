"""Calls that wait for the import of a module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym.import_hooks import when_imported

NAME = "imported_by_a_test"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module that has not been imported."""
    path = tmp_path / f"{NAME}.py"
    path.write_text("answer = 42\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop(NAME, None)


def test_a_call_waits_for_the_import_and_sees_the_whole_module(module: Path) -> None:
    seen: list[int] = []
    when_imported(NAME, lambda: seen.append(sys.modules[NAME].answer))
    when_imported(NAME, lambda: seen.append(2))
    assert importlib.util.find_spec(NAME) is not None  # a look-up is no import
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [42, 2]
    importlib.reload(sys.modules[NAME])
    assert seen == [42, 2]
    when_imported(NAME, lambda: seen.append(3))
    assert seen == [42, 2, 3]


def test_the_module_keeps_its_own_loader(module: Path) -> None:
    before = importlib.util.find_spec(NAME)
    when_imported(NAME, lambda: None)
    found = importlib.import_module(NAME)
    assert before is not None and found.__spec__ is not None
    assert type(before.loader) is type(found.__spec__.loader) is type(found.__loader__)
    assert inspect.getsource(found) == "answer = 42\n"


def test_a_call_waits_on_when_the_import_fails(module: Path) -> None:
    seen: list[str] = []
    when_imported(NAME, lambda: seen.append("imported"))
    module.write_text("raise ImportError('half installed')\n", encoding="utf-8")
    with pytest.raises(ImportError, match="half installed"):
        importlib.import_module(NAME)
    assert seen == []
    module.write_text("answer = 'whole again'\n", encoding="utf-8")
    importlib.import_module(NAME)
    assert seen == ["imported"]


def test_a_module_that_is_missing_stays_missing() -> None:
    when_imported("no_such_module_at_all", lambda: None)
    assert importlib.util.find_spec("no_such_module_at_all") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        importlib.import_module("no_such_module_at_all")
