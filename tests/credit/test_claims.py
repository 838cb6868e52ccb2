"""Sentences of the documentation that count components: the numbers come from the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgym.credit.component import ESTIMATORS, credit_table
from agentgym.trainers.losses.component import loss_table

ROOT = Path(__file__).parents[2]
BUILT_IN = [one for one in ESTIMATORS.values() if one.module.startswith("agentgym.")]
VERIFIED = [one for one in BUILT_IN if one.status == "verified"]
OTHERS = {one.name for one in VERIFIED if not one.by_authors}


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (
            "README.md",
            f"Of {len(BUILT_IN)} estimators {len(VERIFIED) - len(OTHERS)} equal their authors' released code",
        ),
        ("README.md", f"and {len(OTHERS)} a released implementation of another"),
        ("README.md", f"GiGPO, HGPO, IGPO and {len(BUILT_IN) - 3} more estimators"),
        ("docs/concepts.md", f"| credit per turn | {len(BUILT_IN)} estimators |"),
        ("docs/index.md", f"with {len(BUILT_IN)} credit estimators"),
    ],
)
def test_counts_of_estimators(page: str, sentence: str) -> None:
    assert sentence in (ROOT / page).read_text()


def test_estimators_that_were_compared_with_code_of_others_are_named() -> None:
    (named,) = re.findall(r"For (grpo, [^.]*?) this is another", (ROOT / "docs/credit.md").read_text(), re.DOTALL)
    assert set(re.split(r",\s+|\s+and\s+", named)) == OTHERS


@pytest.mark.parametrize("component", [*credit_table(), *loss_table()], ids=lambda one: f"{one.family} {one.name}")
def test_a_verified_component_does_not_call_itself_experimental(component: object) -> None:
    told = (component.call.__doc__ or "").startswith("Experimental")  # type: ignore[attr-defined]
    assert told <= (component.status == "experimental"), component.name  # type: ignore[attr-defined]


def test_the_file_of_every_component_exists() -> None:
    files = {one.file for one in (*credit_table(), *loss_table()) if one.module.startswith("agentgym.")}
    assert "agentgym/credit/estimators/rae.py" in files and "trainers/losses/policy.py" in files
    assert not [file for file in files if not (ROOT / file).is_file()]
