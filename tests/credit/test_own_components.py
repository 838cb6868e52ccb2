"""Components of a user: those without settings can be named, and their results are checked before they are used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from testkit.credit_tables import assert_close, bandits, table_of

from agentgym import plugins
from agentgym.credit.component import FAMILIES, SELECTIONS, estimator, modulator, selection, shaper
from agentgym.credit.compose import CreditConfig, CreditResult, credit_turns
from agentgym.credit.parts import Modulated, Shaped
from agentgym.credit.selections.downsampling import D3sOptions
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.credit.trial import check_own_components
from agentgym.errors import ConfigError
from agentgym.plugins import Named

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


def credited_by(family: str, returned: Any, table: TurnTable, **more: Any) -> CreditResult:
    """Credit a table by a component that returns a value, or what a function makes of the table."""

    def own(table: TurnTable) -> Any:
        return returned(table) if callable(returned) else returned

    if family == "estimator":
        estimator("own", granularity="turn")(own)
        return credit_turns(table, CreditConfig(estimator="own"))
    if family == "remembers":
        estimator("own", granularity="turn")(lambda table, memory: own(table))
        return credit_turns(table, CreditConfig(estimator="own"))
    {"shaper": shaper, "modulator": modulator, "selection": selection}[family]("own")(own)
    stage: Mapping[str, Any] = {f"{family}s": (Named(kind="own"),)}
    return credit_turns(table, CreditConfig(estimator="dr_grpo", **stage, **more))


def credit(advantage: Any, **more: Any) -> TurnAdvantages:
    return TurnAdvantages(**{"advantage": advantage, "return_to_go": [0, 0], **more})


def changes_rewards(table: TurnTable) -> TurnAdvantages:
    table.reward[:] = 7
    return credit(table.reward)


@pytest.mark.parametrize(
    ("family", "returned", "words"),
    [
        ("estimator", None, "estimator 'own' returned NoneType, expected agentgym.credit.table.TurnAdvantages(adv"),
        ("estimator", credit([[1], [2]]), "returned advantage of shape (2, 1), expected (2,)"),
        ("estimator", credit(["a", "b"]), "returned advantage of type <U1, expected numbers"),
        ("estimator", credit([1, np.nan]), "returned advantage nan for row 1 of its table"),
        ("estimator", credit([1, 2], loss_weight=[1]), "returned loss_weight of shape (1,), expected (2,)"),
        ("estimator", credit([1, 2], loss_weight=[1, -1]), "returned a loss_weight of -1, expected 0 or more"),
        ("estimator", credit([1, 2], token_advantage=[1]), "returned token_advantage of shape (1,), expected (3,)"),
        ("estimator", changes_rewards, "changes an array that it was given in place (assignment destination is read"),
        ("remembers", (credit([1, 2]), None), "the new memory, a dict; got TurnAdvantages, NoneType"),
        ("shaper", lambda table: table, "shaper 'own' returned TurnTable, expected agentgym.credit.parts.Shaped(table"),
        ("shaper", Shaped(table=bandits(1)), "returned no table of the 2 turns that it was given"),
        (
            "modulator",
            np.ones(2),
            "modulator 'own' returned ndarray, expected agentgym.credit.parts.Modulated(advantage",
        ),
        ("modulator", Modulated(advantage=np.array([np.nan, 1])), "returned advantage nan for row 0"),
        ("selection", None, "selection 'own' returned rows of type object and shape (), expected a mask of shape (2,)"),
        ("selection", np.array([0, 1]), "returned rows of type int64 and shape (2,), expected a mask"),
        ("selection", np.array([True]), "returned rows of type bool and shape (1,), expected a mask of shape (2,)"),
    ],
)
def test_a_wrong_result_is_refused_in_words(family: str, returned: Any, words: str) -> None:
    table = bandits(1, 0, num_tokens=[1, 2])
    with pytest.raises(ConfigError, match=re.escape(words)):
        credited_by(family, returned, table)
    assert table.reward.tolist() == [1, 0]


def test_lists_and_other_number_types_become_arrays_of_float64() -> None:
    for advantage in ([1, 2], np.array([1, 2], dtype=np.float32), (1.0, 2.0)):
        result = credited_by("estimator", credit(advantage), bandits(1, 0))
        assert result.advantage.dtype == np.float64 and result.advantage.tolist() == [1, 2]


def test_a_later_selection_keeps_the_token_mask_of_an_earlier_one() -> None:
    selection("all_turns", is_after=True)(lambda table: np.ones(len(table), dtype=np.bool_))
    assert SELECTIONS["all_turns"].is_after
    table = bandits(1, 0, num_tokens=[2, 2], token_entropy=[0.1, 0.9, 0.2, 0.8])
    alone = CreditConfig(estimator="dr_grpo", selections=(D3sOptions(start_share=0.5),))
    both = CreditConfig(estimator="dr_grpo", selections=(D3sOptions(start_share=0.5), Named(kind="all_turns")))
    kept = credit_turns(table, alone).token_keep
    assert kept is not None and kept.tolist() == [False, True, False, True]
    assert_close(credit_turns(table, both).token_keep, kept)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("entropy", "columns is text, expected names, as in columns=('entropy',)"),
        (("entropi",), "unknown column 'entropi'"),
    ],
)
def test_columns_that_do_not_exist_are_refused_where_they_are_named(columns: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        estimator("own", columns=columns)(lambda table: None)


def test_components_are_tried_before_training() -> None:
    @modulator("late")
    def late(table: TurnTable, advantage: Any) -> Modulated:
        return Modulated(advantage=advantage * (1 + table.turn))

    @shaper("lost")
    def lost(table: TurnTable) -> None: ...

    said = "modulator 'late' gives turns of one episode different advantages .* granularity='turn'"
    with pytest.raises(ConfigError, match=said):
        check_own_components(CreditConfig(estimator="grpo", modulators=(Named(kind="late"),)))
    check_own_components(CreditConfig(estimator="gigpo", modulators=(Named(kind="late"),)))
    with pytest.raises(ConfigError, match="shaper 'lost' returned NoneType"):
        check_own_components(CreditConfig(estimator="grpo", shapers=(Named(kind="lost"),)))


@pytest.mark.parametrize("status", ["user", "experimental"])
@pytest.mark.parametrize(
    ("made", "said"), [("np.full(len(table), np.nan)", "finite"), ("np.zeros(1)", "shape|one per turn")]
)
def test_results_of_a_users_file_are_checked_whatever_status_it_claims(
    tmp_path: Path, status: str, made: str, said: str
) -> None:
    file = tmp_path / "claims.py"
    file.write_text(
        "import numpy as np\n"
        "from agentgym.credit.component import estimator\n"
        "from agentgym.credit.table import TurnAdvantages\n"
        f"@estimator('claims', status={status!r}, granularity='turn')\n"
        "def claims(table):\n"
        f"    return TurnAdvantages(advantage={made}, return_to_go=np.zeros(len(table)))\n"
    )
    with pytest.raises(ConfigError, match=said):
        check_own_components(CreditConfig(estimator=f"{file}:claims"))
