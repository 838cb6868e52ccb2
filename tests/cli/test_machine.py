"""The memory that ``agentgym doctor`` says a process may use."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agentgym.cli.machine import _memory_limit


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000\n"}, 1000),
        ("0::/a/b\n", {"a/b/memory.max": "500\n", "a/memory.max": "1000\n"}, 500),
        ("0::/a\n", {"a/memory.max": "max\n"}, math.inf),
        ("0::/elsewhere\n", {"memory.max": "700\n"}, 700),  # a container that sees its own group as the root
        ("3:memory:/a\n1:cpu:/b\n", {"memory/a/memory.limit_in_bytes": "300\n", "cpu/b/memory.max": "1"}, 300),
        ("", {}, math.inf),
    ],
)
def test_the_limit_of_memory(groups: str, files: dict[str, str], expected: float, tmp_path: Path) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    assert _memory_limit(tmp_path / "groups", tmp_path / "root") == expected


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert _memory_limit(tmp_path / "missing", tmp_path) == math.inf
