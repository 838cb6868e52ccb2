"""The last line of a test run: what was skipped for want of what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
from pathlib import Path
pytest.importorskip("no_such_package") if Path("skip-all").exists() else None
BROWSER = pytest.mark.skipif(True, reason="needs Chromium: apt-get install chromium-headless-shell")
@BROWSER
def test_one(): pass
@BROWSER
def test_two(): pass
def test_three(): pytest.importorskip("faiss.no_such")
def test_four(): pass
"""

ROOT = Path(__file__).resolve().parent.parent


def test_skipped_tests_are_counted_by_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parent / "shared")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("skipped 3 ")]
    assert line == (
        "skipped 3 for want of what follows: 2 Chromium: apt-get install chromium-headless-shell; "
        f"1 the package faiss.no_such (pip install -e '{ROOT}[dense]')"
    )
