"""Components with a memory, shapers and selections against their rules word for word, on random input."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from testkit.credit_tables import Batch, assert_close, batch_table, batches, few

from agentgym.credit.estimators.gae import archer
from agentgym.credit.estimators.rae import rae
from agentgym.credit.estimators.spo import spo
from agentgym.credit.modulators.branches import r3l_pivot
from agentgym.credit.parts import on_last_turn
from agentgym.credit.selections.downsampling import RocOptions, roc
from agentgym.credit.selections.filters import DynamicSamplingOptions, dynamic_sampling, overlong_mask, void_turns
from agentgym.credit.shapers.penalties import OverlongOptions, overlong_penalty
from agentgym.credit.shapers.tool_use import OtcOptions, otc


def per_turn(batch: Batch, values: list[bool]) -> list[bool]:
    return [value for (_, turns), value in zip(batch, values, strict=True) for _ in turns]


@few
@given(batches, st.lists(st.floats(0, 0.2), min_size=3, max_size=3))
def test_spo(batch: Batch, drifts: list[float]) -> None:
    won = [float(sum(r for r, *_ in turns) > 0) for _, turns in batch]
    table = batch_table(batch)
    table = replace(table, reward=on_last_turn(table, np.array(won)))
    table = table.with_columns(drift=[drifts[group] for group, turns in batch for _ in turns])
    tracker = {"x": (2.0, 3.0), "y": (0.7, 0.9)}
    credited, updated = spo(table, tracker)
    raw = []
    for (group, _), r in zip(batch, won, strict=True):
        alpha, beta = tracker.get("xyz"[group], (0.5, 0.5))
        raw.append(r - alpha / (alpha + beta))
    std = float(np.std(raw, ddof=1))
    expected = [(x - float(np.mean(raw))) / (std + 1e-8) if std >= 1e-6 else 0.0 for x in raw]
    assert_close(credited.advantage, [x for (_, t), x in zip(batch, expected, strict=True) for _ in t], 1e-6)
    for group in {group for group, _ in batch}:
        key = "xyz"[group]
        results = [r for (g, _), r in zip(batch, won, strict=True) if g == group]
        drift = drifts[group] if key in tracker else 0.0
        rho = min(max(2 ** (-drift / 0.06), 0.875), 0.96)
        alpha, beta = tracker.get(key, (0.5, 0.5))
        assert_close(updated[key], (rho * alpha + sum(results), rho * beta + len(results) - sum(results)), 1e-9)


@few
@given(batches)
def test_rae(batch: Batch) -> None:
    baselines: dict[int, float] = {}
    expected = []
    for _, turns in batch:
        of_role = {}
        for role in (0, 1):
            mine = [r for t, (r, *_) in enumerate(turns) if t % 2 == role]
            if mine:
                before = baselines.get(role, 0.0)
                of_role[role] = sum(mine) - before
                baselines[role] = 0.95 * before + 0.05 * sum(mine)
        expected += [of_role[t % 2] for t in range(len(turns))]
    credited, updated = rae(batch_table(batch), {})
    assert_close(credited.advantage, expected, 1e-9)
    assert_close(
        [updated[str(role)] for role in sorted(baselines)], [baselines[role] for role in sorted(baselines)], 1e-9
    )


@few
@given(batches)
def test_archer(batch: Batch) -> None:
    table = batch_table(batch)
    assert table.value is not None and table.q_value is not None
    targets, at = [], 0
    for _, turns in batch:
        for t, (r, *_) in enumerate(turns):
            targets.append(r + (0.95 * table.value[at + 1] if t + 1 < len(turns) else 0.0))
            at += 1
    credited = archer(table)
    assert_close(credited.advantage, table.q_value - table.value, 1e-9)
    assert_close(credited.return_to_go, targets, 1e-9)


@few
@given(batches)
def test_filters(batch: Batch) -> None:
    table = batch_table(batch)
    parts = [(turns[-1][0], sum(r for r, *_ in turns[:-1])) for _, turns in batch]
    groups = [[parts[j] for j in range(len(batch)) if batch[j][0] == group] for group, _ in batch]
    by_outcome = [len(members) == 1 or len({m[0] for m in members}) > 1 for members in groups]
    by_part = [len(members) == 1 or any(len({m[k] for m in members}) > 1 for k in (0, 1)) for members in groups]
    assert dynamic_sampling(table).tolist() == per_turn(batch, by_outcome)
    components = DynamicSamplingOptions(metric="components")
    assert dynamic_sampling(table, components).tolist() == per_turn(batch, by_part)
    assert void_turns(table).tolist() == per_turn(batch, [all(a != 2 for _, _, a, _ in t) for _, t in batch])
    assert overlong_mask(table).tolist() == per_turn(batch, [len(t) != 5 for _, t in batch])


@few
@given(batches)
def test_overlong_penalty(batch: Batch) -> None:
    shaped = overlong_penalty(batch_table(batch), OverlongOptions(max_tokens=12, buffer_tokens=8, factor=0.5)).table
    expected = []
    for _, turns in batch:
        length = sum(n for *_, n in turns)
        penalty = -0.5 * min(max((length - 4) / 8, 0), 1)
        expected += [r + (penalty if t == len(turns) - 1 else 0.0) for t, (r, *_) in enumerate(turns)]
    assert_close(shaped.reward, expected, 1e-9)


@few
@given(batches, st.integers(0, 4))
def test_otc(batch: Batch, known: int) -> None:
    fewest = {"x": known}
    calls = [sum(a for _, _, a, _ in turns) for _, turns in batch]
    for (group, turns), m in zip(batch, calls, strict=True):
        key = "xyz"[group]
        if turns[-1][0] > 0:
            fewest[key] = min(fewest.get(key, m), m)
    expected = []
    for (group, turns), m in zip(batch, calls, strict=True):
        n = fewest.get("xyz"[group], 0)
        if n == 0:
            factor = 1.0 if m == 0 else math.cos(m * math.pi / (2 * m + 1))
        else:
            factor = math.sin(2 * n * m / (m + n) * math.pi / (2 * n))
        expected += [r * factor if t == len(turns) - 1 else r for t, (r, *_) in enumerate(turns)]
    shaped, updated = otc(batch_table(batch), {"x": known}, OtcOptions())
    assert_close(shaped.table.reward, expected, 1e-9)
    assert updated == fewest


@few
@given(batches, st.integers(2, 5))
def test_roc(batch: Batch, keep: int) -> None:
    options = RocOptions(keep=keep)
    expected = [False] * len(batch)
    total = [sum(r for r, *_ in turns) for _, turns in batch]
    for group in {group for group, _ in batch}:
        index = [i for i, (g, _) in enumerate(batch) if g == group]
        if len(index) < keep or len({total[i] for i in index}) == 1:
            continue
        positive, zeros = [i for i in index if total[i] > 0], [i for i in index if total[i] <= 0]
        nz, num_p = round(len(zeros) * keep / len(index)), round(len(positive) * keep / len(index))
        if nz <= min(2, len(zeros)):
            nz = min(2, len(zeros))
            num_p = keep - nz
        if num_p <= min(2, len(positive)):
            num_p = min(2, len(positive))
            nz = keep - num_p
        errors = {i: tool_errors(batch[i][1]) for i in positive}
        kept = index if nz < 2 and num_p < 2 else sorted(positive, key=errors.__getitem__)[:num_p] + zeros[:nz]
        for i in kept:
            expected[i] = True
    assert roc(batch_table(batch), options).tolist() == per_turn(batch, expected)


def tool_errors(turns: list[tuple[float, str, int, int]]) -> float:
    """Share of failed calls as ``batch_table`` counts them."""
    calls = sum(a for _, _, a, _ in turns)
    return sum(min(a, 1) for _, _, a, _ in turns) / calls if calls else 0.5


@few
@given(batches, st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_r3l_pivot(batch: Batch, pivots: list[int]) -> None:
    """Every second trajectory is a retry of the one before it, where they share a group."""
    parents = [i - 1 if i % 2 and batch[i][0] == batch[i - 1][0] else -1 for i in range(len(batch))]
    table = batch_table(batch).with_columns(
        parent=[parents[i] for i, (_, turns) in enumerate(batch) for _ in turns],
        branch_turn=[pivots[i] for i, (_, turns) in enumerate(batch) for _ in turns],
    )
    advantage = np.linspace(-1, 1, len(table))
    total = [sum(r for r, *_ in turns) for _, turns in batch]
    amplified, weights, at = [], [], 0
    for i, (_, turns) in enumerate(batch):
        pivot = pivots[i] if parents[i] >= 0 else 0
        if i + 1 < len(batch) and parents[i + 1] == i:
            pivot = pivots[i + 1]
        for t in range(len(turns)):
            a = float(advantage[at])
            a = 3 * a if a > 0 else a
            amplified.append(1.0 if total[i] >= 1 else a)
            weights.append(0.0 if t < pivot else 1.0)
            at += 1
    result = r3l_pivot(table, advantage)
    assert_close(result.advantage, amplified, 1e-9)
    assert_close(result.loss_weight, weights, 1e-9)
