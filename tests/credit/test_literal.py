"""Every vectorised component against its formula word for word, in plain loops, on random input."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from testkit.credit_tables import Batch, assert_close, batch_table, batches, few

from agentgym.credit.estimators.asymre import asymre
from agentgym.credit.estimators.gae import bi_level_gae, poad, token_gae, turn_gae
from agentgym.credit.estimators.gigpo import GigpoOptions, gigpo
from agentgym.credit.estimators.group_relative import flow_grpo, mc_grpo, opo, reinforce_pp_baseline, rloo
from agentgym.credit.estimators.grpo import grpo
from agentgym.credit.estimators.hgpo import HgpoOptions, hgpo
from agentgym.credit.estimators.igpo import igpo
from agentgym.credit.estimators.m_grpo import m_grpo
from agentgym.credit.estimators.multi_reward import gdpo, mt_grpo
from agentgym.credit.estimators.opmd import opmd
from agentgym.credit.estimators.reinforce_pp import reinforce_pp
from agentgym.credit.estimators.ui_s1 import UiS1Options, ui_s1
from agentgym.credit.modulators.entropy import aepo_advantage, empg
from agentgym.credit.modulators.salt import SaltOptions, salt
from agentgym.credit.shapers.gating import GraOptions, g_ra


def returns(batch: Batch) -> list[float]:
    return [sum(r for r, *_ in turns) for _, turns in batch]


def mates(batch: Batch, index: int) -> list[int]:
    return [j for j, (group, _) in enumerate(batch) if group == batch[index][0]]


def per_turn(batch: Batch, values: list[float]) -> list[float]:
    return [value for (_, turns), value in zip(batch, values, strict=True) for _ in turns]


def z(x: float, values: list[float], ddof: int = 1, eps: float = 1e-6) -> float:
    if len(values) <= ddof:
        return 0.0
    std = float(np.std(values, ddof=ddof))
    return 0.0 if std < 1e-6 else (x - float(np.mean(values))) / (std + eps)


def whitened(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    variance = sum((x - mean) ** 2 for x in values) / (len(values) - 1)
    return [(x - mean) / math.sqrt(variance + 1e-8) for x in values]


@few
@given(batches)
def test_grpo(batch: Batch) -> None:
    total = returns(batch)
    expected = [z(total[i], [total[j] for j in mates(batch, i)]) for i in range(len(batch))]
    assert_close(grpo(batch_table(batch)).advantage, per_turn(batch, expected), 1e-9)


@few
@given(batches)
def test_rloo(batch: Batch) -> None:
    total = returns(batch)
    others = [[total[j] for j in mates(batch, i) if j != i] for i in range(len(batch))]
    expected = [total[i] - sum(o) / len(o) if o else 0.0 for i, o in enumerate(others)]
    assert_close(rloo(batch_table(batch)).advantage, per_turn(batch, expected), 1e-9)


@few
@given(batches)
def test_asymre_and_opmd(batch: Batch) -> None:
    total = returns(batch)
    groups = [[total[j] for j in mates(batch, i)] for i in range(len(batch))]
    below = [total[i] - (sum(g) / len(g) - 0.3) for i, g in enumerate(groups)]
    assert_close(asymre(batch_table(batch), delta=-0.3).advantage, per_turn(batch, below), 1e-9)
    soft = [math.log(sum(math.exp(value) for value in g) / len(g)) for g in groups]
    expected = [total[i] - soft[i] for i in range(len(batch))]
    assert_close(opmd(batch_table(batch)).advantage, per_turn(batch, expected), 1e-9)


@few
@given(batches)
def test_opo(batch: Batch) -> None:
    total, length = returns(batch), [sum(n for *_, n in turns) for _, turns in batch]
    baseline = [
        sum(length[j] * total[j] for j in mates(batch, i)) / sum(length[j] for j in mates(batch, i))
        for i in range(len(batch))
    ]
    expected = [total[i] - baseline[i] for i in range(len(batch))]
    assert_close(opo(batch_table(batch)).advantage, per_turn(batch, expected), 1e-9)


@few
@given(batches)
def test_flow_grpo(batch: Batch) -> None:
    total = returns(batch)
    rows = [(group, total[i]) for i, (group, turns) in enumerate(batch) for _ in turns]
    expected = [z(x, [y for h, y in rows if h == group]) for group, x in rows]
    assert_close(flow_grpo(batch_table(batch), agents="all").advantage, expected, 1e-9)


@few
@given(batches)
def test_mc_grpo(batch: Batch) -> None:
    total, expected, bounded = returns(batch), [0.0] * len(batch), [0.0] * len(batch)
    for i in range(len(batch)):
        group = [total[j] for j in mates(batch, i)]
        median = sorted(group)[(len(group) - 1) // 2]
        mad = sorted(abs(x - median) for x in group)[(len(group) - 1) // 2]
        moving = sum(x != median for x in group)
        expected[i] = (total[i] - median) / (mad + 1e-3) * len(group) / max(moving, 1)
        width = max(group) - min(group)
        scale = mad if mad > 0 and mad >= 0.1 * width else width
        bounded[i] = (total[i] - median) / (scale + 1e-3) * len(group) / max(moving, 1)
    credited = mc_grpo(batch_table(batch), least_mad=0.0)
    assert_close(credited.advantage, per_turn(batch, expected), 1e-9)
    assert_close(mc_grpo(batch_table(batch)).advantage, per_turn(batch, bounded), 1e-9)
    assert credited.loss_weight is not None
    table = batch_table(batch)
    for group_id in {group for group, _ in batch}:
        dropped = {int(t) for t in table.trajectory[(table.group == group_id) & (credited.loss_weight == 0)]}
        assert len(dropped) == 1


@few
@given(batches)
def test_reinforce_pp_baseline(batch: Batch) -> None:
    total = returns(batch)
    centred = [total[i] - float(np.mean([total[j] for j in mates(batch, i)])) for i in range(len(batch))]
    tokens = [centred[i] for i, (_, turns) in enumerate(batch) for *_, n in turns for _ in range(n)]
    assert_close(reinforce_pp_baseline(batch_table(batch)).advantage, first_token(batch, whitened(tokens)), 1e-6)


def first_token(batch: Batch, tokens: list[float]) -> list[float]:
    """The value of each turn's first token, all tokens of a turn being equal."""
    counts = [n for _, turns in batch for *_, n in turns]
    starts = np.cumsum([0, *counts[:-1]])
    return [tokens[start] for start in starts]


@few
@given(batches, st.sampled_from([1.0, 0.9, 0.5]))
def test_reinforce_pp(batch: Batch, gamma: float) -> None:
    expected: list[float] = []
    for _, turns in batch:
        rewards = [r if k == n - 1 else 0.0 for r, _, _, n in turns for k in range(n)]
        expected += [sum(gamma ** (u - k) * rewards[u] for u in range(k, len(rewards))) for k in range(len(rewards))]
    assert_close(reinforce_pp(batch_table(batch), gamma=gamma).token_advantage, whitened(expected), 1e-6)


@few
@given(batches, st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.0]), st.booleans())
def test_hgpo(batch: Batch, history: int, alpha: float, is_std: bool) -> None:
    rows = [(group, turns, t) for group, turns in batch for t in range(len(turns))]
    to_go = [sum(0.95 ** (u - t) * turns[u][0] for u in range(t, len(turns))) for _, turns, t in rows]
    expected = []
    for (group, turns, t), own in zip(rows, to_go, strict=True):
        total = weight = 0.0
        for k in range(1, min(history + 1, t + 1) + 1):
            context = [s for _, s, *_ in turns[t - k + 1 : t + 1]]
            members = [
                value
                for (g, other, u), value in zip(rows, to_go, strict=True)
                if g == group and u >= k - 1 and [s for _, s, *_ in other[u - k + 1 : u + 1]] == context
            ]
            centred = own - float(np.mean(members))
            if len(members) < 2 or abs(centred) < 1e-12:
                continue
            level = centred / (float(np.std(members)) + 1e-6) if is_std else centred
            total += (k + 1) ** alpha * level
            weight += (k + 1) ** alpha
        expected.append(total / (weight + 1e-6) if weight else 0.0)
    norm = "mean_std_norm" if is_std else "mean_norm"
    options = HgpoOptions(history=history, weight_alpha=alpha)
    assert_close(hgpo(batch_table(batch), norm=norm, options=options).advantage, expected, 1e-6)


@few
@given(batches)
def test_gigpo_without_revisits(batch: Batch) -> None:
    rows = [(i, group, turns, t) for i, (group, turns) in enumerate(batch) for t in range(len(turns))]
    to_go = {(i, t): sum(0.95 ** (u - t) * turns[u][0] for u in range(t, len(turns))) for i, _, turns, t in rows}
    expected = []
    for i, group, turns, t in rows:
        firsts: dict[int, float] = {}
        for j, other_group, other, u in rows:
            if other_group == group and other[u][1] == turns[t][1]:
                firsts.setdefault(j, to_go[j, u])
        expected.append(to_go[i, t] - float(np.mean(list(firsts.values()))) if len(firsts) > 1 else 0.0)
    table = batch_table(batch)
    whole = gigpo(table, norm="mean_norm", options=GigpoOptions(revisits=False)).advantage
    assert_close(whole - gigpo(table, norm="mean_norm", step_weight=0.0).advantage, expected, 1e-9)


@few
@given(batches, st.booleans(), st.sampled_from([1.0, 0.9]))
def test_igpo(batch: Batch, is_joint: bool, gamma: float) -> None:
    # batch_table takes every reward but the last for the gain too
    total = returns(batch)
    gains = [(group, r) for group, turns in batch for r, *_ in turns[:-1]]
    expected: list[float] = []
    for i, (group, turns) in enumerate(batch):
        of_gain = [r for g, r in gains if g == group]
        of_outcome = [total[j] for j in mates(batch, i)]
        both = of_gain + of_outcome

        def normal(x: float, values: list[float]) -> float:
            std = 1.0 if len(values) <= 1 else math.sqrt(float(np.var(values)) + 1e-8)
            return (x - float(np.mean(values))) / (std + 1e-6)

        scaled = [normal(r, both if is_joint else of_gain) for r, *_ in turns[:-1]]
        scaled.append(normal(total[i], both if is_joint else of_outcome))
        expected += [sum(gamma ** (u - t) * scaled[u] for u in range(t, len(scaled))) for t in range(len(scaled))]
    normalisation = "joint" if is_joint else "separate"
    assert_close(igpo(batch_table(batch), normalisation=normalisation, gamma=gamma).advantage, expected, 1e-6)


@few
@given(batches)
def test_gdpo(batch: Batch) -> None:
    parts = [[turns[-1][0] for _, turns in batch], [sum(r for r, *_ in turns[:-1]) for _, turns in batch]]
    total = [sum(z(part[i], [part[j] for j in mates(batch, i)], eps=1e-4) for part in parts) for i in range(len(batch))]
    expected = [z(x, total, eps=1e-4) for x in total]
    assert_close(gdpo(batch_table(batch)).advantage, per_turn(batch, expected), 1e-6)


@few
@given(batches)
def test_mt_grpo(batch: Batch) -> None:
    outcome = [turns[-1][0] for _, turns in batch]
    expected = []
    for i, (group, turns) in enumerate(batch):
        of_outcome = z(outcome[i], [outcome[j] for j in mates(batch, i)], eps=1e-4)
        if len(turns) == 1:
            expected.append(z(returns(batch)[i], [returns(batch)[j] for j in mates(batch, i)], eps=1e-4))
            continue
        for t in range(len(turns) - 1):
            peers = [other[t][0] if t < len(other) - 1 else 0.0 for g, other in batch if g == group]
            expected.append(of_outcome + z(turns[t][0], peers, eps=1e-4))
        expected.append(of_outcome)
    assert_close(mt_grpo(batch_table(batch)).advantage, expected, 1e-6)


@few
@given(batches, st.booleans(), st.booleans(), st.sampled_from([1.0, 0.5]))
def test_ui_s1(batch: Batch, is_std: bool, of_turns: bool, gamma: float) -> None:
    # batch_table has the turns of action 1 patched
    total = returns(batch)
    rows: list[tuple[int, int, float, float]] = []  # group, turn, score, return
    for i, (group, turns) in enumerate(batch):
        carried, backwards = 0.0, []
        for r, _, action, _ in reversed(turns):
            carried = 0.0 if action == 1 else r + gamma * carried
            backwards.append(r if action == 1 else carried)
        to_go = backwards[::-1]
        rows += [(group, t, r if of_turns else total[i], to_go[t]) for t, (r, *_) in enumerate(turns)]

    def normal(x: float, values: list[float]) -> float:
        return z(x, values) if is_std else x - float(np.mean(values))

    expected = []
    for group, t, score, to_go_t in rows:
        scores = [x for g, _, x, _ in rows if g == group]
        steps = [x for g, u, _, x in rows if (g, u) == (group, t)]
        alone = score / (1 + 1e-6) if is_std else score
        expected.append((alone if len(scores) == 1 else normal(score, scores)) + 2.0 * normal(to_go_t, steps))
    options = UiS1Options(
        norm="mean_std_norm" if is_std else "mean_norm", gamma=gamma, episode_score="turn" if of_turns else "trajectory"
    )
    assert_close(ui_s1(batch_table(batch), options, step_weight=2.0).advantage, expected, 1e-6)


@few
@given(batches)
def test_m_grpo(batch: Batch) -> None:
    # batch_table lets roles 0 and 1 take turns, each pair of turns being one invocation
    main = [sum(r for t, (r, *_) in enumerate(turns) if t % 2 == 0) for _, turns in batch]
    calls = [(group, 0.5 * main[i] + 0.5 * r) for i, (group, turns) in enumerate(batch) for r, *_ in turns[1::2]]
    expected = []
    for i, (group, turns) in enumerate(batch):
        for t, (r, *_) in enumerate(turns):
            if t % 2 == 0:
                expected.append(z(main[i], [main[j] for j in mates(batch, i)]))
            else:
                expected.append(z(0.5 * main[i] + 0.5 * r, [x for g, x in calls if g == group]))
    assert_close(m_grpo(batch_table(batch)).advantage, expected, 1e-9)


@few
@given(batches, st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 0.5]))
def test_poad_backs_up_within_and_between_actions(batch: Batch, action: float, token: float, lam: float) -> None:
    """The release's loops over turns and their tokens, backwards; a turn is an action."""
    table = batch_table(batch)
    assert table.token_value is not None
    values, expected, at = table.token_value.tolist(), [], 0
    for _, turns in batch:
        starts = [at + sum(n for _, _, _, n in turns[:index]) for index in range(len(turns))]
        at += sum(n for _, _, _, n in turns)
        carried, backwards = 0.0, []
        for index in reversed(range(len(turns))):
            reward, num_tokens = turns[index][0], turns[index][3]
            for k in reversed(range(num_tokens)):
                value = values[starts[index] + k]
                if k == num_tokens - 1:
                    is_end = index == len(turns) - 1
                    ahead = 0.0 if is_end else values[starts[index + 1]]
                    carried = reward + action * ahead - value + action * lam * (0.0 if is_end else carried)
                else:
                    carried = token * values[starts[index] + k + 1] - value + token * lam * carried
                backwards.append(carried)
        expected += backwards[::-1]
    credited = poad(table, gamma_action=action, gamma_token=token, lam=lam, whitened=False)
    assert_close(credited.token_advantage, expected, 1e-9)


@few
@given(batches, st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.5]))
def test_token_gae_passes_over_observations(batch: Batch, gamma: float, lam: float) -> None:
    """verl's backward loop with observation tokens of absurd value between turns, carried through unchanged."""
    table = batch_table(batch)
    assert table.token_value is not None
    values, expected, at = table.token_value.tolist(), [], 0
    for _, turns in batch:
        sequence: list[tuple[float, float, bool]] = []
        for r, _, _, n in turns:
            sequence += [(0.0, 99.0, False)] * 2
            sequence += [(r if k == n - 1 else 0.0, values[at + k], True) for k in range(n)]
            at += n
        ahead = carried = 0.0
        backwards = []
        for reward, value, is_action in reversed(sequence):
            if is_action:
                carried = reward + gamma * ahead - value + gamma * lam * carried
                ahead = value
                backwards.append(carried)
        expected += backwards[::-1]
    assert_close(token_gae(table, gamma=gamma, lam=lam, whitened=False).token_advantage, expected, 1e-9)


@few
@given(batches)
def test_turn_gae_telescopes_to_returns(batch: Batch) -> None:
    table = batch_table(batch)
    assert table.value is not None
    credited = turn_gae(table, gamma=0.9, lam=1.0, whitened=False)
    expected = [
        sum(0.9 ** (u - t) * turns[u][0] for u in range(t, len(turns))) for _, turns in batch for t in range(len(turns))
    ]
    assert_close(credited.return_to_go, expected, 1e-9)


@few
@given(batches)
def test_bi_level_gae(batch: Batch) -> None:
    table = batch_table(batch)
    assert table.token_value is not None
    values, expected, at = table.token_value.tolist(), [], 0
    for _, turns in batch:
        spans = []
        for *_, n in turns:
            spans.append((at, at + n))
            at += n
        ends = [values[stop - 1] for _, stop in spans]
        high = [0.0] * len(turns)
        for j in reversed(range(len(turns))):
            after, following = (ends[j + 1], high[j + 1]) if j + 1 < len(turns) else (0.0, 0.0)
            high[j] = turns[j][0] + 0.95 * after - ends[j] + 0.95 * 0.8 * following
        for (start, stop), top in zip(spans, high, strict=True):
            inside = [top]
            for k in reversed(range(start, stop - 1)):
                inside.append(0.9 * values[k + 1] - values[k] + 0.9 * 0.8 * inside[-1])
            expected += inside[::-1]
    credited = bi_level_gae(table, gamma=0.9, lam=0.8, gamma_high=0.95, whitened=False)
    assert_close(credited.token_advantage, expected, 1e-9)


@few
@given(batches, st.integers(1, 3))
def test_salt(batch: Batch, history: int) -> None:
    table = batch_table(batch)
    advantage = np.arange(len(table), dtype=np.float64) ** 1.5
    edges = []
    for i, (group, turns) in enumerate(batch):
        for t, (_, _, action, _) in enumerate(turns):
            before = tuple(s for _, s, *_ in turns[max(0, t - history + 1) : t + 1])
            after = turns[t + 1][1] if t + 1 < len(turns) else ("end", i)
            edges.append((group, before, min(t + 1, history), action, after))
    expected = [np.mean([advantage[j] for j, other in enumerate(edges) if other == edge]) for edge in edges]
    assert_close(salt(table, advantage, SaltOptions(history=history)).advantage, expected, 1e-9)


@few
@given(batches)
def test_empg(batch: Batch) -> None:
    table = batch_table(batch)
    assert table.entropy is not None
    advantage = np.linspace(-1, 1, len(table))
    low, high = min(table.entropy), max(table.entropy)
    scaled = [(h - low) / (high - low + 1e-8) for h in table.entropy]
    mean = sum(math.exp(-h) for h in scaled) / len(scaled)
    expected = []
    for row, own in enumerate(scaled):
        is_last = row + 1 == len(scaled) or table.turn[row + 1] == 0
        future = 0.0 if is_last else math.exp(-scaled[row + 1])
        expected.append(advantage[row] * math.exp(-own) / (mean + 1e-8) + 0.05 * future)
    assert_close(empg(table, advantage).advantage, np.array(expected) - np.mean(expected), 1e-9)


@few
@given(batches)
def test_aepo_advantage(batch: Batch) -> None:
    table = batch_table(batch)
    assert table.token_entropy is not None and table.num_tokens is not None
    advantage = np.linspace(-1, 1, len(table))
    entropy = table.token_entropy
    of_token = [a for a, n in zip(advantage, table.num_tokens, strict=True) for _ in range(n)]
    std = float(np.std(entropy, ddof=1))
    expected = [
        a * (1 + 0.2 * (h - float(np.mean(entropy))) / std) if std >= 1e-6 else a
        for a, h in zip(of_token, entropy, strict=True)
    ]
    assert_close(aepo_advantage(table, advantage).token_advantage, expected, 1e-9)


@few
@given(batches, st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.booleans())
def test_g_ra(batch: Batch, threshold: float, gates_penalties: bool) -> None:
    expected = []
    for _, turns in batch:
        is_open = turns[-1][0] > threshold
        for t, (r, *_) in enumerate(turns):
            is_outcome = t == len(turns) - 1
            passes = is_outcome or is_open or (r < 0 and not gates_penalties)
            expected.append(r if passes else 0.0)
    options = GraOptions(thresholds=(threshold,), gate_penalties=gates_penalties)
    assert_close(g_ra(batch_table(batch), options).table.reward, expected, 1e-9)
