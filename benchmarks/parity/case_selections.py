"""Selections compared with their authors' code: GRPO-RoC, PODS, SimpleTIR."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import random_table, with_outcomes_only
from released import Case, Release, gap, load, run_lines

from agentgym.credit.selections.downsampling import RocOptions, most_varied, roc, roc_penalty
from agentgym.credit.selections.filters import DynamicSamplingOptions, dynamic_sampling, overlong_mask, void_turns
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import TurnTable

RSTAR = Release("microsoft/rStar", "ecbfb94")
ROC = "rstar2_agent/down_sample/roc.py"
PODS = Release("YixuanEvenXu/pods", "187f43b")
MAX_VARIANCE = "trainer/maxvargrpo_trainer.py"
SIMPLETIR = Release("ltzheng/SimpleTIR", "e7b5b44")
AGENT, TRAINER = "recipe/simpletir/agent_utils.py", "recipe/simpletir/simpletir_ray_trainer.py"


@cache
def down_sample(folder: Path) -> dict[str, Any]:
    names = ("calc_error_ratio_penalty_weights", "calc_format_penalty_weights", "resample_of_correct")
    scope = {"np": np, "torch": torch, "re": re, "pprint": lambda *_: None}
    return load(folder / ROC, *names, namespace=scope)


def rollouts(rng: np.random.Generator) -> tuple[TurnTable, list[str]]:
    """Draw a table of calls, errors and answers, and the same as texts."""
    table = with_outcomes_only(random_table(rng, smallest=2, largest=12))
    calls = rng.integers(0, 3, len(table))
    errors = rng.integers(0, calls + 1)
    answers = rng.choice([0, 0, 1, 2], len(table))
    view = trajectories(table)
    texts = []
    for first, last in zip(view.first, view.last, strict=True):
        text = ""
        for row in range(first, last + 1):
            replies = ["Error!"] * errors[row] + ["fine"] * (calls[row] - errors[row])
            text += "<|im_start|>assistant " + "<answer>7</answer>" * answers[row] + "<|im_end|>"
            text += "".join(f"<tool_response>{reply}</tool_response>" for reply in replies)
        texts.append(text)
    return table.with_columns(num_calls=calls, num_errors=errors, num_answers=answers), texts


def roc_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the penalties and who is kept; groups of equal returns are dropped before by the release's trainer."""
    table, texts = rollouts(rng)
    view, released = trajectories(table), down_sample(folder)
    penalty = released["calc_error_ratio_penalty_weights"](texts)[0]
    penalty = penalty + released["calc_format_penalty_weights"](texts)[0]
    returns = per_trajectory(table, table.reward)
    options = RocOptions(keep=int(rng.integers(4, 8)))
    batch = SimpleNamespace(
        non_tensor_batch={"uid": view.group}, batch={"token_level_scores": torch.as_tensor(returns)[:, None]}
    )
    released["decode_prompt_response_str"] = lambda *_: (None, texts)
    released["filter_by_mask"] = lambda batch, mask, world_size: mask
    config = {"roc_error_ratio": True, "roc_answer_format": True, "down_sample_to_n": options.keep}
    config |= {"min_zero_reward_trace_num": 2, "min_non_zero_reward_trace_num": 2}
    try:
        theirs = released["resample_of_correct"](batch, None, config)[0].numpy()
    except AssertionError:  # both numbers were rounded up, or both down, which the release does not survive
        return gap(roc_penalty(table), penalty)
    varies = np.array([np.ptp(returns[view.group == group]) > 0 for group in view.group])
    return max(gap(roc_penalty(table), penalty), gap(roc(table, options)[view.first], theirs & varies))


def pods_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the rewards of the chosen subset, and its variance.

    Rewards on the two sides of a tie are the same numbers, so which rollout of equal reward stays is not compared.
    """
    size = int(rng.integers(2, 12))
    rewards = rng.normal(size=size) if rng.random() < 0.5 else rng.choice([0.0, 0.5, 1.0], size)
    keep = int(rng.integers(2, size + 1))
    scope = {"rewards": torch.as_tensor(rewards), "self": SimpleNamespace(num_generations_grad=keep)}
    start, stop = "_, sorted_indices = rewards.sort", "# Normalize the rewards to compute"
    scope["list"] = list
    indices = run_lines(folder / MAX_VARIANCE, start, stop, scope)["indices"]
    ours, theirs = np.sort(rewards[most_varied(rewards, keep)]), np.sort(rewards[indices])
    return max(gap(len(ours), len(theirs)), gap(ours.var(ddof=1), theirs.var(ddof=1)))


def void_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare which turns are void, and whose trajectories lose their loss."""
    table = random_table(rng)
    said = rng.choice(
        ["```py\nprint(1)\n```", "so \\boxed{7}", "I do not know", "```\nx\n```", "```py print```"], len(table)
    )
    own = SimpleNamespace(config=SimpleNamespace(mask_void_turns=True), prompt_dict={"no_tool_prompt": ""})
    size = len(table)
    scope = {"self": own, "re": re, "predictions": list(said), "active_mask": [True] * size, "is_void_turn": [0] * size}
    scope |= {name: [0] * size for name in ("next_obs", "dones", "use_code", "valid_code")}
    scope |= {"tasks": [], "index_mapping": []}
    run_lines(folder / AGENT, "code_actions = []", "tasks = []", scope, within="is_void_turn = [0]")
    run_lines(folder / AGENT, "for i, code in code_actions:", "else:", scope, within="is_void_turn = [0]")
    is_void = np.array(scope["is_void_turn"], dtype=np.bool_)
    view = trajectories(table)
    batch = {"loss_mask": torch.ones(len(view.first), 3)}
    kept = np.array([not is_void[first : last + 1].any() for first, last in zip(view.first, view.last, strict=True)])
    batch["void_turn_mask"] = torch.as_tensor(kept)
    start, stop = 'batch.batch["loss_mask"] = batch.batch[', "metrics.update("
    scope = {"batch": SimpleNamespace(batch=batch)}
    run_lines(folder / TRAINER, start, stop, scope, within="if self.config.actor_rollout_ref.actor.mask_void_turns:")
    theirs = batch["loss_mask"][:, 0].numpy() > 0
    return gap(void_turns(table.with_columns(is_void=is_void))[view.first], theirs)


def overlong_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare who is masked for reaching the longest response."""
    table = random_table(rng)
    view = trajectories(table)
    lengths = rng.integers(1, 10, len(view.first))
    longest = 9
    attention = (np.arange(longest)[None, :] < lengths[:, None]).astype(np.int64)
    scope = {
        "response_lengths": torch.as_tensor(lengths), "max_response_length": longest, "print": print,
        "batch": SimpleNamespace(batch={"attention_mask": torch.as_tensor(attention)}), "cur_response_length": longest,
    }  # fmt: skip
    start, stop = "sample_mask = (", "# if all samples are masked"
    run_lines(folder / TRAINER, start, stop, scope)
    masked = scope["sample_mask"].numpy()
    given = table.with_columns(is_truncated=(lengths >= longest)[view.of_row])
    return gap(overlong_mask(given)[view.first], ~masked)


def flat_groups_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the groups that SimpleTIR drops for a deviation below 1e-3."""
    table = with_outcomes_only(random_table(rng, smallest=2))
    view = trajectories(table)
    returns = torch.as_tensor(per_trajectory(table, table.reward))[:, None]
    theirs = np.zeros(len(view.first), dtype=np.bool_)
    trainer = SimpleNamespace(acc_filter=False)
    for group in np.unique(view.group):
        of = view.group == group
        scope = {"self": SimpleNamespace(config=SimpleNamespace(trainer=trainer)), "reward_tensor": returns}
        scope |= {"uid_mask": torch.as_tensor(of), "valid_mask": torch.ones(len(of), dtype=torch.bool)}
        start, stop = "uid_rewards = reward_tensor", "elif self.config.trainer.acc_filter:"
        run_lines(folder / TRAINER, start, stop, scope, within='with _timer("accuracy_clip"')
        theirs[of] = scope["valid_mask"].numpy()[of]
    options = DynamicSamplingOptions(metric="return", min_std=1e-3)
    return gap(dynamic_sampling(table, options)[view.first], theirs)


CASES = (
    Case(component="roc", release=RSTAR, file=ROC, largest_gap=roc_gap),
    Case(component="pods", release=PODS, file=MAX_VARIANCE, largest_gap=pods_gap),
    Case(component="void_turns", release=SIMPLETIR, file=AGENT, largest_gap=void_gap),
    Case(component="overlong_mask", release=SIMPLETIR, file=TRAINER, largest_gap=overlong_gap),
    Case(
        component="dynamic_sampling", variant="min_std 1e-3", release=SIMPLETIR, file=TRAINER,
        largest_gap=flat_groups_gap,
    ),
)  # fmt: skip
