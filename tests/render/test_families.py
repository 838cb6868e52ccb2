"""Conversations in the chat templates of real models: what is rendered, what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.family_episodes import BEGIN, DIFFERS, END, NAMES, TEMPLATES, UNKNOWN, play, table

from agentgym.errors import UsageError
from agentgym.render.families import FAMILIES, FORMATS, family_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("thinks", [False, True], ids=["without thinking", "with thinking"])
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(UNKNOWN)))
def test_a_session_reads_as_the_template_renders_the_whole_conversation(name: str, thinks: bool) -> None:
    played = play(name, thinks=thinks)
    assert played.num_read == 5
    if name not in DIFFERS:
        assert played.differs_after == ()


@pytest.mark.parametrize("name", sorted(DIFFERS))
def test_templates_that_contradict_themselves_are_named(name: str) -> None:
    assert play(name, thinks=False).differs_after != ()


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_what_no_format_reads_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="chat template is unknown"):
        play(name, thinks=False)


def test_training_templates_are_of_the_same_family() -> None:
    for name in NAMES:
        training = TEMPLATES / f"{name}_training.jinja"
        if training.exists():
            one, other = (
                family_of(path.read_text(encoding="utf-8")) for path in (TEMPLATES / f"{name}.jinja", training)
            )
            assert one == other, name


def test_every_family_has_a_format_and_can_be_met() -> None:
    assert all(family.format in FORMATS for family in FAMILIES)
    for family in FAMILIES:
        assert family_of(" ".join(family.marks)) in FAMILIES


def test_the_page_has_the_table_that_the_templates_give() -> None:
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table()
