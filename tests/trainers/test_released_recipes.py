"""Recipes have the values of the scripts they follow, or say why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.released_scripts import BEGIN, END, RELEASED, Released, as_markdown, found

from agentgym.trainers.recipes import load_recipe

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.parametrize("released", RELEASED, ids=lambda released: released.recipe)
def test_a_recipe_differs_from_its_script_only_where_it_says_why(released: Released) -> None:
    config = load_recipe(released.recipe)
    for setting in released.settings:
        ours = found(config, setting.key)
        assert (ours != setting.theirs) == bool(setting.why), (setting.key, ours, setting.theirs)


def test_the_page_is_of_these_recipes() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == as_markdown().strip(), "run: python -m testkit.released_scripts docs/recipes.md"
