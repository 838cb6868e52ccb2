"""Commands do not run the code, nor use the servers, that the run folder of somebody else names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym import trust
from agentgym.cache import cache_folder

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trust, "_agreed", set())


def as_from_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this user have another key and a short memory."""
    monkeypatch.setenv("AGENTGYM_CACHE", str(folder.parent / "another"))
    monkeypatch.setattr(trust, "_agreed", set())


def test_the_folder_of_somebody_else_runs_no_code(
    run: Command, guess: str, guess_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json
    folder = Path(whole["run_dir"])
    as_from_elsewhere(folder.resolve(), monkeypatch)
    guess_file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + guess_file.read_text())
    refused = run("eval", "--resume", str(folder)).assert_one_line_error()
    assert "add --trust" in refused and "eval.env = " in refused and not (tmp_path / "ran").exists()
    assert run("eval", "--resume", str(folder), "--trust", "--json").json == whole
    assert run("eval", "--resume", str(folder), "--json").json == whole  # agreed to, so signed


def test_a_changed_configuration_is_somebody_elses(run: Command, guess: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"])
    monkeypatch.setattr(trust, "_agreed", set())
    assert run("eval", "--resume", str(folder)).code == 0
    config = json.loads((folder / "config.json").read_text())
    config["eval"]["policy"] = "openai:https://evil.example/v1?model=m"
    (folder / "config.json").write_text(json.dumps(config))
    assert "evil.example" in run("eval", "--resume", str(folder)).assert_one_line_error()


@pytest.mark.parametrize(
    ("key", "value"),
    [("env.id", "their_file.py:Env-v0"), ("env.id", "their_file.py"), ("env.kwargs", {"user": {"url": "http://10.0.0.1/v1"}}),
     ("credit.estimator", "their.module:mine"), ("env.kwargs", {"command": ["curl", "x"]})],
)  # fmt: skip
@pytest.mark.parametrize(
    "words", [("train", "--resume"), ("eval",), ("credit",), ("eval", "--policy", "FOLDER", "Guess-v0")]
)
def test_no_command_uses_what_a_training_run_names(
    run: Command, words: tuple[str, ...], key: str, value: Any, tmp_path: Path
) -> None:
    from dataclasses import asdict

    from agentgym.trainers.recipes import load_recipe

    folder = tmp_path / "theirs"
    folder.mkdir()
    tree = json.loads(json.dumps(asdict(load_recipe("household-demo"))))
    group, name = key.split(".")
    tree[group][name] = value
    (folder / "config.json").write_text(json.dumps(tree))
    given = [str(folder) if word == "FOLDER" else word for word in words]
    refused = run(*given, *([] if "FOLDER" in words else [str(folder)])).assert_one_line_error()
    assert "was not made by you here" in refused and f"{key}" in refused


def test_a_harmless_folder_needs_no_trust(tmp_path: Path) -> None:
    config = {"eval": {"env": "agentgym/Household-v0", "policy": "openai:http://127.0.0.1:8000/v1", "kwargs": {"n": 3}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert trust.foreign_parts(tmp_path) == ()


def test_a_key_that_cannot_be_kept_is_named(
    run: Command, guess: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "file" / "cache"))
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    monkeypatch.setattr(trust, "_agreed", set())
    refused = run("eval", "--resume", folder).assert_one_line_error()
    assert "file/cache cannot be written" in refused and "set AGENTGYM_CACHE" in refused


def test_a_user_without_a_home(run: Command, guess: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("AGENTGYM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(trust, "_key", lambda: cache_folder().joinpath("missing").read_bytes())  # writes nothing
    assert run("eval", guess, "--policy", "oracle", "--episodes", "2").code == 0
    assert run("doctor").code == 0


def test_the_key_is_the_users_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    trust.sign(tmp_path)
    assert (tmp_path / "cache" / "origin.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("words", [("train", "tiny", "--trust"), ("eval", "agentgym/GuessNumber-v0", "--trust")])
def test_trust_without_a_run_folder_is_refused(run: Command, words: tuple[str, ...], tmp_path: Path) -> None:
    refused = run(*words, "--run-dir", str(tmp_path / "run")).assert_one_line_error()
    assert "--trust is for a run folder of another user" in refused
    assert not (tmp_path / "run").exists()
