"""GiGPO and HGPO compared with verl-agent."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from credit_inputs import NUMPY, TORCH, Padded, batch_of, by_turn, double_precision, random_table, to_tokens
from released import Case, Release, gap, load

from agentgym.credit.anchors import similarity_anchors
from agentgym.credit.estimators.gigpo import gigpo
from agentgym.credit.estimators.hgpo import HgpoOptions, hgpo
from agentgym.credit.statistics import FLAT, group_statistics, trajectories, trajectory_returns
from agentgym.credit.table import TurnTable

FORK = Release("zhangzf01/verl-agent", "d501621")
GIGPO, HGPO = "gigpo/core_gigpo.py", "recipe/hgpo/core_hgpo.py"
TRAINER = "verl/trainer/ppo/ray_trainer.py"


def scope() -> dict[str, Any]:
    """Return what both files import, in double precision and without output."""
    return {
        "np": NUMPY, "torch": TORCH, "defaultdict": defaultdict, "uuid": uuid, "SequenceMatcher": SequenceMatcher,
        "List": list, "Dict": dict, "Any": Any, "print": lambda *_: None,
    }  # fmt: skip


@cache
def core_gigpo(folder: Path) -> dict[str, Any]:
    names = ("to_hashable", "are_similar", "compute_step_discounted_returns", "episode_norm_reward")
    names += ("build_step_group", "step_norm_reward", "compute_gigpo_outcome_advantage")
    return load(folder / GIGPO, *names, namespace=scope())


@cache
def core_hgpo(folder: Path) -> Any:
    names = ("to_hashable", "trajectory_advantages", "hgpo_advantage_estimate", "compute_hgpo_outcome_advantage")
    return load(folder / HGPO, *names, namespace=scope())["compute_hgpo_outcome_advantage"]


@cache
def penalise(folder: Path) -> Any:
    name = "apply_invalid_action_penalty"
    return load(folder / TRAINER, name, namespace={"np": NUMPY, "torch": TORCH})[name]


class _Rows:
    """The parts of verl's ``DataProto`` that the invalid-action penalty reads."""

    def __init__(self, table: TurnTable, layout: Padded, scores: torch.Tensor, step_rewards: torch.Tensor) -> None:
        prompts = torch.ones((len(table), 3))
        attention = torch.cat([prompts, layout.mask], dim=1)
        self.batch = {"token_level_scores": scores, "step_rewards": step_rewards}
        self.batch |= {"prompts": prompts, "attention_mask": attention.long()}
        self.non_tensor_batch = {"is_action_valid": table.is_valid}

    def __len__(self) -> int:
        return len(self.non_tensor_batch["is_action_valid"])

    def __getitem__(self, row: int) -> Any:
        valid = self.non_tensor_batch["is_action_valid"][row : row + 1]
        return batch_of({name: value[row] for name, value in self.batch.items()}, is_action_valid=valid)


def scored(
    folder: Path, table: TurnTable, layout: Padded, gamma: float, penalty: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the release's token scores and step rewards, after the penalty."""
    rows = batch_of(
        {"input_ids": layout.mask}, rewards=table.reward, traj_uid=table.trajectory, active_masks=np.ones(len(table))
    )
    step_rewards = core_gigpo(folder)["compute_step_discounted_returns"](rows, gamma)
    scores = torch.zeros_like(layout.mask)
    last = layout.mask.sum(dim=1).long() - 1
    scores[torch.arange(len(table)), last] = torch.as_tensor(trajectory_returns(table))
    data, _ = penalise(folder)(_Rows(table, layout, scores, step_rewards), penalty)
    return data.batch["token_level_scores"], data.batch["step_rewards"]


def gigpo_gap(norm: str, unit: str = "turn", penalty: float = 0.0, is_flat: bool | None = None) -> Any:
    """Return the comparison of GiGPO with one norm, unit of statistics and penalty.

    With ``is_flat`` only groups are compared whose trajectories have all the same score, or only the others.
    """

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        table = random_table(rng)
        layout, gamma, weight = by_turn(table), float(rng.choice([1.0, 0.95, 0.0])), float(rng.choice([1.0, 0.5]))
        core = core_gigpo(folder)
        with double_precision():
            scores, steps = scored(folder, table, layout, gamma, penalty)
            remove_std = norm == "mean_norm"
            groups = core["build_step_group"](table.anchor, table.group)
            if unit == "turn":
                theirs, _ = core["compute_gigpo_outcome_advantage"](
                    scores, steps, layout.mask, table.anchor, table.group, table.trajectory,
                    step_advantage_w=weight, mode=norm,
                )  # fmt: skip
            else:  # compute_gigpo_outcome_advantage does not pass the unit on
                theirs = core["episode_norm_reward"](
                    scores, layout.mask, table.group, table.trajectory,
                    remove_std=remove_std, compute_mean_std_cross_steps=False,
                )  # fmt: skip
                theirs = theirs + weight * core["step_norm_reward"](steps, layout.mask, groups, remove_std=remove_std)
        ours = gigpo(
            table, norm=norm, gamma=gamma, step_weight=weight, statistics_unit=unit, invalid_penalty=penalty
        ).advantage
        chosen = np.ones(len(table), dtype=np.bool_) if is_flat is None else is_flat == has_flat_group(table, penalty)
        rows = to_tokens(table, chosen)
        return gap(to_tokens(table, ours)[rows], layout.read(theirs)[rows])

    return largest_gap


def has_flat_group(table: TurnTable, penalty: float) -> np.ndarray:
    """Tell which turns are in groups of several trajectories whose first turns have the same score."""
    view = trajectories(table)
    score = (trajectory_returns(table) - penalty * ~table.is_valid)[view.first]
    of = group_statistics(score, view.group)
    return ((of.std < FLAT) & (of.count > 1))[view.of_row]


def similarity_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare clusters of texts that differ in a few characters."""
    table = random_table(rng)
    texts = [
        "".join(rng.choice(list("xy"), 3)) + "You are in the kitchen." * int(rng.integers(0, 2)) for _ in table.turn
    ]
    threshold = float(rng.choice([0.6, 0.9, 0.95]))
    named = core_gigpo(folder)["build_step_group"](np.array(texts, dtype=object), table.group, True, threshold)
    theirs = np.unique(named.astype(str), return_inverse=True)[1]
    ours = similarity_anchors(texts, table.group, threshold)
    return gap(ours[:, None] == ours[None, :], theirs[:, None] == theirs[None, :])


def hgpo_gap(norm: str, base_group: bool = False, penalty: float = 0.0, is_exact: bool = True) -> Any:
    """Return the comparison of HGPO with one norm, with or without the episode's level.

    With ``is_exact``, returns are dyadic numbers, whose means do not depend on the order of summation.
    """

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        table = random_table(rng, max_turns=6)
        options = HgpoOptions(
            history=int(rng.integers(0, 4)), weight_alpha=float(rng.choice([0.0, 1.0, 2.0])), base_group=base_group
        )
        gamma, layout = float(rng.choice([1.0, 0.5])) if is_exact else 0.95, by_turn(table)
        if is_exact:
            table = replace(table, reward=np.round(table.reward * 4) / 4)
        with double_precision():
            scores, steps = scored(folder, table, layout, gamma, penalty)
            theirs, _ = core_hgpo(folder)(
                scores, steps, layout.mask, table.anchor, table.group, table.trajectory, options.history,
                mode=norm, length_weight_alpha=options.weight_alpha, base_group=base_group,
            )  # fmt: skip
        ours = hgpo(table, norm=norm, gamma=gamma, invalid_penalty=penalty, options=options).advantage
        return gap(to_tokens(table, ours), layout.read(theirs))

    return largest_gap


def case(component: str, variant: str, largest_gap: Any, file: str = GIGPO, explained: str = "") -> Case:
    return Case(
        component=component, variant=variant, release=FORK, file=file, largest_gap=largest_gap, explained=explained
    )


ROUNDING = (
    "The release leaves out levels whose advantage is exactly 0, so the last bit of a mean decides whether a level "
    "counts. Ours takes a distance to the mean below 1e-12 for 0. Equal where means are exact."
)
FLAT_GROUP = (
    "Where all first turns have the same score, the release divides the penalty of a later turn by 1e-6, which gives "
    "advantages of -100000. Ours are 0 in a group whose deviation is below 1e-6."
)


CASES = (
    case("gigpo", "mean_std_norm", gigpo_gap("mean_std_norm")),
    case("gigpo", "mean_norm", gigpo_gap("mean_norm")),
    case("gigpo", "mean_std_norm, penalty", gigpo_gap("mean_std_norm", penalty=0.1)),
    case("gigpo", "mean_norm, penalty", gigpo_gap("mean_norm", penalty=0.1)),
    case("gigpo", "mean_std_norm, trajectory", gigpo_gap("mean_std_norm", "trajectory")),
    case("gigpo", "mean_norm, trajectory", gigpo_gap("mean_norm", "trajectory")),
    case("gigpo", "mean_norm, trajectory, penalty", gigpo_gap("mean_norm", "trajectory", 0.1)),
    case("gigpo", "mean_std_norm, trajectory, penalty", gigpo_gap("mean_std_norm", "trajectory", 0.1, is_flat=False)),
    case(
        "gigpo",
        "mean_std_norm, trajectory, penalty, equal scores",
        gigpo_gap("mean_std_norm", "trajectory", 0.1, is_flat=True),
        explained=FLAT_GROUP,
    ),
    case("gigpo", "anchors by similarity", similarity_gap),
    case("hgpo", "mean_std_norm", hgpo_gap("mean_std_norm"), HGPO),
    case("hgpo", "mean_norm, penalty", hgpo_gap("mean_norm", penalty=0.125), HGPO),
    case("hgpo", "base_group", hgpo_gap("mean_std_norm", base_group=True), HGPO),
    case("hgpo", "mean_norm, rounding", hgpo_gap("mean_norm", penalty=0.1, is_exact=False), HGPO, ROUNDING),
)
