"""Commands that install this package name it, and never the other project of PyPI that has the import's name."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym import installation
from agentgym.cli.machine import extras
from agentgym.evals.suites import load_suite, suite_names
from agentgym.installation import DISTRIBUTION, install_command, with_commands
from agentgym.registry import entries, find

ROOT = Path(__file__).resolve().parent.parent


def test_a_checkout_names_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert install_command("gui", "trl") == "pip install -e '.[gui,trl]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("gui") == f"pip install -e '{ROOT}[gui]'"


@pytest.mark.parametrize(
    ("direct", "command"),
    [
        ('{"url": "file:///wheels/a.whl", "archive_info": {}}', "[gui] @ file:///wheels/a.whl'"),
        ('{"url": "https://host/a.git", "vcs_info": {"vcs": "git"}}', "[gui] @ git+https://host/a.git'"),
        (None, "[gui]'"),
    ],
)
def test_an_installed_package_names_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, direct: str | None, command: str
) -> None:
    info = tmp_path / f"{DISTRIBUTION.replace('-', '_')}-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {DISTRIBUTION}\nVersion: 0.2.0\n")
    if direct:
        (info / "direct_url.json").write_text(direct)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installation, "_CHECKOUT", tmp_path)  # which has no pyproject.toml
    assert install_command("gui") == f"pip install '{DISTRIBUTION}{command}"


def test_no_text_sends_people_to_the_other_project() -> None:
    """``pip install agentgym`` would bring a package of strangers, in whatever form it is written."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    wrong = re.compile(r"(pip3? install|uv add|uv pip install)[^\n`]*['\" ]agentgym(\[|['\"`]|\s|$)(?! of)")
    for name in tracked:
        path = ROOT / name
        is_text = path.suffix in (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".json", "")
        if is_text and path.is_file() and name != "tests/test_installation.py":
            assert not (found := wrong.search(path.read_text("utf-8", "ignore"))), f"{name}: {found[0]}"


def test_what_cannot_run_says_a_command_of_this_package() -> None:
    texts = [with_commands(load_suite(name).mend) for name in suite_names()]
    texts += [entry.install_command for entry in entries()]
    assert any("[alfworld]" in text for text in texts)
    assert not any("{extra" in text or "agentgym[" in text for text in texts)


def test_the_command_says_what_shadows_it(tmp_path: Path) -> None:
    """The other project's package comes first on the path, as it does beside an editable install."""
    (tmp_path / "agentgym").mkdir()
    (tmp_path / "agentgym" / "__init__.py").write_text("theirs = True\n")
    (tmp_path / "agentgym-0.0.2.dist-info").mkdir()
    (tmp_path / "agentgym-0.0.2.dist-info" / "METADATA").write_text("Name: agentgym\nVersion: 0.0.2\nSummary: theirs\n")
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); import agentgym_start; agentgym_start.main()"
    run = [sys.executable, "-c", start]
    done = subprocess.run([*run, str(tmp_path), "list"], check=False, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: Python imports agentgym 0.0.2 of PyPI, another project's package")
    assert "pip uninstall agentgym" in done.stderr and done.stderr.count("\n") == 1
    alone = subprocess.run(
        [*run, str(tmp_path / "empty"), "list", "--suites"], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (alone.returncode, alone.stderr) == (0, "")


def test_an_import_that_fails_is_not_blamed_on_this_project_by_its_old_name(tmp_path: Path) -> None:
    info = tmp_path / "agentgym-0.2.0.dist-info"
    info.mkdir()
    summary = importlib.metadata.metadata(DISTRIBUTION)["Summary"]
    (info / "METADATA").write_text(f"Name: agentgym\nVersion: 0.2.0\nSummary: {summary}\n")
    lines = [f"import sys; sys.path.insert(0, {str(tmp_path)!r})", "sys.modules['typer'] = None"]
    start = "\n".join([*lines, "import agentgym_start; agentgym_start.main()"])
    done = subprocess.run([sys.executable, "-c", start], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and "typer" in done.stderr and "PyPI" not in done.stderr


def test_doctor_names_a_stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert installation.stranger() == ""
    (tmp_path / "agentgym-0.0.2.dist-info").mkdir()
    (tmp_path / "agentgym-0.0.2.dist-info" / "METADATA").write_text("Name: agentgym\nVersion: 0.0.2\nSummary: theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "agentgym 0.0.2 is installed here, another project's" in installation.stranger()


@pytest.mark.parametrize("name", ["BFCL-v0", "BrowserGym-v0"])
def test_doctor_and_list_give_an_environment_its_own_command(name: str) -> None:
    entry = find(f"agentgym/{name}")
    fixes = {fact.name: fact.fix for fact in extras()}
    assert entry.install
    assert fixes[str(entry.extra)] in (entry.install_command, None)
