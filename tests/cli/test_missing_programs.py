"""Commands on a machine without bubblewrap, Docker, Chromium and Java: what cannot run says so, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.gui import chromium
from agentgym.sandboxes import ladder, namespaces

Command = Callable[..., Any]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose PATH holds nothing, and no engine of Docker."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(chromium.VARIABLE, raising=False)
    monkeypatch.setattr(chromium, "PROGRAMS", ("chromium",))
    monkeypatch.setattr(chromium, "_playwrights_own", list)
    monkeypatch.setattr(namespaces, "why_not", namespaces.why_not.__wrapped__)


@pytest.mark.usefixtures("bare")
def test_environments_that_cannot_run_are_not_available(run: Command) -> None:
    rows = {row["id"]: row for row in run("list", "--json").json}
    assert not rows["agentgym/WebForms-v0"]["available"]
    assert "apt-get install chromium-headless-shell" in rows["agentgym/WebForms-v0"]["lacks"]
    lacks = rows["agentgym/Code-v0"]["lacks"]
    assert "apt-get install bubblewrap" in lacks and "apt-get install docker.io" in lacks and "sandbox=process" in lacks
    assert rows["agentgym/Household-v0"]["available"] and not rows["agentgym/Household-v0"]["lacks"]
    assert "apt-get install bubblewrap" in " ".join(run("list").out.split())


@pytest.mark.usefixtures("bare")
def test_doctor_names_what_to_install(run: Command) -> None:
    value = run("doctor", "--json").json
    envs = {fact["name"]: fact for fact in value["envs"]}
    assert (envs["agentgym/Code-v0"]["ok"], envs["agentgym/Code-v0"]["fix"]) == (False, "apt-get install bubblewrap")
    assert envs["agentgym/WebForms-v0"]["fix"] == chromium.INSTALL
    docker = next(fact for fact in value["sandboxes"] if fact["name"] == "docker")
    assert docker["fix"] == "apt-get install docker.io iptables" and "systemctl" not in docker["detail"]


@pytest.mark.usefixtures("bare")
def test_suites_of_code_say_how_to_mend_them(run: Command) -> None:
    suites = {row["name"]: row for row in run("list", "--suites", "--json").json}
    for name in ("python-math", "code-functions", "code-repair", "swe-generated"):
        assert (suites[name]["available"], suites[name]["mend"]) == (False, "apt-get install bubblewrap"), name
    assert suites["household-valid"]["available"]
    done = run("eval", "python-math", "household-valid", "--policy", "oracle", "--episodes", "1", "--json")
    by_name = {row["suite"].partition(".")[0]: row for row in done.json["results"]}
    assert by_name["python-math"]["outcome"] == "cannot_run"
    assert by_name["python-math"]["mend"] == "apt-get install bubblewrap"
    assert by_name["household-valid"]["outcome"] == "done"


@pytest.mark.usefixtures("bare")
def test_an_environment_of_code_names_the_rung_to_ask_for(run: Command) -> None:
    refused = run("eval", "agentgym/PythonMath-v0", "--policy", "oracle", "--episodes", "1")
    assert refused.code != 0 and "sandbox=process" in " ".join(refused.err.split())


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("env", "told"), [("Code", "sandbox=process"), ("WebForms", "chromium-headless-shell")])
def test_a_check_of_what_cannot_run_here_is_one_line(run: Command, env: str, told: str) -> None:
    """A page of failed checks says that the environment is at fault."""
    assert told in run("check", f"agentgym/{env}-v0").assert_one_line_error()


def test_a_named_sandbox_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentgym.registry import find

    monkeypatch.setattr(ladder, "why_no_isolation", lambda: "none here")
    assert find("agentgym/Code-v0").lacks() == "none here"
    assert find("agentgym/Code-v0").lacks({"sandbox": "process"}) == ""
