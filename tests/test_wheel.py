"""The wheel holds every module and data file of the tree, once, as real files."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("envs", "tools", "trainers", "sandboxes")
DATA = (".json", ".toml", ".yaml", ".jinja", ".html", ".css", ".js", ".txt", ".typed")


def expected() -> set[str]:
    found = set()
    for folder in ("agentgym", *LINKED):
        for path in (ROOT / folder).rglob("*"):
            is_wanted = path.suffix in (".py", *DATA) or path.name in ("py.typed", "Dockerfile")
            if path.is_file() and is_wanted and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                found.add(name if folder == "agentgym" else f"agentgym/{name}")
    return found


def copy_of_tree(to: Path) -> Path:
    """What the wheel is built from; in the tree itself an earlier build's leftovers would get into the wheel."""
    for folder in ("agentgym", *LINKED):
        shutil.copytree(ROOT / folder, to / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md")):
        shutil.copy(path, to)
    return to


@pytest.mark.slow
def test_wheel_equals_tree(tmp_path: Path) -> None:
    source = copy_of_tree(tmp_path / "source")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [entry.filename for entry in archive.infolist() if ".dist-info/" not in entry.filename]
        links = [entry.filename for entry in archive.infolist() if (entry.external_attr >> 28) == 0xA]
    assert links == []
    assert len(names) == len(set(names))
    assert set(names) == expected()
