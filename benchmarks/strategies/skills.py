"""Chains of tasks with a skill library, with and without its bonuses, against the same errands without skills.

    python benchmarks/strategies/skills.py --output benchmarks/strategies/skills
    python benchmarks/strategies/skills.py --arms bonus --seeds 0 --steps 2 --every 1 --episodes 4 --output OUT \
        -- sft.num_demos=60

``bonus`` and ``no_bonus`` train the recipe ``skill-chain`` from one warm start per seed. ``household`` trains single
errands with the same model, the same number of demonstrated errands and as many episodes per step. After every few
steps the policy itself plays held-out chains, or held-out errands. Each arm's curve is read at the number of sampled
tokens that all arms of its seed reached, between measurements in proportion. What follows ``--`` changes the recipe.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import numpy as np
from compare import commit, machine

from agentgym.api.rollouts import collect_rollouts
from agentgym.evals.statistics import seeds_text
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import ToolCall, Trajectory

NO_BONUS = ("env.kwargs.made_bonus=0", "env.kwargs.used_bonus=0")
ARMS = ("bonus", "no_bonus", "household")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Held-out results of a policy at one time."""

    tokens: float
    """Tokens sampled in training so far."""
    success: float
    """Share of errands that succeed."""
    second: float
    """Share of second errands that succeed; of all errands if there are no chains."""
    used: float
    """Share of second errands in which a skill of the first ran to its end."""
    length: float
    """Tokens that the policy samples per errand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run."""

    arm: str
    seed: int
    changes: tuple[str, ...]
    points: tuple[Point, ...]
    wall_s: float
    commit: str
    date: str


def config_of(arm: str, seed: int, steps: int, changes: Sequence[str]) -> TrainConfig:
    """Return an arm's configuration, with one evaluated episode, since the script measures by itself."""
    common = [f"seed={seed}", f"num_steps={steps}", "eval.num_episodes=1", *changes]
    if arm != "household":
        return apply_overrides(load_recipe("skill-chain"), [*common, *(NO_BONUS if arm == "no_bonus" else ())])
    chain = apply_overrides(load_recipe("skill-chain"), common)
    return apply_overrides(
        chain,
        [
            "env.id=agentgym/Household-v0",
            f"env.kwargs={json.dumps(chain.env.kwargs['env_kwargs'])}",
            "eval.kwargs={}",
            f"sft.num_demos={2 * chain.sft.num_demos}",
            f"groups_per_step={2 * chain.groups_per_step}",
        ],
    )


def measure(folder: Path, config: TrainConfig, num_episodes: int) -> Point:
    """Let the policy of a run play held-out errands, two in each chain."""
    is_chain = config.env.id.endswith("SkillChain-v0")
    num_tasks = num_episodes // 2 if is_chain else num_episodes
    kwargs = {**config.env.kwargs, **({"earlier": "self"} if is_chain else {})}  # the run's evaluation sets it
    groups = collect_rollouts(config.env.id, str(folder), kwargs=kwargs, tasks=num_tasks, split="test", temperature=1.0)
    played = [trajectory for group in groups for trajectory in group.valid]
    second = [trajectory for trajectory in played if trajectory.player == 1] if is_chain else played
    steps = [row for row in read_json_lines(folder / "metrics.jsonl") if row["phase"] == "rl"]
    return Point(
        tokens=float(sum(row["sampled_tokens"] for row in steps)),
        success=fmean(bool(one.success) for one in played),
        second=fmean(bool(one.success) for one in second),
        used=fmean(uses_a_skill(one) for one in second),
        length=fmean(sum(len(turn.completion.token_ids) for turn in one.turns) for one in played),
    )


def uses_a_skill(trajectory: Trajectory) -> bool:
    """Return True if a skill ran to its end that was in the library from the start."""
    known = trajectory.observation[-1].text.partition("Skills:\n")[2] if trajectory.observation else ""
    names = {line.partition("(")[0] for line in known.splitlines()}
    return any(
        reply.result is not None and not reply.result.is_error and call.arguments.get("name") in names
        for turn in trajectory.turns
        for call, reply in zip(turn.action.calls, turn.replies, strict=False)
        if isinstance(call, ToolCall) and call.name == "use_skill"
    )


def run_arm(arm: str, seed: int, options: argparse.Namespace, scratch: Path) -> Run:
    """Train one arm from its warm start, and measure it every few steps."""
    world = "household" if arm == "household" else "chain"
    start = scratch / f"start-{world}-{seed}"
    if not start.is_dir():
        train(config_of(world, seed, 0, options.changes), start)
    folder = scratch / f"{arm}-{seed}"
    model = [*options.changes, "sft.num_demos=0", f"model.path={json.dumps(str(start / 'model'))}"]
    points = [measure(start, config_of(arm, seed, 0, options.changes), options.episodes)]
    began = datetime.now(UTC)
    for steps in range(options.every, options.steps + 1, options.every):
        config = config_of(arm, seed, steps, model)
        train(config, folder, resume=steps > options.every)
        points.append(measure(folder, config, options.episodes))
    shutil.rmtree(folder)
    return Run(
        arm=arm,
        seed=seed,
        changes=tuple(options.changes),
        points=tuple(points),
        wall_s=(datetime.now(UTC) - began).total_seconds(),
        commit=commit(),
        date=began.date().isoformat(),
    )


def at_equal_tokens(runs: Sequence[Run]) -> dict[tuple[str, int], Point]:
    """Return each run's results at the number of tokens that all runs of its seed reached."""
    found = {}
    for seed in {run.seed for run in runs}:
        own = [run for run in runs if run.seed == seed]
        budget = min(run.points[-1].tokens for run in own)
        for run in own:
            tokens = [point.tokens for point in run.points]
            read = {
                name: float(np.interp(budget, tokens, [getattr(point, name) for point in run.points]))
                for name in ("success", "second", "used", "length")
            }
            found[run.arm, seed] = Point(tokens=budget, **read)
    return found


def table(runs: Sequence[Run], read: Mapping[tuple[str, int], Point]) -> list[str]:
    """Return the rows of a table of results by arm and seed."""
    lines = [
        "| arm | before | success by seed | mean | minus household | second errands | skill used | tokens an errand |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        ends = [read[arm, run.seed] for run in own]
        ahead = [
            read[arm, run.seed].success - read["household", run.seed].success
            for run in own
            if ("household", run.seed) in read
        ]
        has_chains = arm != "household"
        lines.append(
            f"| {arm} | {fmean(run.points[0].success for run in own):.3f} "
            f"| {', '.join(f'{end.success:.3f}' for end in ends)} | {fmean(end.success for end in ends):.3f} "
            f"| {seeds_text(ahead, sign=True) if ahead and has_chains else ''} "
            f"| {f'{fmean(end.second for end in ends):.3f}' if has_chains else ''} "
            f"| {f'{fmean(end.used for end in ends):.0%}' if has_chains else ''} "
            f"| {fmean(end.length for end in ends):.0f} |"
        )
    return lines


def report(runs: Sequence[Run]) -> str:
    """Return the results as Markdown."""
    found = at_equal_tokens(runs)
    apart = {(run.arm, run.seed): run.points[-1] for run in runs}
    lines = [
        "# A skill library at equal sampled tokens",
        "",
        "Held-out success at errands of the household, sampled at temperature 1. In a chain the policy plays both. "
        "Differences to `household` are taken seed by seed, with 95 % intervals over seeds. Measured by "
        "`python benchmarks/strategies/skills.py`.",
        "",
        *table(runs, found),
        "",
        "At the end of each run, after as many episodes but different numbers of tokens:",
        "",
        *table(runs, apart),
    ]
    seeds = sorted({run.seed for run in runs})
    budgets = [min(run.points[-1].tokens for run in runs if run.seed == seed) for seed in seeds]
    changes = ", ".join(f"`{change}`" for change in runs[0].changes)
    made = sorted({(run.commit, run.date) for run in runs})
    lines += [
        "",
        "`second errands` is the success at these alone, `skill used` the share of them in which a skill of the first "
        "ran to its end. "
        f"Seeds {', '.join(map(str, seeds))}; {', '.join(f'{budget:,.0f}' for budget in budgets)} sampled tokens each "
        "in the first table. "
        f"Changes to the recipe: {changes or 'none'}. "
        f"Machine: {machine()}; {', '.join(f'commit {at}, {day}' for at, day in made)}.",
    ]
    return "\n".join(lines) + "\n"


def read_run(row: dict[str, object]) -> Run:
    """Return a run that was saved."""
    points = tuple(Point(**point) for point in row["points"])  # type: ignore[attr-defined]
    return Run(**{**row, "points": points, "changes": tuple(row["changes"])})  # type: ignore[arg-type]


def main() -> None:
    """Measure what is missing, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=12, help="steps between measurements")
    parser.add_argument("--episodes", type=int, default=200, help="held-out errands of a measurement")
    parser.add_argument("--output", type=Path, required=True, help="results, without .json and .md")
    parser.add_argument("changes", nargs="*", help="after --: KEY=VALUE of the recipe")
    options = parser.parse_args()
    options.seeds = [*dict.fromkeys(options.seeds)]  # a seed that is given twice is one seed
    path = options.output.with_suffix(".json")
    runs = [read_run(row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds:
            for arm in options.arms:
                if any((run.arm, run.seed, run.changes) == (arm, seed, tuple(options.changes)) for run in runs):
                    continue
                runs.append(run_arm(arm, seed, options, Path(scratch)))
                path.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
                options.output.with_suffix(".md").write_text(report(runs), encoding="utf-8")
    print(report(runs))


if __name__ == "__main__":
    main()
