"""Sessions have the token ids that a model's own tokenizer gives the whole conversation by its own chat template."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.family_episodes import play_with
from testkit.own_tokenizers import BEGIN, END, MODELS, needs, own_tokenizer, row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
PRESENT = [pytest.param(name, marks=needs(name)) for name in MODELS]


@pytest.mark.parametrize("thinks", [False, True], ids=["without thinking", "with thinking"])
@pytest.mark.parametrize("name", PRESENT)
def test_a_session_has_the_ids_of_the_whole_conversation(name: str, thinks: bool) -> None:
    played = play_with(own_tokenizer(name), thinks=thinks)
    assert played.num_read == 5
    assert played.differs_after == () and played.ids_differ_after == ()


@pytest.mark.parametrize("name", PRESENT)
def test_the_page_has_the_row_of_each_tokenizer(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert row(name) in page.partition(BEGIN)[2].partition(END)[0].splitlines()
