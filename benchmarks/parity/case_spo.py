"""SPO compared with verl's recipe."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import TORCH, double_precision
from released import Case, Release, gap, load, run_lines

from agentgym.credit.estimators.spo import spo, spo_prior
from agentgym.credit.table import TurnTable

RECIPE = Release("verl-project/verl-recipe", "48ea0a7")
FILE = "spo/spo_ray_trainer.py"


def rows(names: list[str]) -> SimpleNamespace:
    """Return the parts of verl's ``DataProto`` that the tracker reads: responses of one token."""
    return SimpleNamespace(
        names=names, meta_info={"global_token_num": 0}, select_idxs=lambda chosen: rows([names[at] for at in chosen])
    )


def joined(parts: list[SimpleNamespace]) -> SimpleNamespace:
    return rows([name for part in parts for name in part.names])


@cache
def rho_of(folder: Path) -> Any:
    scope = {
        "torch": TORCH,
        "DataProto": SimpleNamespace(concat=joined),
        "compute_response_mask": lambda part: torch.ones(len(part.names), 1),
        "masked_mean": lambda values, mask, axis: (values * mask).sum(axis) / mask.sum(axis),
    }
    return load(folder / FILE, "RayPPOTrainer._get_spo_rho", namespace=scope)["_get_spo_rho"]


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Play three batches of distinct tasks, and compare advantages and the tracker after each."""
    tasks = [f"t{number}" for number in range(5)]
    wins = {task: int(rng.integers(0, 5)) for task in tasks}
    tracker = {task: spo_prior(4, wins[task]) for task in tasks}
    alpha, beta = ({task: tracker[task][at] for task in tasks} for at in (0, 1))
    seen: tuple[dict[str, Any], ...] = ({}, {}, {})
    config = SimpleNamespace(
        trainer=SimpleNamespace(spo=SimpleNamespace(rho=SimpleNamespace(type="kl", clip_lower=0.875)))
    )
    remembered: dict[str, float] = {}
    gaps = []
    for _ in range(3):
        chosen = rng.permutation(tasks)[: rng.integers(2, 6)].tolist()
        rewards = rng.integers(0, 2, len(chosen)).astype(np.float64)
        now = {task: -float(rng.exponential(0.1)) for task in tasks}
        drift = [abs(remembered[task] - now[task]) if task in remembered else 0.0 for task in chosen]
        remembered |= {task: now[task] for task in chosen}
        table = TurnTable.from_lists(rewards=rewards[:, None].tolist(), group_of_trajectory=range(len(chosen)))
        credited, tracker = spo(table.with_columns(group_keys=chosen, drift=drift), tracker)
        advantage, seen = _step(folder, config, chosen, rewards, now, alpha, beta, seen)
        gaps += [gap(credited.advantage, advantage)]
        gaps += [gap([tracker[task] for task in tasks], [(alpha[task], beta[task]) for task in tasks])]
    return max(gaps)


def _step(
    folder: Path, config: Any, chosen: list[str], rewards: np.ndarray, now: dict[str, float],
    alpha: dict[str, float], beta: dict[str, float], seen: tuple[dict[str, Any], ...],
) -> tuple[torch.Tensor, tuple[dict[str, Any], ...]]:  # fmt: skip
    """Run the release on one batch; ``alpha`` and ``beta`` change in place."""

    def log_probs(part: SimpleNamespace) -> Any:
        return SimpleNamespace(batch={"old_log_probs": torch.tensor([[now[name]] for name in part.names]).double()})

    own = SimpleNamespace(config=config, actor_rollout_wg=SimpleNamespace(compute_log_prob=log_probs))
    scope: dict[str, Any] = {
        "torch": TORCH, "micro_prompts": chosen, "prompt2alpha": alpha, "prompt2beta": beta, "spo_metrics": {},
        "reward_tensor": torch.as_tensor(rewards)[:, None], "batch": None, "cur_sampled_numbers": [],
        "compute_response_mask": lambda batch: None, "prompt2sampled_number": dict.fromkeys(alpha, 0),
    }  # fmt: skip
    with double_precision():
        run_lines(folder / FILE, "alpha = [prompt2alpha[_]", "quantiles = torch", scope)
        advantage = scope["advantages"]
        rho, *seen_now, _ = rho_of(folder)(own, *seen, chosen, rows(chosen))
        scope |= {"rho": rho}
        run_lines(folder / FILE, "alpha = rho * alpha", "cur_sampled_numbers.append", scope)
    return advantage, tuple(seen_now)


CASES = (Case(component="spo", release=RECIPE, file=FILE, largest_gap=largest_gap),)
