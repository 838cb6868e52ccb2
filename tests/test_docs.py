"""Every example in the README and the docs is run, in order, page by page, as a reader would.

``python`` blocks that begin with ``# name.py`` are saved under that name, others are run; ``bash`` blocks are run as
scripts. ``text`` blocks whose lines begin with ``$`` are transcripts: what follows a command is its output, whose
numbers may differ from one machine to another. Other blocks (``text``, ``toml``) are not examples to run. The commands
in them are checked by ``test_docs_commands.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.envs.gui.chromium import has_chromium
from agentgym.rollout.record import read_json_lines

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

TRAINED_NOTHING = re.compile(r"^0 of \d+ steps trained", re.MULTILINE)


def run(command: list[str], cwd: Path, commands: Path, may_fail: bool = False) -> str:
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    if "sweep" in command[-1]:  # whose runs are processes
        environment["WARM_PYTHON"] = str(commands / "python")
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    said = done.stdout + done.stderr
    assert may_fail or done.returncode == 0, f"{command}\n{said}"
    assert not TRAINED_NOTHING.search(said), f"an example shows training that trains nothing: {command}\n{said}"
    return said


def play_transcript(text: str, cwd: Path, commands: Path) -> None:
    """Run each command of a transcript, and compare the words of what it says."""
    for entry in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, told = entry.partition("\n")
        said = run(["bash", "-uc", command], cwd, commands, may_fail=told.startswith("error: "))
        assert words_of(said) == words_of(told), f"{command}\n{said}"


def words_of(text: str) -> list[str]:
    return re.sub(r"\d[\d.,]*[kM]?", "0", text).split()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_the_examples_of_a_page_work(page: Path, tmp_path: Path, warm_commands: Path) -> None:
    if page.name in ("gui.md", "miniwob.md") and not has_chromium():
        pytest.skip("needs Chromium: apt-get install chromium")
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks or page.name != "README.md"
    for language, code in blocks:
        saved = re.match(r"# (\w+\.py)\n", code)
        if saved:
            (tmp_path / saved.group(1)).write_text(code, encoding="utf-8")
        elif language == "text":
            play_transcript(code, tmp_path, warm_commands)
        elif language == "python":
            run([str(warm_commands / "python"), "-c", code], tmp_path, warm_commands)
        else:
            run(["bash", "-euc", code], tmp_path, warm_commands)
    if page.name == "README.md":
        before, after = (
            row["success"] for row in read_json_lines(tmp_path / "runs/guess/metrics.jsonl") if row["phase"] == "eval"
        )
        assert after > before + 0.1, "the first training that a newcomer runs learns"
