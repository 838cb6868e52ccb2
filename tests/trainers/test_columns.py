"""Columns that need the model: entropies, advantages per token, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from testkit.made_groups import a_task, group, trajectory, turn, two_groups

from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, assign_credit, credit_groups
from agentgym.credit.modulators.branches import SharedPrefixOptions
from agentgym.credit.modulators.entropy import AepoOptions, EmpgOptions
from agentgym.credit.selections.downsampling import D3sOptions
from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import read_records, write_records
from agentgym.trainers.config.columns import needed_columns
from agentgym.trainers.config.train import EnvConfig, TrainConfig
from agentgym.trainers.critics.columns import ColumnMaker, DriftMeter
from agentgym.trainers.data.samples import FilteredGroup, build_samples, filter_groups
from agentgym.types import Status, TrajectoryGroup

NO_RENDERER: Any = None
"""Entropies, drift and values are read off tokens."""


def train_config(credit: CreditConfig | None = None, **changes: Any) -> TrainConfig:
    return TrainConfig(recipe="x", env=EnvConfig(id="x"), credit=credit or CreditConfig(), **changes)


# -------------------------------------------------------------------------------------------------------- entropies


def test_entropies_are_those_of_a_direct_computation(small_model: Any) -> None:
    credit = CreditConfig(modulators=(EmpgOptions(), AepoOptions()))
    config = train_config(credit)
    config = replace(
        config,
        sampling=replace(config.sampling, temperature=0.7),
        columns=replace(config.columns, tokens_per_microbatch=10),
    )
    columns = ColumnMaker(config, small_model, NO_RENDERER).make(two_groups()).columns
    assert sorted(columns) == ["entropy", "token_entropy"]
    expected: list[list[float]] = []
    for made in two_groups():
        for episode in made.valid:
            for segment in episode.segments:
                logits = small_model(input_ids=torch.tensor([segment.token_ids])).logits[0] / 0.7
                distribution = torch.softmax(logits, -1)
                entropy = (-distribution * distribution.log()).sum(-1).tolist()
                end = 0
                for each in segment.turns:
                    start = end + len(each.prompt_ids)
                    end = start + len(each.completion.token_ids)
                    expected.append(entropy[start - 1 : end - 1])
    np.testing.assert_allclose(columns["token_entropy"], [h for row in expected for h in row], atol=1e-5)
    np.testing.assert_allclose(columns["entropy"], [np.mean(row) for row in expected], atol=1e-5)
    table = turn_table(two_groups(), ["num_tokens"]).with_columns(**columns)
    assert len(table) == 6


def test_only_what_credit_reads_is_made(small_model: Any) -> None:
    made = ColumnMaker(train_config(), small_model, NO_RENDERER).make(two_groups())
    assert made.columns == {} and made.metrics == {}
    only = ColumnMaker(train_config(CreditConfig(modulators=(EmpgOptions(),))), small_model, NO_RENDERER).make(
        two_groups()
    )
    assert list(only.columns) == ["entropy"]


def test_making_columns_leaves_the_model_as_it_was(small_model: Any) -> None:
    small_model.train()
    ColumnMaker(train_config(CreditConfig(modulators=(EmpgOptions(),))), small_model, NO_RENDERER).make(two_groups())
    assert small_model.training and all(p.grad is None for p in small_model.parameters())


# ------------------------------------------------------------------------------------------------------------ drift


def spoken(model: Any, name: str = "t", tokens: tuple[int, ...] = (7, 8, 9)) -> TrajectoryGroup:
    """A group whose log-probabilities are the model's own."""
    prompt = (3, 4)
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(-1)
    logprobs = tuple(logits[1 + n, token].item() for n, token in enumerate(tokens))
    return group(trajectory([turn(prompt, tokens, logprobs=logprobs)], task=a_task(name)), task=a_task(name))


def test_drift_is_zero_on_a_first_visit_and_measures_the_last_response(small_model: Any) -> None:
    config = train_config(CreditConfig(estimator="spo"))
    maker = ColumnMaker(config, small_model, NO_RENDERER)
    first = maker.make([spoken(small_model)])
    assert first.columns["drift"].tolist() == [0.0] and first.metrics["revisited_share"] == 0
    assert maker.make([spoken(small_model)]).columns["drift"][0] == pytest.approx(0.0, abs=1e-5)
    before = spoken(small_model)
    with torch.no_grad():
        for parameter in small_model.parameters():
            parameter.mul_(1.1)
    now = spoken(small_model)
    changes = [
        abs(a - b)
        for a, b in zip(*(g.trajectories[0].turns[0].completion.logprobs for g in (before, now)), strict=True)
    ]
    restored = ColumnMaker(config, small_model, NO_RENDERER)
    restored.load_state_dict(json.loads(json.dumps(maker.state_dict())))
    for meter in (maker, restored):
        made = meter.make([now, spoken(small_model, "another")])
        np.testing.assert_allclose(made.columns["drift"], [np.mean(changes), 0.0], atol=1e-5)
        assert made.metrics["revisited_share"] == 0.5 and np.mean(changes) > 1e-3


def test_drift_compares_the_trainer_with_the_trainer(small_model: Any) -> None:
    """The engine's log-probabilities differ from the trainer's, and the weights have not moved."""
    response = spoken(small_model).trajectories[0].turns[0]
    logprobs = tuple(value - 0.5 for value in response.completion.logprobs)
    said = turn((3, 4), response.completion.token_ids, logprobs=logprobs)
    of_engine = group(trajectory([said], task=a_task("t")), task=a_task("t"))
    maker = ColumnMaker(train_config(CreditConfig(estimator="spo")), small_model, NO_RENDERER)
    maker.make([of_engine])
    assert maker.make([of_engine]).columns["drift"][0] == pytest.approx(0.0, abs=1e-6)


def test_tasks_met_longest_ago_are_forgotten(small_model: Any) -> None:
    meter = DriftMeter(max_tasks=2)
    for name in ("a", "b", "a", "c"):
        meter.remember({"": small_model}, [spoken(small_model, name)], temperature=1.0, tokens_per_microbatch=100)
    assert [key.partition(":")[0] for key in meter.state_dict()] == ["a", "c"]
    lost = group(trajectory([turn([1], [2])], status=Status.ENV_ERROR))
    meter.remember({"": small_model}, [lost], temperature=1.0, tokens_per_microbatch=100)
    assert len(meter.state_dict()) == 2


# ------------------------------------------------------------------------------------------- advantages per token


def token_credit(credit: CreditConfig, **columns: Any) -> tuple[FilteredGroup, ...]:
    groups = two_groups()
    return tuple(filter_groups(groups, credit_groups(groups, credit, columns=columns), 1, "off"))


def test_advantages_per_token_reach_their_tokens(small_model: Any) -> None:
    entropy = np.arange(13, dtype=float)
    credit = CreditConfig(estimator="grpo", modulators=(AepoOptions(),))
    verdicts = token_credit(credit, token_entropy=entropy)
    samples = build_samples(verdicts)
    assert len(samples) == 5, "one row per context window of a valid member"
    reached = [a for s in samples for a in s.columns["advantage"]]
    score = (entropy - entropy.mean()) / entropy.std(ddof=1)
    of_turn = [
        turn.advantage for g in assign_credit(two_groups(), CreditConfig(estimator="grpo")) for r in g for turn in r
    ]
    of_token = np.repeat(of_turn, [2, 3, 1, 4, 2, 1])
    np.testing.assert_allclose(reached, of_token * (1 + 0.2 * score), atol=1e-12)


def test_tokens_that_a_selection_leaves_out_are_masked() -> None:
    credit = CreditConfig(estimator="grpo", selections=(D3sOptions(start_share=0.3),))
    verdicts = token_credit(credit, token_entropy=np.arange(13, dtype=float))
    masks = [s.columns["is_trained"] for s in build_samples(verdicts)]
    kept = [flag for v in verdicts if v.credit.token_keep is not None for flag in v.credit.token_keep.tolist()]
    assert sum(map(sum, masks)) == sum(kept) == 4
    assert [sum(mask) for mask in masks[:2]] == [sum(kept[:5]), sum(kept[5:6])]


def test_credit_per_token_is_recorded_and_read_back(tmp_path: Any) -> None:
    verdicts = token_credit(
        CreditConfig(estimator="grpo", modulators=(AepoOptions(),), selections=(D3sOptions(),)),
        token_entropy=np.arange(13, dtype=float),
    )
    records = tuple(verdict.to_record() for verdict in verdicts)
    write_records(tmp_path / "r.jsonl.gz", records)
    assert read_records(tmp_path / "r.jsonl.gz") == records
    again = [FilteredGroup.of_record(record) for record in read_records(tmp_path / "r.jsonl.gz")]
    for one, other in zip(build_samples(again), build_samples(verdicts), strict=True):
        assert (one.token_ids, one.trajectory, one.columns.keys()) == (
            other.token_ids, other.trajectory, other.columns.keys()
        )  # fmt: skip
        for name, column in one.columns.items():
            np.testing.assert_array_equal(column, other.columns[name])


def test_a_group_whose_tokens_differ_teaches_though_its_turns_do_not() -> None:
    made = group(trajectory([turn([1], [2, 3], reward=1.0)]), trajectory([turn([1], [2, 3])]))
    credit = credit_groups([made], CreditConfig(estimator="grpo"), columns={"num_tokens": [2, 2]})
    for of_token, expected in (([0.5, -0.5, 0.5, -0.5], None), ([0.0] * 4, "zero_variance")):
        flat = replace(credit, advantage=np.zeros(2), token_advantage=np.array(of_token))
        assert [verdict.dropped for verdict in filter_groups([made], flat, 1, "advantage")] == [expected]


# --------------------------------------------------------------------------------------------------- what is needed


def test_what_is_needed_follows_from_the_components() -> None:
    assert needed_columns(CreditConfig()) == set()
    assert "drift" in needed_columns(CreditConfig(estimator="spo"))


def test_what_nobody_can_fill_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="shared_prefix changes nothing where episodes do not branch"):
        train_config(CreditConfig(modulators=(SharedPrefixOptions(),)), group=GroupConfig(group_size=4))
