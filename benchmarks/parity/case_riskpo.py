"""RiskPO compared with its authors' code: advantages, and the tracking of quantiles over three batches."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from credit_inputs import double_precision, rewards_of
from released import Case, Release, gap, load

from agentgym.credit.estimators.riskpo import RiskpoOptions, riskpo
from agentgym.credit.table import TurnTable

RELEASE = Release("RTkenny/RiskPO", "65ec40c")
FILE = "verl/trainer/ppo/core_algos.py"
FUNCTION = "compute_grpo_bundle_rvar_outcome_advantage_quantile_tracking"
MODES = {"tracked": "track", "bundle": "batch", "both": "mix"}


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Credit three batches of whole bundles with equal groups, and compare advantages and quantiles after each.

    Bundles of equal scores are not divided by their deviation here, and by 1e-6 in the release: none are drawn where
    scores are divided. The mean over the batch as baseline is ours alone. The release tracks from the first batch on,
    and ours from the first whose quantiles differ; until then the release gets none, too.
    """
    size, members = int(rng.integers(1, 4)), int(rng.integers(2, 6))
    low, high = sorted(rng.choice([0.1, 0.2, 0.5, 0.8, 0.9], 2, replace=False).tolist())
    options = RiskpoOptions(
        bundle_size=size,
        low=low,
        high=high,
        tail_weight=float(rng.choice([0.0, 0.5, 1.5])),
        quantiles=str(rng.choice(list(MODES))),  # type: ignore[arg-type]
        baseline=str(rng.choice(["none", "natural"])),  # type: ignore[arg-type]
        normalise=bool(rng.random() < 0.5),
    )
    scope = load(folder / FILE, FUNCTION, namespace={"torch": torch, "np": np, "defaultdict": defaultdict})
    tracked: dict[str, float] = {}
    theirs: torch.Tensor | None = None
    gaps = []
    for _ in range(3):
        num_groups = size * int(rng.integers(1, 4))
        group = np.repeat(np.arange(num_groups), members)
        rewards = np.concatenate([_returns(rng, members, options.normalise) for _ in range(num_groups)])
        table = TurnTable.from_lists(rewards=rewards[:, None].tolist(), group_of_trajectory=group.tolist())
        credited, tracked = riskpo(table, tracked, options)
        with double_precision():
            advantage, scores = _released(scope[FUNCTION], rewards, group, options, theirs)
            theirs = _tracked(theirs, scores, torch.tensor([low, high])) if tracked else None
        gaps += [gap(credited.advantage, advantage)]
        gaps += [] if theirs is None else [gap([tracked["low"], tracked["high"]], theirs)]
    return max(gaps)


def _returns(rng: np.random.Generator, members: int, varies: bool) -> np.ndarray:
    return rng.normal(size=members) if varies else rewards_of(rng, members)


def _released(
    function: Any, rewards: np.ndarray, group: np.ndarray, options: RiskpoOptions, tracked: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    config = {
        "norm_adv_by_std_in_grpo": options.normalise,
        "quantile_down": options.low,
        "quantile_up": options.high,
        "use_q_track_mode": MODES[options.quantiles],
        "use_mixing_risk_measure": options.tail_weight > 0,
        "w_mix": options.tail_weight,
        "natural_baseline_adv": options.baseline == "natural",
    }
    low, high = (None, None) if tracked is None else tracked.tolist()
    advantage, _, papers = function(
        torch.as_tensor(rewards)[:, None],
        torch.ones(len(rewards), 1),
        index=group,
        bundle_uid=group // options.bundle_size,
        q_track_down=low,
        q_track_up=high,
        config=config,
    )
    return advantage[:, 0], torch.cat(list(papers.values()))


def _tracked(quantiles: torch.Tensor | None, scores: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Return the quantiles after a batch; these lines stand in the middle of the release's training loop."""
    if quantiles is None:
        return torch.quantile(scores, levels)
    return quantiles + 0.1 * (levels - (scores.repeat(2, 1) < quantiles[:, None]).double().mean(dim=1))


CASES = (Case(component="riskpo", release=RELEASE, file=FILE, largest_gap=largest_gap),)
