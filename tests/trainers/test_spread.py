"""Episodes that are spread over ranks: what others see of them, and that several ranks train on them as one does."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from testkit import TESTKIT
from testkit.made_groups import a_task, group, trajectory, turn
from testkit.ranks import forked

from agentgym.credit.columns import FROM_GROUPS, recorded_columns, turn_table
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.rank_limits import how_shared
from agentgym.trainers.data.outline import TEXT_COLUMNS, GroupMetadata, outlined
from agentgym.trainers.data.plan import SKETCHED, RowOutline
from agentgym.trainers.data.samples import build_samples, filter_groups
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.phases.rollouts import reads_texts
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.types import (
    ImagePart,
    MalformedCall,
    Message,
    RewardPart,
    RewardRole,
    Segment,
    Status,
    TextPart,
    ToolCall,
    ToolResult,
    TrajectoryGroup,
)

SECRET = "the lamp is in the third drawer"
PNG = "aVZCT1J3MEtHZ28="


CLUE = (
    f"env.id={TESTKIT / 'clue_env.py'}:Clue-v0",
    'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "max_context_tokens": 256}',
    "columns.answer_template=say: {answer}",
    "sft.num_demos=128",
    "sft.num_epochs=4",
    "sft.mix.weight=0",
    "zero_variance_filter=off",
    "engine.batch_invariant=true",
    "loss.tokens_per_microbatch=256",
    "columns.tokens_per_microbatch=200",
    "groups_per_step=4",
    "group.group_size=3",
    "eval.num_episodes=2",
    "num_steps=2",
)
IGPO = 'credit={"estimator": "igpo", "shapers": [{"kind": "information_gain"}]}'
EMPG = 'credit={"estimator": "grpo", "modulators": [{"kind": "empg"}]}'
AEPO = 'credit={"estimator": "grpo", "modulators": [{"kind": "aepo_advantage"}]}'
ECHO = "loss.echo=0.3"
EPO = 'loss.regularisers=[{"kind": "epo", "coef": 0.1, "phase_steps": 0}]'
SELF = 'loss.regularisers=[{"kind": "self_distill", "coef": 0.5}]'
FIRST = "ranks.rollouts=first"
ABLE = ("env.kwargs.num_tasks=4", "sft.num_epochs=12", "sft.batch_size=8", "sft.optimizer.lr=0.003", "num_steps=3")
"""Episodes that succeed, on tasks that come again."""
ROOM = "model.max_context_tokens=640"
"""Room for a demonstration in the prompt."""
SETTINGS = {
    "igpo and echo": (IGPO, ECHO),
    "empg and epo": (EMPG, EPO),
    "aepo and self_distill": (AEPO, SELF, *ABLE, ROOM),
    "spo": ("credit.estimator=spo", *ABLE),
    "progress": (
        'credit={"estimator": "grpo", "shapers": [{"kind": "spa"}]}',
        "critic.lr=1e-3",
        "critic.fit_updates=1",
        *ABLE,
    ),
    "replay": ('strategy.replay={"kind": "success"}', *ABLE, "seed=3"),
    "remix": ('strategy.replay={"kind": "remix", "share": 0.5}', *ABLE),
    "start and dph": (
        'strategy.replay={"kind": "start_samples", "share": 0.5}',
        'loss={"token_masks": [{"kind": "dph_samples"}], "regularisers": [{"kind": "dph", "coef": 5}]}',
        *ABLE,
    ),
    "the first plays, igpo and echo": (IGPO, ECHO, FIRST),
    "the first plays, self_distill": (SELF, FIRST, *ABLE, ROOM),
}
"""Settings whose scores, critics or stored episodes are shared out over the ranks."""
ACTS = {
    "aepo and self_distill": "self_distill/num_taught",
    "spo": "drift",
    "progress": "progress_grad_norm",
    "replay": "num_replayed",
    "remix": "num_replayed",
    "start and dph": "dph",
    "the first plays, self_distill": "self_distill/num_taught",
}
"""A metric that shows that a setting does something, by the setting's name."""
COMPARED = {"loss", "echo/loss", "self_distill/num_without", "progress_loss", *ACTS.values()}


def eventful_groups() -> list[TrajectoryGroup]:
    """Return two groups with calls, errors, images, hints, branches, sub-agents, copies, windows and a failure."""
    spoken = Message("assistant", SECRET, (ToolCall("look", {"at": SECRET}),), thinking=SECRET)
    broken = Message("assistant", SECRET, (MalformedCall((0, 3), "no name", SECRET), ToolCall("submit", {"text": "7"})))
    shown = Message("user", (TextPart(SECRET), ImagePart(PNG)))
    refused = Message("tool", SECRET, result=ToolResult(SECRET, "look", "1", "NotFound", images=(ImagePart(PNG),)))
    fine = Message("tool", SECRET, result=ToolResult(SECRET, "look", "1"))
    parts = (RewardPart("goal", 1.0), RewardPart("tidy", -0.1, RewardRole.COST))
    first = [
        replace(turn(range(90), range(5)), action=spoken, replies=(refused, shown), state_key=SECRET * 3),
        replace(turn([3], [4, 5], index=1), action=broken, replies=(fine,), state_key="hall", reward_parts=parts),
    ]
    second = [
        replace(first[0], num_copied_tokens=5),
        replace(turn([6], [7, 8, 9], index=1), hint=SECRET, feedback=SECRET, state_key="hall", is_valid=False),
    ]
    third = [replace(turn([1], [2]), played=spoken, is_void=True, num_thinking_tokens=1, state_key="hall")]
    wide = replace(trajectory(first, third), observation=(shown,), success=True, task_type="lamp")
    helper = Segment(tuple(third), agent="finder", invocation=0)
    one = group(
        wide,
        trajectory(third, status=Status.ENV_ERROR),
        replace(trajectory(second), parent=0, branch_turn=1, num_retries=1, voids=("look",), success=False),
        replace(trajectory(first), segments=(Segment(tuple(first)), helper), success=False),
        task=a_task("lamp"),
    )
    mixed = replace(turn([1, 2], [3, 4]), state_key="hall")
    mixed = replace(mixed, completion=replace(mixed.completion, policy_versions=(1, 2)))
    two = group(
        replace(trajectory([mixed], task=a_task("bed")), success=True, status=Status.TRUNCATED_TURNS),
        replace(trajectory([*first], task=a_task("bed")), success=False, attempts=(wide,), player=1),
        ordinal=1,
    )
    return [one, two]


def same(one: Any, other: Any) -> bool:
    """Return True if two columns are equal."""
    return bool(np.array_equal(np.asarray(one, dtype=object), np.asarray(other, dtype=object)))


@pytest.mark.parametrize("with_texts", [True, False])
def test_credit_and_metrics_of_outlines_are_those_of_the_episodes(with_texts: bool) -> None:
    groups = eventful_groups()
    seen = [outlined(group, with_texts=with_texts) for group in groups]
    names = [name for name in FROM_GROUPS if with_texts or name not in TEXT_COLUMNS]
    columns, of_outlines = recorded_columns(groups, names), recorded_columns(seen, names)
    assert columns.keys() == of_outlines.keys()
    for name, column in columns.items():
        assert same(column, of_outlines[name]), name
    for field in ("reward", "anchor", "is_valid", "group", "trajectory"):
        assert same(getattr(turn_table(groups), field), getattr(turn_table(seen), field)), field
    config = CreditConfig(estimator="gigpo")
    verdicts = filter_groups(groups, credit_groups(groups, config), 1, "advantage")
    of_seen = filter_groups(seen, credit_groups(seen, config), 1, "advantage")
    assert [one.dropped for one in verdicts] == [one.dropped for one in of_seen]
    assert describe_rollouts(verdicts, 3) == pytest.approx(describe_rollouts(of_seen, 3), nan_ok=True)
    for one, other in zip(verdicts, of_seen, strict=True):
        assert np.array_equal(one.credit.advantage, other.credit.advantage)


def test_an_outline_has_no_tokens_texts_or_images() -> None:
    (one, _) = eventful_groups()
    assert SECRET.encode() in pickle.dumps(one) and PNG.encode() in pickle.dumps(one)
    bare, with_texts = (pickle.dumps(outlined(one, with_texts=flag)) for flag in (False, True))
    assert SECRET.encode() not in bare and PNG.encode() not in bare
    assert SECRET.encode() in with_texts and PNG.encode() not in with_texts
    long = group(trajectory([turn(range(1000, 9000), range(1000, 9000))]))
    assert len(pickle.dumps(outlined(long, with_texts=True))) < 0.05 * len(pickle.dumps(long))
    seen = pickle.loads(pickle.dumps(outlined(one, with_texts=False)))
    assert isinstance(seen, GroupMetadata)
    (first, *_) = seen.trajectories[0].turns
    assert len(first.prompt_ids) == 90 and first.num_sampled_tokens == 5
    for values in (first.prompt_ids, first.completion.token_ids, first.completion.logprobs):
        with pytest.raises(AssertionError, match="another rank has these values"):
            list(values)


def test_rows_are_numbered_as_if_their_rank_had_all_groups() -> None:
    groups = eventful_groups()
    verdicts = filter_groups(groups, credit_groups(groups, CreditConfig(estimator="returns")), 1, "off")
    every = build_samples(verdicts)
    for own in (0, 1):
        seen = [
            verdict if at == own else replace(verdict, group=outlined(verdict.group, with_texts=False))
            for at, verdict in enumerate(verdicts)
        ]
        held = build_samples(seen)
        assert held and [(row.ordinal, row.trajectory, row.token_ids) for row in held] == [
            (row.ordinal, row.trajectory, row.token_ids) for row in every if row.ordinal == own
        ]


def sketch(*tokens: int) -> RowOutline:
    return RowOutline(trajectory=0, ordinal=0, num_tokens=len(tokens), trained=(), path=tokens).sketched()


def test_sketches_tell_how_much_two_rows_share() -> None:
    one = sketch(*range(1000))
    assert len(one.path) == 1000 // SKETCHED, "one number for 64 tokens"
    for num_shared in (0, 63, 64, 200, 999):
        other = sketch(*range(num_shared), *([7] * 1000))
        assert num_shared - SKETCHED < one.num_shared(other) <= num_shared


@pytest.mark.slow
@pytest.mark.parametrize("which", SETTINGS)
def test_ranks_with_a_part_of_the_episodes_make_the_run_of_one_rank(
    which: str, tmp_path: Path, warm_python: str
) -> None:
    command = ("tiny", *CLUE, *SETTINGS[which], "--json", "--run-dir")
    for count in (1, 2):
        forked(warm_python, count, "-m", "agentgym", "train", *command, str(tmp_path / str(count)))
    one, two = (read_records(record_path(tmp_path / str(count), 1)) for count in (1, 2))
    assert one and [record.group.ordinal for record in one] == [record.group.ordinal for record in two]
    for record, other in zip(one, two, strict=True):
        assert record.columns.keys() == other.columns.keys()
        for name, column in record.columns.items():
            np.testing.assert_allclose(
                np.concatenate(column, None), np.concatenate(other.columns[name], None), atol=1e-4
            )
    rows = [read_json_lines(tmp_path / str(count) / "metrics.jsonl") for count in (1, 2)]
    for of_one, of_two in zip(*rows, strict=True):
        assert of_one.keys() == of_two.keys()
        for name in of_one.keys() & COMPARED:
            assert of_two[name] == pytest.approx(of_one[name], rel=1e-4, abs=1e-4), name
    assert any(row.get(ACTS.get(which, "loss")) for row in rows[1])
    weights = [load_file(tmp_path / str(count) / "model" / "model.safetensors") for count in (1, 2)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=5e-5, rtol=0)


def test_a_run_says_who_plays_and_who_receives_the_episodes() -> None:
    recipe = apply_overrides(load_recipe("tiny"), ["groups_per_step=8"])
    told = "2 ranks: each plays 1/2 of a step's groups; each receives the rows that it trains"
    assert how_shared(recipe, 2) == told
    assert how_shared(recipe, 3).startswith("3 ranks: each plays 1/3 of a step's groups;")
    first = apply_overrides(recipe, ["ranks.rollouts=first", "loss.echo=0.1"])
    told = "2 ranks: the first one plays (ranks.rollouts=first); each receives the rows that it trains"
    assert how_shared(first, 2) == told
    why = "pipeline.mode=async and groups_per_step=8, which 3 ranks do not divide"
    ahead = apply_overrides(recipe, ["pipeline.mode=async"])
    assert how_shared(ahead, 3) == f"3 ranks: the first one plays ({why}); each receives the rows that it trains"


def test_texts_go_along_where_credit_compares_them() -> None:
    recipe = load_recipe("tiny")
    assert not reads_texts(recipe)
    alike = 'credit={"estimator": "gigpo", "options": {"kind": "gigpo", "anchors": "similarity"}}'
    assert reads_texts(apply_overrides(recipe, [alike]))


@pytest.mark.slow
def test_what_episodes_cost_a_rank_is_measured(warm_run: Callable[..., str]) -> None:
    told = warm_run("benchmarks/plan/episodes.py", "--ranks", 2, "--groups", 2, "--turns", 2)
    found = [json.loads(line) for line in told.splitlines()]
    assert [row["way"] for row in found] == ["everything", "spread"]
    assert all(sum(row["trained_tokens"]) == 2 * 8 * 2 * 150 for row in found)


def test_one_rank_sends_nothing() -> None:
    ranks = Ranks()
    assert ranks.exchanged([3]) == [3]
    assert ranks.fetched({1: "a", 2: "b"}, [[2]]) == {2: "b"}
    assert list(ranks.to_first("ab", 3)) == [["a"], ["b"], []]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "num_ranks", "context_size"), [("rows", 2, 1), ("packed", 2, 1), ("rows", 4, 2), ("prefix", 3, 1)]
)
def test_ranks_that_have_a_part_of_the_groups_train_as_one_rank(
    layout: str, num_ranks: int, context_size: int, tmp_path: Path, warm_python: str
) -> None:
    found = []
    script = str(TESTKIT / "ranked_update.py")
    for count, size, where in ((1, 1, "everywhere"), (num_ranks, context_size, "spread")):
        out = tmp_path / f"{count}.pt"
        forked(warm_python, count, script, str(out), layout, "float32", str(size), where)
        found.append(torch.load(out, weights_only=True))
    one, several = found
    for name, tensor in one["model"].items():
        torch.testing.assert_close(several["model"][name], tensor, atol=2e-6, rtol=0)
    for expected, got in zip(one["metrics"], several["metrics"], strict=True):
        assert got == pytest.approx(expected, abs=1e-4)
    keys = [[tuple(row[name] for name in ("ordinal", "member", "turn")) for row in each["scores"]] for each in found]
    assert sorted(keys[0]) == sorted(keys[1]), "each turn's scores once, from the rank that trained it"
    lanes = num_ranks // context_size
    for minibatches in zip(*several["rows"], strict=True):
        total = minibatches[0][1]
        assert all(received < total for received, _ in minibatches) or total < 2 * lanes, "no rank has all rows"
    assert sum(received for rows in several["rows"] for received, _ in rows) < 1.7 * context_size * sum(
        total for _, total in several["rows"][0]
    )
