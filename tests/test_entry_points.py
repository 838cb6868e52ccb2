"""Environments and components of installed packages, sound and broken ones."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentgym.credit.component import ESTIMATORS
from agentgym.plugins import Registry


def install(folder: Path, name: str, group: str, value: str, source: str) -> None:
    """Write a module and the files by which Python knows it as an installed package with an entry point."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = {value}\n", encoding="utf-8")


def run_python(code: str, folder: Path) -> str:
    """Return standard output, and then standard error, of a new Python with the packages of a folder installed."""
    path = os.pathsep.join([str(folder), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    return done.stdout + done.stderr


def test_installed_packages_register_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "my_credit_package", "agentgym.components", "my_credit_package", "import agentgym\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    fresh = Registry[Any]("estimator", "agentgym.credit.estimators", ())
    fresh._components["known"] = ESTIMATORS["grpo"]
    assert list(fresh) == ["known"]
    assert "my_credit_package" in sys.modules


def test_an_installed_package_may_import_the_trainer(tmp_path: Path) -> None:
    """Built-in names load no packages, so TrainConfig is whole when a package first imports it."""
    source = """
from dataclasses import replace
from agentgym.credit.component import estimator
from agentgym.credit.table import TurnAdvantages
from agentgym.trainers.recipes import load_recipe, recipe

@recipe("short")
def short():
    return replace(load_recipe("tiny"), num_steps=1)

@estimator("as_it_is")
def as_it_is(table):
    return TurnAdvantages(advantage=table.reward, return_to_go=table.reward)
"""
    install(tmp_path, "whole_package", "agentgym.components", "whole_package", source)
    for first in ("agentgym.trainers.config.train", "agentgym.credit.compose"):
        code = f"import {first}\nfrom agentgym.trainers.recipes import load_recipe\n"
        code += "from agentgym.credit.config import CreditConfig\n"
        code += "print(load_recipe('short').num_steps, CreditConfig(estimator='as_it_is').estimator)"
        assert run_python(code, tmp_path) == "1 as_it_is\n"


def test_a_package_that_cannot_be_imported_is_named_and_the_rest_works(tmp_path: Path) -> None:
    install(tmp_path, "broken_one", "agentgym.components", "broken_one", "raise ValueError('no licence key')\n")
    install(tmp_path, "gone", "agentgym.components", "gone.nowhere", "")
    install(tmp_path, "ended", "agentgym.components", "ended", "raise SystemExit(3)\n")
    install(tmp_path, "an_object", "agentgym.components", "an_object:part", "part = 1\n")
    source = "from agentgym.credit.component import shaper\n@shaper('{}')\ndef part(table): ...\n"
    install(tmp_path, "taken", "agentgym.components", "taken", source.format("g_ra"))
    install(tmp_path, "well", "agentgym.components", "well", source.format("well"))
    code = "from agentgym.credit.component import SHAPERS\nSHAPERS['g_ra']\nprint('well' in list(SHAPERS))\n"
    said = run_python(code + "SHAPERS['nowhere']", tmp_path)
    assert said.startswith("True\n")
    for reason in (
        f"broken_one is left out; agentgym.components: broken_one: ValueError: no licence key ({tmp_path}",
        "package gone is left out; agentgym.components: gone.nowhere: ModuleNotFoundError: No module named 'gone.",
        "package ended is left out; agentgym.components: ended: RuntimeError: SystemExit: 3",
        "package an_object is left out; agentgym.components: an_object:part: the entry names an object",
        "package taken is left out; agentgym.components: taken: ConfigError: shaper 'g_ra' is already registered by "
        "agentgym.credit.shapers",
        "not loaded: an_object, broken_one, ended, gone, taken, as `agentgym doctor` says",
    ):
        assert reason in said
    named = "from agentgym.cli.machine import packages\nprint(*sorted(one.name for one in packages()))"
    assert run_python(named, tmp_path).startswith("an_object broken_one ended gone taken\n")


def test_an_installed_package_replaces_no_environment(tmp_path: Path) -> None:
    source = """
from agentgym import ToolEnv, register
register("mine/Own-v0", ToolEnv)
register("agentgym/Household-v0", ToolEnv)
"""
    install(tmp_path, "own_house", "agentgym.envs", "own_house", source)
    code = "from agentgym.registry import creator_of, entries, find\nentries()\n"
    said = run_python(code + "print(creator_of(find('agentgym/Household-v0')).__name__)", tmp_path)
    assert "package own_house is left out; agentgym.envs: own_house: UsageError: environment 'agentgym/House" in said
    assert said.startswith("HouseholdEnv\n")
