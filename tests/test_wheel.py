"""The wheel holds every module and data file of the tree, once, as real files."""

import json
import os
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
    found = {"agentgym_start.py", "agentgym_verifiers.py"}
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
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), ROOT / "LICENSE", *ROOT.glob("agentgym_*.py")):
        shutil.copy(path, to)
    return to


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_of_tree(folder / "source")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)],
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_equals_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [entry.filename for entry in archive.infolist() if ".dist-info/" not in entry.filename]
        links = [entry.filename for entry in archive.infolist() if (entry.external_attr >> 28) == 0xA]
        licences = [entry.filename for entry in archive.infolist() if entry.filename.endswith("LICENSE")]
    assert links == []
    assert len(names) == len(set(names))
    assert set(names) == expected()
    assert len(licences) == 1


@pytest.mark.slow
def test_what_is_installed_needs_no_checkout(wheel: Path, tmp_path: Path) -> None:
    """The wheel alone, beside its dependencies: environments, an evaluation, a report, a short training run."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)

    def run(*words: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(site)}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agentgym", *words],
            cwd=work,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    here = f"import agentgym; assert agentgym.__file__.startswith({str(site)!r}), agentgym.__file__"
    env = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-P", "-c", here], cwd=work, env=env, check=True)
    assert len(json.loads(run("list", "--json"))) > 30
    assert json.loads(run("eval", "household-valid", "--policy", "oracle", "--episodes", "2", "--json"))["results"]
    trained = json.loads(
        run("train", "household-smoke", "num_steps=1", "sft.num_demos=32", "--run-dir", "run", "--json")
    )
    assert trained["steps"] == 1
    assert (work / "run" / "report.html").is_file()
    assert "journal.jsonl" in {path.name for path in (work / "run").iterdir()}
