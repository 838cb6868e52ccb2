"""UI-S1, bi-level and turn-level GAE, StepPO, Flow-GRPO and SPA compared with their authors' code."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import (
    NUMPY,
    TORCH,
    batch_of,
    by_trajectory,
    by_turn,
    double_precision,
    on_last_tokens,
    random_table,
    to_tokens,
    with_outcomes_only,
)  # fmt: skip
from released import Case, Release, gap, load, run_lines

from agentgym.credit.estimators.dr_mas import dr_mas
from agentgym.credit.estimators.gae import bi_level_gae, turn_gae
from agentgym.credit.estimators.group_relative import flow_grpo
from agentgym.credit.estimators.ui_s1 import UiS1Options, ui_s1
from agentgym.credit.shapers.progress import SpaOptions, spa
from agentgym.credit.statistics import ends_of_trajectories, trajectories, trajectory_returns
from agentgym.credit.table import TurnTable

MOBILE = Release("X-PLUG/MobileAgent", "11cea57")
UI_S1 = "UI-S1/uis1/core_uis1.py"
RAGEN = Release("RAGEN-AI/RAGEN", "5eb79b8")
BI_LEVEL = "ragen/trainer/core_algos.py"
VAGEN = Release("mll-lab-nu/VAGEN", "2936322")
NO_CONCAT = "vagen/custom_advantage/no_concat_gae.py"
STEP_PO = Release("AgentR1/StepPO", "26107f1")
STEP_LEVEL = "arft/core_algos.py"
DR_MAS = Release("langfengQ/DrMAS", "19c632b")
DR_MAS_ALGORITHMS = "verl/trainer/ppo/core_algos.py"
FLOW = Release("lupantech/AgentFlow", "b940064")
DAEMON = "agentflow/verl/daemon.py"
SPA = Release("WangHanLinHenry/SPA-RL-Agent", "ed20087")
RL_DATA = "prm/rl_data_org.py"
AS_RELEASED = SpaOptions(grounding=0.5, remainder="dropped")
WHITEN = ("masked_sum", "masked_mean", "masked_var", "masked_whiten")


@cache
def verl(folder: Path) -> dict[str, Any]:
    """Return verl's whitening and its GRPO, which these releases import."""
    root = folder.parent / "verl-project+verl"
    scope = load(root / "verl/utils/torch_functional.py", *WHITEN, namespace={"torch": TORCH})
    scope |= {"verl_F": SimpleNamespace(**{name: scope[name] for name in WHITEN}), "np": np, "defaultdict": defaultdict}
    return load(root / "verl/trainer/ppo/core_algos.py", "compute_grpo_outcome_advantage", namespace=scope)


@cache
def core_ui_s1(folder: Path) -> dict[str, Any]:
    names = ("compute_step_discounted_returns", "episode_norm_reward", "step_norm_reward")
    scope = {"np": NUMPY, "torch": TORCH, "defaultdict": defaultdict}
    return load(folder / UI_S1, *names, "compute_uis1_outcome_advantage", namespace=scope)


def ui_s1_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare both norms, with patched turns."""
    table = random_table(rng)
    table = table.with_columns(is_patched=rng.random(len(table)) < 0.3)
    assert table.is_patched is not None
    layout, norm = by_turn(table), str(rng.choice(["mean_norm", "mean_std_norm"]))
    options = UiS1Options(norm=norm, gamma=float(rng.choice([1.0, 0.5])), episode_weight=0.7)
    core = core_ui_s1(folder)
    rows = batch_of(
        {"input_ids": layout.mask}, rewards=table.reward, traj_uid=table.trajectory, extract_match=~table.is_patched
    )
    with double_precision():
        steps = core["compute_step_discounted_returns"](rows, options.gamma)
        theirs, _ = core["compute_uis1_outcome_advantage"](
            layout.spread(on_last_tokens(table, table.reward)), steps, layout.mask, table.group, table.trajectory,
            table.turn, step_advantage_w=0.3, episode_advantage_w=0.7, mode=norm,
        )  # fmt: skip
    return gap(to_tokens(table, ui_s1(table, options, step_weight=0.3).advantage), layout.read(theirs))


@cache
def bi_level(folder: Path) -> Any:
    return load(folder / BI_LEVEL, "compute_bi_level_gae_advantage_return", namespace=dict(verl(folder)))[
        "compute_bi_level_gae_advantage_return"
    ]


def bi_level_gap(keeps_zeros: bool) -> Any:
    """Return the comparison of bi-level GAE, with turn rewards of 0 or without."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        table = random_table(rng, smallest=2)
        has_reward = ends_of_trajectories(table) if keeps_zeros else np.ones(len(table), dtype=np.bool_)
        table = table.with_columns(reward=np.where(has_reward & (table.reward == 0), 0.25, table.reward))
        layout = by_trajectory(table)
        table = table.with_columns(token_value=rng.normal(size=int(table.num_tokens.sum())))
        settings = {"gamma": float(rng.choice([1.0, 0.9])), "lam": float(rng.choice([1.0, 0.95]))}
        rewards = layout.spread(on_last_tokens(table, table.reward))
        values = layout.spread(table.token_value, fill=99.0)
        with double_precision():
            advantage, returns = bi_level(folder)(rewards, values, layout.mask, high_level_gamma=0.8, **settings)
        ours = bi_level_gae(table, gamma_high=0.8, **settings)
        return max(gap(ours.token_advantage, layout.read(advantage)), gap(ours.token_return, layout.read(returns)))

    return largest_gap


@cache
def no_concat(folder: Path) -> Any:
    names = ("_to_numpy_int64", "compute_gae_no_concat_advantage_return_firsttok")
    return load(folder / NO_CONCAT, *names, namespace=dict(verl(folder)))[names[1]]


def turn_gae_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare turn-level GAE whose value is read where the turn's first token is predicted."""
    table = random_table(rng, smallest=2)
    table = table.with_columns(value=rng.normal(size=len(table)))
    assert table.value is not None
    layout = by_turn(table)
    values = layout.spread(np.where(layout.column == 0, to_tokens(table, table.value), 99.0))
    batch = {"token_level_scores": layout.spread(on_last_tokens(table, table.reward)), "values": values}
    data = batch_of(
        batch | {"response_mask": layout.mask}, group_idx=table.group, turn_idx=table.turn, traj_idx=table.trajectory
    )
    gamma, lam = float(rng.choice([1.0, 0.9])), float(rng.choice([1.0, 0.95]))
    with double_precision():
        advantage, returns = no_concat(folder)(data, gamma, lam)
    ours = turn_gae(table, gamma=gamma, lam=lam)
    of_first = layout.read(returns)[layout.column == 0]
    return max(gap(to_tokens(table, ours.advantage), layout.read(advantage)), gap(ours.return_to_go, of_first))


def step_po_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare StepPO's GAE over steps, whitened over steps; values between 10 and -10, so that none are nearly flat.

    The release divides by the deviation plus 1e-8, and ours by the root of the variance plus 1e-8.
    """
    table = random_table(rng, smallest=2)
    table = table.with_columns(value=rng.normal(size=len(table)) * 10)
    assert table.value is not None
    layout = by_turn(table)
    values = layout.spread(np.where(layout.column == 0, to_tokens(table, table.value), 99.0))
    gamma, lam = float(rng.choice([1.0, 0.9])), float(rng.choice([1.0, 0.95]))
    released = load(folder / STEP_LEVEL, "compute_gae_advantage_return", namespace={"torch": torch, "np": np})
    with double_precision():
        advantage, returns = released["compute_gae_advantage_return"](
            layout.spread(on_last_tokens(table, table.reward)), values, layout.mask,
            trajectory_uids=table.trajectory, step_indices=table.turn, gamma=gamma, lam=lam,
        )  # fmt: skip
    ours = turn_gae(table, gamma=gamma, lam=lam, whitening_unit="turn")
    of_first = layout.read(returns)[layout.column == 0]
    return max(gap(to_tokens(table, ours.advantage), layout.read(advantage)), gap(ours.return_to_go, of_first))


def flow_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare Flow-GRPO: the release's rows, a turn each with the final reward, under verl's GRPO.

    A group of one turn keeps its raw reward in verl and gets 0 here, as with `grpo`; such groups are not drawn.
    """
    table = with_outcomes_only(random_table(rng, smallest=2))
    layout = by_turn(table)
    responses = layout.mask.shape[1]
    attention = torch.cat([torch.ones(len(table), 2), layout.mask], dim=1).long()
    scope: dict[str, Any] = {
        "torch": TORCH, "reward_list": trajectory_returns(table).tolist(), "device": "cpu", "attention_mask": attention,
        "position_ids": attention.cumsum(1) - 1, "n_transition": len(table), "max_response_length": responses,
    }  # fmt: skip
    with double_precision():
        run_lines(folder / DAEMON, "scores = torch.tensor(reward_list", "# Form the final batch", scope)
        grpo = verl(folder)["compute_grpo_outcome_advantage"]
        theirs, _ = grpo(scope["token_level_scores"], layout.mask, index=table.group)
    return gap(to_tokens(table, flow_grpo(table).advantage), layout.read(theirs))


def dr_mas_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare Dr. MAS: the release's rows, a turn each with the episode's reward, grouped by task and agent.

    An agent's only turn in a group keeps its raw reward in the release and gets 0 here, so such turns are left out.
    """
    table = with_outcomes_only(random_table(rng))
    table = table.with_columns(role=rng.integers(0, 3, len(table)))
    assert table.role is not None
    layout, is_std = by_turn(table), bool(rng.integers(2))
    scores = layout.spread(on_last_tokens(table, trajectory_returns(table)))
    agents = [f"{group}_{role}" for group, role in zip(table.group, table.role, strict=True)]
    with double_precision():
        theirs, _ = dr_mas_released(folder)(
            scores, layout.mask, np.array(agents, dtype=object), table.trajectory,
            norm_adv_by_std_in_grpo=is_std, group_by_agent_id=True,
        )  # fmt: skip
    rows = to_tokens(table, np.array([agents.count(agent) > 1 for agent in agents]))
    ours = dr_mas(table, norm="mean_std_norm" if is_std else "mean_norm").advantage
    return gap(to_tokens(table, ours)[rows], layout.read(theirs)[rows])


@cache
def dr_mas_released(folder: Path) -> Any:
    scope = {"np": NUMPY, "torch": TORCH, "defaultdict": defaultdict, "print": lambda *_: None}
    name = "compute_grpo_outcome_advantage"
    return load(folder / DR_MAS_ALGORITHMS, name, namespace=scope)[name]


def spa_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare progress plus grounding of one trajectory at a time."""
    table = random_table(rng)
    table = table.with_columns(progress=rng.normal(size=len(table)), is_executed=rng.random(len(table)) < 0.6)
    assert table.progress is not None and table.is_executed is not None
    theirs = [_spa_rewards(folder, table, first, last) for first, last in _spans(table)]
    return gap(spa(table, AS_RELEASED).table.reward, np.concatenate(theirs))


def _spans(table: TurnTable) -> list[tuple[int, int]]:
    view = trajectories(table)
    return list(zip(view.first.tolist(), (view.last + 1).tolist(), strict=True))


def _spa_rewards(folder: Path, table: TurnTable, first: int, last: int) -> np.ndarray:
    assert table.progress is not None and table.is_executed is not None
    said = []
    for row in range(first, last):
        reply = "A key." if row == first or table.is_executed[row - 1] else "Nothing happens."
        said += [{"value": reply}, {"value": "act"}]
    scope: dict[str, Any] = {"each_conversations": said, "each_reward": table.progress[first:last].tolist()}
    scope |= {"print": lambda *_: None}
    run_lines(folder / RL_DATA, "grounding_values = []", "if len(each_reward)", scope)
    return np.asarray(scope["each_reward"])


ZERO = (
    "The release takes the tokens with a reward other than 0 for the ends of turns, so that a turn of reward 0 is"
    " merged with the next, and stops with an IndexError if the last turn has none. Ours knows the ends of turns."
)
CASES = (
    Case(component="ui_s1", release=MOBILE, file=UI_S1, largest_gap=ui_s1_gap),
    Case(component="bi_level_gae", release=RAGEN, file=BI_LEVEL, largest_gap=bi_level_gap(keeps_zeros=False)),
    Case(
        component="bi_level_gae", variant="turns of reward 0", release=RAGEN, file=BI_LEVEL,
        largest_gap=bi_level_gap(keeps_zeros=True), explained=ZERO,
    ),
    Case(component="turn_gae", release=VAGEN, file=NO_CONCAT, largest_gap=turn_gae_gap),
    Case(
        component="turn_gae", variant="StepPO: whitened over turns", release=STEP_PO, file=STEP_LEVEL,
        largest_gap=step_po_gap,
    ),
    Case(component="dr_mas", release=DR_MAS, file=DR_MAS_ALGORITHMS, largest_gap=dr_mas_gap),
    Case(component="flow_grpo", release=FLOW, file=DAEMON, largest_gap=flow_gap),
    Case(component="spa", variant="as released", release=SPA, file=RL_DATA, largest_gap=spa_gap),
)  # fmt: skip
