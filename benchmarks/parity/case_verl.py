"""Estimators and shapers compared with verl and its recipes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from credit_inputs import (
    TORCH,
    by_trajectory,
    double_precision,
    on_last_tokens,
    random_table,
    to_tokens,
    with_outcomes_only,
)
from released import Case, Release, gap, load, run_lines

from agentgym.credit.estimators.gae import token_gae
from agentgym.credit.estimators.group_relative import dr_grpo, opo, reinforce_pp_baseline, rloo
from agentgym.credit.estimators.grpo import grpo
from agentgym.credit.estimators.reinforce_pp import reinforce_pp
from agentgym.credit.selections.filters import DynamicSamplingOptions, dynamic_sampling
from agentgym.credit.shapers.penalties import OverlongOptions, overlong_penalty
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import TurnAdvantages, TurnTable

VERL = Release("verl-project/verl", "1dda039")
RECIPE = Release("verl-project/verl-recipe", "48ea0a7")
ALGORITHMS = "verl/trainer/ppo/core_algos.py"
DAPO_REWARD = "verl/workers/reward_manager/dapo.py"
DAPO_TRAINER = "dapo/dapo_ray_trainer.py"
LONE = (
    "A lone member gets its raw reward in the release. Ours is 0: without a sibling there is nothing to compare "
    "with. `check_group_size` refuses such groups; they remain only where the infrastructure failed."
)


@cache
def functional(folder: Path) -> SimpleNamespace:
    """Return verl's masked statistics in double precision."""
    names = ("masked_sum", "masked_mean", "masked_var", "masked_whiten")
    return SimpleNamespace(**load(folder / "verl/utils/torch_functional.py", *names, namespace={"torch": TORCH}))


@cache
def algorithm(folder: Path, name: str) -> Any:
    """Return one of verl's estimators in double precision."""
    scope = {"torch": TORCH, "np": np, "defaultdict": defaultdict, "verl_F": functional(folder)}
    return load(folder / ALGORITHMS, name, namespace=scope)[name]


def beside(
    estimate: Any, name: str, smallest: int = 2, gap_tokens: int = 2, varied: bool = False, **settings: Any
) -> Any:
    """Return a comparison of an estimator over trajectories with one of verl's."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        table = random_table(rng, smallest=smallest, max_turns=4 if gap_tokens else 1, size=int(smallest == 1))
        # Equal returns are drawn again where they are whitened: the 1e-8 in verl's `masked_mean` then shows as 2e-5.
        while varied and np.ptp(per_trajectory(table, table.reward)) == 0:
            table = random_table(rng, smallest=smallest, max_turns=4 if gap_tokens else 1)
        view, layout = trajectories(table), by_trajectory(table, gap_tokens)
        rewards = layout.spread(on_last_tokens(table, table.reward))
        with double_precision():
            theirs, _ = algorithm(folder, name)(rewards, layout.mask, index=view.group, **settings)
        ours: TurnAdvantages = estimate(table)
        tokens = to_tokens(table, ours.advantage) if ours.token_advantage is None else ours.token_advantage
        return gap(tokens, layout.read(theirs))

    return largest_gap


def reinforce(gap_tokens: int) -> Any:
    """Return the comparison of REINFORCE++, whose discount comes in a configuration."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        gamma = float(rng.choice([1.0, 0.9]))
        config = SimpleNamespace(gamma=gamma)
        name = "compute_reinforce_plus_plus_outcome_advantage"
        compare = beside(
            lambda table: reinforce_pp(table, gamma=gamma), name, 2, gap_tokens, varied=True, config=config
        )
        return compare(folder, rng)

    return largest_gap


def gae_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare token-level GAE, with absurd values on observation tokens."""
    table = random_table(rng, smallest=2)
    layout = by_trajectory(table)
    table = table.with_columns(token_value=rng.normal(size=int(table.num_tokens.sum())))
    gamma, lam = float(rng.choice([1.0, 0.9])), float(rng.choice([1.0, 0.95, 0.0]))
    rewards = layout.spread(on_last_tokens(table, table.reward))
    values = layout.spread(table.token_value, fill=99.0)
    with double_precision():
        advantage, returns = algorithm(folder, "compute_gae_advantage_return")(
            rewards, values, layout.mask, gamma=gamma, lam=lam
        )
    ours = token_gae(table, gamma=gamma, lam=lam)
    return max(gap(ours.token_advantage, layout.read(advantage)), gap(ours.token_return, layout.read(returns)))


def overlong_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare DAPO's penalty on lengths around the buffer."""
    table = with_outcomes_only(random_table(rng)).with_columns(num_tokens=None)
    table = table.with_columns(num_tokens=rng.integers(0, 40, len(table)))
    options = OverlongOptions(
        max_tokens=int(rng.integers(30, 60)), buffer_tokens=int(rng.integers(1, 30)), factor=0.7, beyond="growing"
    )
    buffer = SimpleNamespace(enable=True, len=options.buffer_tokens, penalty_factor=options.factor, log=False)
    theirs = []
    for length, reward in zip(
        per_trajectory(table, table.num_tokens), per_trajectory(table, table.reward), strict=True
    ):
        own = SimpleNamespace(overlong_buffer_cfg=buffer, max_resp_len=options.max_tokens)
        scope = {"self": own, "valid_response_length": length, "reward": reward}
        path = folder / DAPO_REWARD
        start, stop = "overlong_buffer_len = ", "if self.overlong_buffer_cfg.log"
        theirs.append(run_lines(path, start, stop, scope, within="def __call__")["reward"])
    shaped = overlong_penalty(table, options).table
    return gap(per_trajectory(shaped, shaped.reward), theirs)


def dynamic_sampling_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare which groups DAPO's filter keeps.

    Rewards are multiples of 1/8, whose means are exact. The release keeps a group of three rewards of 0.1, whose
    deviation is 1e-17 by rounding; ours does not.
    """
    table = with_outcomes_only(random_table(rng))
    table = replace(table, reward=np.round(table.reward * 8) / 8)
    view = trajectories(table)
    batch = SimpleNamespace(
        non_tensor_batch={"uid": view.group, "reward": per_trajectory(table, table.reward)},
    )
    scope: dict[str, Any] = {"np": np, "defaultdict": defaultdict, "new_batch": batch, "metric_name": "reward"}
    run_lines(folder / DAPO_TRAINER, "prompt_uid2metric_vals = ", "num_prompt_in_batch +=", scope)
    theirs = np.isin(table.group, scope["kept_prompt_uids"])
    return gap(dynamic_sampling(table, DynamicSamplingOptions(metric="return")), theirs)


def unscaled(table: TurnTable) -> TurnAdvantages:
    """Return GRPO without the division."""
    return grpo(table, norm="mean_norm")


def case(component: str, largest_gap: Any, **facts: Any) -> Case:
    return Case(component=component, release=VERL, file=facts.pop("file", ALGORITHMS), largest_gap=largest_gap, **facts)


GRPO = "compute_grpo_outcome_advantage"
BASELINE = "compute_reinforce_plus_plus_baseline_outcome_advantage"
CASES = (
    case("grpo", beside(grpo, GRPO)),
    case("grpo", beside(grpo, GRPO, 1), variant="groups of one", explained=LONE),
    case("grpo", beside(unscaled, GRPO, norm_adv_by_std_in_grpo=False), variant="mean_norm"),
    case("dr_grpo", beside(dr_grpo, GRPO, norm_adv_by_std_in_grpo=False)),
    case("rloo", beside(rloo, "compute_rloo_outcome_advantage")),
    case("opo", beside(opo, "compute_opo_outcome_advantage")),
    case("reinforce_pp_baseline", beside(reinforce_pp_baseline, BASELINE, varied=True)),
    case("reinforce_pp", reinforce(0), variant="one turn"),
    case("reinforce_pp", reinforce(2), variant="several turns"),
    case("token_gae", gae_gap),
    case("overlong_penalty", overlong_gap, variant="as released", file=DAPO_REWARD),
    Case(component="dynamic_sampling", release=RECIPE, file=DAPO_TRAINER, largest_gap=dynamic_sampling_gap),
)
