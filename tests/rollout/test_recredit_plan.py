"""Which estimators with which settings: a run's own carried over, overrides, refusals; and reading a run's records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from testkit.recorded_runs import recorded_batches, write_run

from agentgym.credit.compose import CreditConfig
from agentgym.credit.estimators.hgpo import HgpoOptions
from agentgym.credit.modulators.salt import SaltOptions
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.penalties import InvalidCallOptions
from agentgym.errors import ConfigError, CorruptDataError, UnknownNameError, UsageError
from agentgym.rollout.record import GroupRecord, record_path, write_records
from agentgym.rollout.recredit import (
    plan_recredit,
    possible_estimators,
    read_batches,
    read_credit_settings,
    select_steps,
)

OWN = CreditConfig(
    estimator="gigpo", gamma=0.9, norm="mean_norm", step_weight=0.5, shapers=(GraOptions(thresholds=(0.1,)),)
)


def saved(config: CreditConfig) -> Any:
    """Settings as they are read from a file."""
    return json.loads(json.dumps(asdict(config)))


def test_estimators_take_over_the_runs_settings() -> None:
    plan = plan_recredit(["gigpo", "hgpo", "grpo"], saved(OWN))
    assert plan.own == plan.configs["gigpo"] == OWN
    hgpo = plan.configs["hgpo"]
    assert (hgpo.gamma, hgpo.norm, hgpo.step_weight, hgpo.shapers) == (0.9, "mean_norm", 1.0, OWN.shapers)
    assert plan.configs["grpo"].norm == "mean_norm"
    assert plan.notes == tuple(f"{name} does not read the run's credit.step_weight" for name in ("hgpo", "grpo"))


def test_options_are_the_estimators_own() -> None:
    own = CreditConfig(estimator="hgpo", options=HgpoOptions(history=4))
    plan = plan_recredit(["hgpo", "gigpo"], saved(own))
    assert plan.configs["hgpo"] == own
    assert plan.configs["gigpo"].options is None


def test_what_does_not_go_together_falls_back_to_defaults_and_says_so() -> None:
    own = CreditConfig(estimator="grpo", modulators=(SaltOptions(),))
    plan = plan_recredit(["reinforce_pp", "rloo"], saved(own), ["credit.invalid_penalty=0.1"])
    assert plan.configs["reinforce_pp"] == CreditConfig(estimator="reinforce_pp", invalid_penalty=0.1)
    assert plan.configs["rloo"].modulators == own.modulators
    (note,) = plan.notes
    assert note.startswith("reinforce_pp has its defaults, since the run's settings do not go with it: salt works on")


def test_without_settings_all_have_their_defaults() -> None:
    plan = plan_recredit(["gigpo", "gigpo", " grpo "], None)
    assert plan.configs == {name: CreditConfig(estimator=name) for name in ("gigpo", "grpo")}
    assert plan.own is None
    assert plan.notes == ("the run has no settings of credit on record: every estimator has its defaults",)


def test_overrides_go_to_those_that_read_them() -> None:
    overrides = ["credit.gamma=1.0", "credit.options.history=4", 'shapers=[{"kind": "invalid_call", "penalty": 0.2}]']
    plan = plan_recredit(["gigpo", "hgpo", "rloo"], saved(OWN), overrides)
    assert [config.gamma for config in plan.configs.values()] == [1.0, 1.0, 0.95]
    assert plan.configs["hgpo"].options == HgpoOptions(history=4)
    assert {config.shapers for config in plan.configs.values()} == {(InvalidCallOptions(penalty=0.2),)}
    assert "rloo does not read credit.gamma" in plan.notes
    assert "gigpo does not read credit.options.history" in plan.notes
    whole = plan_recredit(["gigpo", "hgpo"], None, ['credit.options={"kind": "hgpo", "history": 1}'])
    assert whole.configs["hgpo"].options == HgpoOptions(history=1)
    assert whole.own is None


@pytest.mark.parametrize(
    ("estimators", "overrides", "error", "said"),
    [
        (["gigop"], [], UnknownNameError, "did you mean 'gigpo'?"),
        (["", " "], [], UsageError, "name at least one estimator"),
        (["gigpo"], ["credit.gama=1"], UnknownNameError, "did you mean 'credit.gamma'?"),
        (["gigpo"], ["num_steps=1"], UnknownNameError, "--set takes the keys of credit alone"),
        (["gigpo"], ["credit.gamma"], ConfigError, "expected key=value"),
        (["gigpo"], ["gamma=0.5", "credit.gamma=0.6"], ConfigError, "credit.gamma is set twice"),
        (["gigpo"], ["credit.estimator=grpo"], ConfigError, "name estimators with --estimator"),
        (["gigpo"], ["credit.gamma=much"], ConfigError, "credit.gamma: Input should be a valid number"),
        (["gigpo"], ["credit.gamma=7"], ConfigError, "gamma must be between 0 and 1"),
        (["gigpo"], ["credit.shapers.0.penalty=7"], ConfigError, "set it as a whole"),
        (["gigpo"], ["credit.options.history=7"], ConfigError, "none of gigpo reads credit.options.history"),
        (["rloo", "spo"], ["credit.gamma=1"], ConfigError, "none of rloo, spo reads credit.gamma"),
    ],
)
def test_what_cannot_be_is_refused(
    estimators: list[str], overrides: list[str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as raised:
        plan_recredit(estimators, saved(CreditConfig()), overrides)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("name", "columns"), [("turn_gae", "value"), ("archer", "q_value, value"), ("igpo", "answer_logprobs")]
)
def test_estimators_whose_columns_are_not_recorded_are_refused(name: str, columns: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plan_recredit(["gigpo", name], None)
    assert f"{columns}, which this run's records do not hold" in str(raised.value)
    assert "one can credit by " + ", ".join(possible_estimators()[:3]) in str(raised.value)
    assert name not in possible_estimators()


def test_every_possible_estimator_credits_a_record() -> None:
    from agentgym.credit.recredit import recredit

    plan = plan_recredit(possible_estimators(), None)
    assert len(plan.configs) > 10
    batches = recorded_batches(CreditConfig(), num_steps=1)
    (credit,) = recredit(batches, plan.configs)
    assert set(credit.results) == set(plan.configs)


def test_own_settings_that_records_cannot_feed_are_noted() -> None:
    plan = plan_recredit(["gigpo"], {"estimator": "turn_gae"})
    assert plan.own is None
    assert "the recorded credit cannot be recomputed to check it: it needs the columns value" in plan.notes[0]


# ------------------------------------------------------------------------------------------------------- records


def test_steps_and_records_of_a_run(tmp_path: Path) -> None:
    batches = write_run(tmp_path, OWN)
    assert select_steps(tmp_path, None, None) == (0, 1, 2, 3)
    assert select_steps(tmp_path, 1, 2) == (1, 2)
    assert select_steps(tmp_path, 3, None) == (3,)
    assert tuple(read_batches(tmp_path, (1, 2), {"gigpo": OWN})) == batches[1:3]
    with_memory = read_batches(tmp_path, (2,), {"gigpo": OWN, "spo": CreditConfig(estimator="spo")})
    assert [batch.step for batch in with_memory] == [0, 1, 2]
    assert plan_recredit(["gigpo"], read_credit_settings(tmp_path)).own == OWN


def test_folders_without_records_or_steps(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        select_steps(tmp_path / "nowhere", None, None)
    with pytest.raises(CorruptDataError, match="has no recorded rollouts"):
        select_steps(tmp_path, None, None)
    write_run(tmp_path, OWN)
    with pytest.raises(UsageError, match=r"no step of 8:9 is recorded; .* has steps 1 to 4"):
        select_steps(tmp_path, 7, 8)


def test_damaged_runs_are_named(tmp_path: Path) -> None:
    batches = write_run(tmp_path, OWN, num_steps=1)
    path = record_path(tmp_path, 0)
    pairs = zip(batches[0].groups, batches[0].credit, strict=True)
    cut = [GroupRecord(group=of, credit=credit[1:]) for of, credit in pairs]
    write_records(path, cut)
    with pytest.raises(CorruptDataError, match=r"step-000000.jsonl.gz: group 0 has 5 episodes, credit of 4"):
        list(read_batches(tmp_path, (0,), {}))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CorruptDataError, match="cannot be read"):
        list(read_batches(tmp_path, (0,), {}))
    for text, said in (("{", "is not JSON"), ('{"credit": 3}', "credit holds a int, expected an object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CorruptDataError, match=said):
            read_credit_settings(tmp_path)
    with pytest.raises(CorruptDataError, match=r"the run's credit settings cannot be read: credit.gamma"):
        plan_recredit(["gigpo"], {"gamma": "much"})
    (tmp_path / "config.json").write_text('{"recipe": "rooms"}')
    assert read_credit_settings(tmp_path) is None
    (tmp_path / "config.json").unlink()
    assert read_credit_settings(tmp_path) is None
