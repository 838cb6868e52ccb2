"""Components of a user: those without settings can be named, and their results are checked before they are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from testkit.credit_tables import assert_close, table_of

from agentgym import plugins
from agentgym.credit.component import FAMILIES
from agentgym.credit.compose import CreditConfig, credit_turns

CONFIGS = TypeAdapter(CreditConfig)
FILE = """
import dataclasses
from agentgym.credit.component import modulator, selection, shaper
from agentgym.credit.parts import Modulated, Shaped

@shaper("doubled")
def doubled(table):
    return Shaped(table=dataclasses.replace(table, reward=table.reward * 2))

@modulator("tenfold")
def tenfold(advantage):
    return Modulated(advantage=advantage * 10)

@selection("first_turns")
def first_turns(table):
    return table.turn == 0
"""


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:
    registries: list[Any] = [registry for registry in FAMILIES.values() if len(registry)]
    before = [dict(registry._components) for registry in registries]
    yield
    for registry, components in zip(registries, before, strict=True):
        registry._components = components
    plugins._loaded_files.clear()


def test_components_without_settings_are_named_by_their_kind_alone(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(FILE)
    keys = {
        "estimator": "dr_grpo",
        "shapers": [{"kind": f"{file}:doubled"}],
        "modulators": [{"kind": f"{file}:tenfold"}],
        "selections": [{"kind": f"{file}:first_turns"}],
    }
    config = CONFIGS.validate_python(keys)
    assert CONFIGS.dump_python(config)["modulators"] == ({"kind": f"{file}:tenfold"},)
    result = credit_turns(table_of([[0, 1], [0, 0]]), config)
    assert_close(result.advantage, [10, 10, -10, -10])
    assert result.loss_weight.tolist() == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="factor"):
        CONFIGS.validate_python({**keys, "modulators": [{"kind": f"{file}:tenfold", "factor": 2}]})
