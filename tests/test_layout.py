"""The layout's promises: links, import side effects, and a docstring on every public module."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("envs", "tools", "trainers", "sandboxes")
MODULES = sorted(path.relative_to(ROOT) for folder in ("agentgym", *LINKED) for path in (ROOT / folder).rglob("*.py"))
HEAVY = (
    "gymnasium",
    "numpy",
    "torch",
    "transformers",
    "peft",
    "docker",
    "playwright",
    "fastapi",
    "pydantic",
    "httpx",
    "typer",
    "rich",
)


def run_python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


@pytest.mark.parametrize("name", LINKED)
def test_links_are_relative_and_lead_to_the_sibling(name: str) -> None:
    link = ROOT / "agentgym" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == ROOT / name
    assert not (ROOT / name).is_symlink()


@pytest.mark.parametrize("name", LINKED)
def test_links_are_committed_as_links(name: str) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-s", f"agentgym/{name}"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if listed.returncode != 0 or not listed.stdout:
        pytest.skip("not a checkout of this project")
    assert listed.stdout.startswith("120000 ")


def test_bare_names_are_not_importable_from_elsewhere(tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {LINKED!r} if u.find_spec(n)])"
    assert run_python(code, tmp_path).stdout == "[]\n"


def test_import_loads_nothing_heavy_and_prints_nothing(tmp_path: Path) -> None:
    code = f"import sys, agentgym; sys.stderr.write(repr([name for name in {HEAVY!r} if name in sys.modules]))"
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "[]")
    assert list(tmp_path.iterdir()) == []


def test_import_loads_no_environment(tmp_path: Path) -> None:
    code = (
        "import sys, json, agentgym; "
        "print(json.dumps([name for name in sys.modules if name.startswith('agentgym.envs.')]))"
    )
    assert json.loads(run_python(code, tmp_path).stdout) == []


def test_each_class_has_one_identity(tmp_path: Path) -> None:
    code = (
        "import agentgym.envs, sys; print([name for name in sys.modules if name.split('.')[0] in " + repr(LINKED) + "])"
    )
    assert run_python(code, tmp_path).stdout == "[]\n"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_modules_have_a_docstring_and_a_name_of_their_own(path: Path) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source)), f"{path} has no docstring"
    assert path.stem not in ("utils", "helpers", "common", "base", "misc")
    assert "TODO" not in source
    assert "FIXME" not in source


def test_folders_with_python_files_are_packages() -> None:
    ours = [path for path in MODULES if "web_app/apps/" not in path.as_posix()]  # applications that are only started
    assert [path for path in ours if not (ROOT / path.parent / "__init__.py").is_file()] == []


def test_the_files_that_people_look_for() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {project['version']}\n" in citation
    assert f"license: {project['license']}\n" in citation
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## Unreleased" in changes and f"## {project['version']} (" in changes
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(
        re.findall(r"(?:`|make )(test-[a-z]+|fast-tests)\b", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    )
    assert len(named) >= 6
    assert [target for target in named if f"\n{target}:" not in makefile] == []
