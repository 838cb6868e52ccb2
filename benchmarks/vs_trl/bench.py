"""TRL's GRPOTrainer and this trainer on the same model, environment and budget, in one run.

    OMP_NUM_THREADS=1 python benchmarks/vs_trl/bench.py --out benchmarks/vs_trl/results.json
    OMP_NUM_THREADS=1 python benchmarks/vs_trl/bench.py --model smollm2 --steps 4 --groups 2 --lr 1e-5

Two tasks. ``multi-turn``: a maze walked a step at a time by tool calls; TRL plays it through ``environment_factory``.
``one turn``: an open maze whose whole way is said in one completion; TRL trains on it in its plain mode, with a reward
function. All arms of a seed begin with the same weights after the same supervised fine-tuning, see the same prompts
(token by token: Qwen3's template, the tool's schema as TRL reads it), and train on the same tasks in the same order,
with groups of 8, the same number of rollouts and steps, the same learning rate, Adam constants, gradient clip and
temperature, and one thread. The success of all is measured by our evaluation on the same held-out tasks and seeds
(of the second task those are other draws of the same 72 pairs of a start and an exit).

``--model smollm2`` begins with a pretrained model of 135 M parameters in place of a tiny one, in smaller mazes.

What cannot be the same: TRL limits an episode's tokens and not a turn's; it asks for one more message after the end of
an episode (the warm start teaches the model to say "Done."); and it gives one advantage to an episode, where ours, by
default GiGPO, gives one to a turn. The arm ``ours, grpo`` has TRL's kind.

Arms of a seed run one after the other, in the other order at every second seed; load averages are in the results.
Results of other seeds that are there already stay, each row with its machine, date and commit.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import warm_start
from arms import GROUP_SIZE, Arm, Budget, ours, trl_factory, trl_plain
from mazes import MULTI, ONE_TURN, REAL_MULTI, REAL_ONE_TURN, Setting

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.evals.runner import EvalSummary, evaluate
from agentgym.registry import make
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.placement.policy import open_policy

_MULTI_ARMS: dict[str, Arm] = {
    "ours": ours(CreditConfig()),
    "ours, grpo": ours(CreditConfig(estimator="grpo")),
    "TRL, environment_factory": trl_factory,
}
_ONE_TURN_ARMS: dict[str, Arm] = {"ours": ours(CreditConfig()), "TRL, plain": trl_plain}
ARMS = {
    MULTI.name: _MULTI_ARMS,
    ONE_TURN.name: _ONE_TURN_ARMS,
    REAL_MULTI.name: _MULTI_ARMS,
    REAL_ONE_TURN.name: _ONE_TURN_ARMS,
}
SETTINGS = {"tiny": (MULTI, ONE_TURN), warm_start.PRETRAINED: (REAL_MULTI, REAL_ONE_TURN)}
REAL_ROWS = 4
"""Rows of SmolLM2 that TRL trains on at a time."""
COLUMNS = ("step_s_p50", "rollout_s_p50", "episodes_per_s", "sampled_tokens_per_s", "trained_tokens_per_s")


async def held_out(setting: Setting, model_dir: Path, out_dir: Path, options: argparse.Namespace) -> EvalSummary:
    """Return the success on held-out tasks at temperature 1."""
    pool = EnvPool(lambda: make(setting.env_id, **setting.kwargs), 32)
    policy = open_policy(model_dir, num_slots=32, max_context_tokens=warm_start.MODEL.max_context_tokens)
    tasks = make(setting.env_id, **setting.kwargs).tasks("test")[: options.eval_episodes]
    try:
        return await evaluate(
            list(tasks),
            pool,
            policy.agents(SamplingParams(max_new_tokens=setting.max_turn_tokens)),
            out_dir=out_dir,
            suite_or_env=setting.name,
            policy=str(model_dir),
            seed=derive_seed(0, "held out"),
            group_config=GroupConfig(group_size=1, min_valid=1, num_envs=32),
        )
    finally:
        await policy.engine.close()
        await pool.close()


def measure(setting: Setting, seed: int, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure all arms of a task and a seed; return one row for each."""
    start = folder / "start"
    sft = SftConfig(num_demos=options.demos, num_epochs=1, batch_size=8)
    warm_start.warm_start(setting, start, seed, sft, is_pretrained=options.model == warm_start.PRETRAINED)
    before = asyncio.run(held_out(setting, start, folder / "eval-start", options))
    print(f"{setting.name}, seed {seed}: success {before.success:.3f} before", flush=True)
    budget = Budget(
        num_steps=options.steps,
        groups_per_step=options.groups,
        lr=options.lr,
        seed=seed,
        context_tokens=warm_start.MODEL.max_context_tokens,
        rows_per_microbatch=REAL_ROWS if options.model == warm_start.PRETRAINED else 0,
    )
    arms = list(ARMS[setting.name].items())
    for number, (name, arm) in enumerate(arms[::-1] if seed % 2 else arms):
        made = arm(setting, start, folder / f"arm-{number}", budget)
        after = asyncio.run(held_out(setting, made.model_dir, folder / f"eval-{number}", options))
        row = {
            "task": setting.name,
            "arm": name,
            "seed": seed,
            **origin(),
            "steps": budget.num_steps,
            "lr": budget.lr,
            "episodes": budget.num_steps * budget.episodes_per_step,
            "success_before": before.success,
            "success_after": after.success,
            "success_after_interval": [after.success_low, after.success_high],
            **made.summary(budget),
        }
        print(json.dumps(row), flush=True)
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    """Return means over the seeds in Markdown."""
    lines = [
        "| task | arm | a step, s | of it rollouts | episodes/s | tokens/s: sampled | trained "
        "| success before, each seed | after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task, arm in dict.fromkeys((row["task"], row["arm"]) for row in sorted(rows, key=_order)):
        same = sorted((row for row in rows if (row["task"], row["arm"]) == (task, arm)), key=lambda row: row["seed"])
        step_s, rollout_s, episodes, sampled, trained = (_mean(same, name) for name in COLUMNS)
        before = ", ".join(f"{row['success_before']:.2f}" for row in same)
        after = ", ".join(f"{row['success_after']:.2f}" for row in same)
        lines.append(
            f"| {task} | {arm} | {step_s:.2f} | {'-' if isnan(rollout_s) else f'{rollout_s:.2f}'} | {episodes:.2f} "
            f"| {sampled:,.0f} | {trained:,.0f} | {before} | {after} |"
        )
    return "\n".join(lines)


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    """Return the mean over rows; NaN if a row from an earlier version of the script lacks the number."""
    return fmean(row.get(name, nan) for row in rows)


def _order(row: dict[str, Any]) -> tuple[int, int]:
    return list(ARMS).index(row["task"]), list(ARMS[row["task"]]).index(row["arm"])


def origin() -> dict[str, Any]:
    """Return machine, date, commit and versions."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {cpu}, {os.cpu_count()} cores",
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl")},
    }


def main() -> None:
    """Measure, print the table, write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SETTINGS), default="tiny")
    parser.add_argument("--tasks", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--groups", type=int, default=4, help=f"of {GROUP_SIZE} episodes, a step")
    parser.add_argument("--lr", type=float, default=OptimizerConfig().lr)
    parser.add_argument("--demos", type=int, default=0, help="steps of the warm start; 0 for each task's own number")
    parser.add_argument("--eval-episodes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    options.seeds = [*dict.fromkeys(options.seeds)]  # a seed that is given twice is one seed
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if options.out.exists():  # rows of other seeds stay
        kept = json.loads(options.out.read_text(encoding="utf-8"))["rows"]
        again = {setting.name for setting in SETTINGS[options.model]} & set(options.tasks)
        rows = [row for row in kept if row["seed"] not in options.seeds or row["task"] not in again]
    for seed in options.seeds:
        for setting in SETTINGS[options.model]:
            if setting.name in options.tasks:
                with tempfile.TemporaryDirectory() as folder:
                    for row in measure(setting, seed, Path(folder), options):
                        rows.append(row)
                        write(rows, options.out)  # an arm takes minutes, so one that fails does not stop the others
    print(table(rows))


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """Write the rows and their table."""
    out.write_text(json.dumps({"group_size": GROUP_SIZE, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(table(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
