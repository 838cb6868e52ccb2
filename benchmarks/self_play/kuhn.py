"""Kuhn poker by self-play: how far from an equilibrium is what a small language model learns?

    python benchmarks/self_play/kuhn.py run --seeds 0 1 2
    python benchmarks/self_play/kuhn.py report --seeds 0 1 2

``run`` trains the recipe ``kuhn`` and reads the policy off the model while it is trained: the probability of each move
in each of the twelve information sets, which is that of the tokens that say it, divided by that of all legal moves. Of
these numbers the exact exploitability is computed by walking the whole game, for the policy as it is and for its
average over the steps from ``--average-from`` on (weighted by how often the player lets the information set come up, as
fictitious play averages). ``report`` writes ``kuhn.json``, ``kuhn.md`` and ``kuhn.svg``. Finished runs are not run
again, and a run that was stopped resumes from its last checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from agentgym.engine import Engine
from agentgym.envs.games.kuhn import (
    BET,
    DEALS,
    GAME_VALUE,
    INFORMATION_SETS,
    PASS,
    KuhnState,
    Policy,
    best_response_return,
    expected_return,
    exploitability,
)
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.record import append_json_line, read_json_lines, rewrite_json_lines
from agentgym.rollout.session import Session
from agentgym.trainers.config.overrides import apply_overrides, save_config, to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.phases.rollouts import Rollouts
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.run.folder import check_run_dir
from agentgym.trainers.types import Metrics
from agentgym.types import Completion, FinishReason, Message


def prompt_of(state: KuhnState, renderer: ChatRenderer) -> tuple[int, ...]:
    """Return the model's prompt for its move: the player's conversation so far."""
    player = state.player
    own_turns = [state.history[:at] for at in range(player, len(state.history) + 1, 2)]
    said = [(Message("user", KuhnState(state.cards, history).view(player)),) for history in own_turns]
    session = Session(renderer, (), said[0])
    for history, heard in zip(own_turns, said[1:], strict=False):
        ids = renderer.action_ids(Message("assistant", state.history[len(history)]), ())
        session.add_completion(
            Completion(
                token_ids=ids,
                logprobs=(0.0,) * len(ids),
                policy_versions=(0,) * len(ids),
                finish_reason=FinishReason.STOP,
            )
        )
        session.add_replies(heard)
    return session.prompt_ids


async def read_policy(engine: Engine, renderer: ChatRenderer) -> tuple[Policy, float]:
    """Return the model's policy, and the smallest probability of all legal moves over the information sets."""
    policy: dict[str, dict[str, float]] = {}
    least_legal = 1.0
    for known, state in INFORMATION_SETS.items():
        prompt = prompt_of(state, renderer)
        chances = {
            move: math.exp(sum(await engine.score(prompt, renderer.action_ids(Message("assistant", move), ()))))
            for move in (PASS, BET)
        }
        legal = sum(chances.values())
        least_legal = min(least_legal, legal)
        policy[known] = {move: chance / legal for move, chance in chances.items()}
    return policy, least_legal


class AveragePolicy:
    """The average policy of fictitious play: policies are weighted by the probability of reaching a choice."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, float]] = {}

    def add(self, policy: Policy) -> None:
        """Add a policy to the average."""
        for known, state in INFORMATION_SETS.items():
            reach = 1.0
            if len(state.history) == 2:  # the first player's second choice comes after its own pass
                reach = policy[KuhnState(state.cards).view(0)][PASS]
            sums = self._sums.setdefault(known, dict.fromkeys((PASS, BET), 0.0))
            for move, chance in policy[known].items():
                sums[move] += reach * chance

    @property
    def policy(self) -> Policy:
        """The average so far."""
        return {
            known: {move: value / sum(sums.values()) for move, value in sums.items()}
            for known, sums in self._sums.items()
        }


def describe(policy: Policy, prefix: str = "") -> dict[str, float]:
    """Return exploitability, and each player's value against the other player and against a best response."""
    return {
        f"{prefix}exploitability": exploitability(DEALS, policy),
        f"{prefix}value": expected_return(DEALS, policy),
        f"{prefix}value_against_best": -best_response_return(DEALS, policy, 1),
    }


class MeasuredLoop(TrainingLoop):
    """A training run that records its policy's distance from an equilibrium."""

    def __init__(self, config: TrainConfig, run_dir: Path, resume: bool, every: int, average_from: int) -> None:
        super().__init__(config, run_dir, resume)
        self._path = run_dir / "exploitability.jsonl"
        self._every, self._average_from, self._average = every, average_from, AveragePolicy()

    async def begin_rl(self) -> None:
        await super().begin_rl()
        await self._measure(0)

    async def learn(self) -> None:
        kept = [row for row in read_json_lines(self._path) if row["step"] <= self.state.step]
        rewrite_json_lines(self._path, kept)
        self._average = AveragePolicy()
        for row in kept:
            if row["step"] >= self._average_from:
                self._average.add({known: {PASS: 1 - bet, BET: bet} for known, bet in row["bet"].items()})
        await super().learn()

    async def step(self, rollouts: Rollouts, clock: Clock) -> Metrics:
        metrics = await super().step(rollouts, clock)
        num_done = self.state.step + 1
        if num_done % self._every == 0:
            await self.run.update_engines(num_done)  # which the loop does after the step
            await self._measure(num_done)
        return metrics

    async def _measure(self, step: int) -> None:
        policy, least_legal = await read_policy(self.run.engine, self.run.renderer)
        row: dict[str, Any] = {"step": step, "least_legal": least_legal, **describe(policy)}
        if step >= self._average_from:
            self._average.add(policy)
            row |= describe(self._average.policy, "average_")
        row["bet"] = {known: round(chances[BET], 6) for known, chances in policy.items()}
        append_json_line(self._path, row)


def run(options: argparse.Namespace) -> None:
    """Run everything that has not finished yet."""
    for seed in options.seeds:
        run_dir = options.runs / f"seed-{seed}"
        if (run_dir / "model").is_dir():
            continue
        config = apply_overrides(load_recipe("kuhn"), [f"seed={seed}", *options.overrides])
        resume = (run_dir / "config.json").exists()
        check_run_dir(config, run_dir, resume=resume)
        run_dir.mkdir(parents=True, exist_ok=True)
        save_config(config, run_dir / "config.json")
        spent = time.process_time()
        asyncio.run(MeasuredLoop(config, run_dir, resume, options.every, options.average_from).train())
        append_json_line(run_dir / "cost.jsonl", {"cpu_s": time.process_time() - spent})


def result_of(run_dir: Path) -> dict[str, Any]:
    """Return the results of one run."""
    rows = read_json_lines(run_dir / "exploitability.jsonl")
    evaluations = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "eval"]
    names = [name for name in rows[-1] if name != "bet"]
    return {
        "curve": [{name: round(row[name], 5) for name in names if name in row} for row in rows],
        "bet_at_the_end": rows[-1]["bet"],
        "return_against_equilibrium": [row["mean_return"] for row in evaluations],
        "cpu_s": round(sum(row["cpu_s"] for row in read_json_lines(run_dir / "cost.jsonl")), 1),
    }


def report(options: argparse.Namespace) -> None:
    """Write the results of finished runs."""
    runs = {str(seed): result_of(options.runs / f"seed-{seed}") for seed in options.seeds}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    config = apply_overrides(load_recipe("kuhn"), options.overrides)
    result = {
        "machine": f"{platform.machine()}, one thread",
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "uniform_exploitability": exploitability(DEALS, _uniform()),
        "game_value": GAME_VALUE,
        "config": to_dict(config),
        "runs": runs,
    }
    (options.out / "kuhn.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = table(runs)
    (options.out / "kuhn.md").write_text(text, encoding="utf-8")
    plot({seed: made["curve"] for seed, made in runs.items()}, options.out / "kuhn.svg")
    print(text)


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the final results of the runs as a Markdown table."""
    lines = [
        "| seed | exploitability before | after | of the average | value | of the average | least legal | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for seed, made in runs.items():
        first, last = made["curve"][0], made["curve"][-1]
        lines.append(
            f"| {seed} | {first['exploitability']:.3f} | {last['exploitability']:.3f} | "
            f"{last['average_exploitability']:.3f} | {last['value']:+.4f} | {last['average_value']:+.4f} | "
            f"{last['least_legal']:.4f} | {made['cpu_s']:.0f} |"
        )
    lines += ["", f"Value is the first player's in chips a game; at an equilibrium it is {GAME_VALUE:+.4f}.", ""]
    return "\n".join(lines)


def plot(curves: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    """Plot exploitability and value over training, one line per seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "agentgym"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    for number, (seed, curve) in enumerate(curves.items()):
        steps = [row["step"] for row in curve]
        averaged = [row for row in curve if "average_exploitability" in row]
        average_steps = [row["step"] for row in averaged]
        of_seed = f"C{number}"
        axes[0].plot(steps, [row["exploitability"] for row in curve], color=of_seed, alpha=0.35)
        axes[0].plot(
            average_steps, [row["average_exploitability"] for row in averaged], color=of_seed, label=f"seed {seed}"
        )
        axes[1].plot(steps, [row["value"] for row in curve], color=of_seed, alpha=0.35)
        axes[1].plot(average_steps, [row["average_value"] for row in averaged], color=of_seed)
    axes[0].set(
        title="exploitability (pale: as it is, full: average)", xlabel="step", ylabel="chips a game", yscale="log"
    )
    axes[1].axhline(GAME_VALUE, color="black", linestyle=":", label="-1/18")
    axes[1].set(title="value to the first player", xlabel="step", ylim=(-0.3, 0.2))
    for axis in axes:
        axis.legend()
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _uniform() -> Policy:
    return {known: {PASS: 0.5, BET: 0.5} for known in INFORMATION_SETS}


def main() -> None:
    """Run, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--every", type=int, default=10, help="steps between measurements")
    parser.add_argument("--average-from", type=int, default=150, help="first step that the average takes in")
    parser.add_argument("--runs", type=Path, default=Path("runs/kuhn"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("overrides", nargs="*", help="key=value of the recipe")
    options = parser.parse_intermixed_args()
    (run if options.command == "run" else report)(options)


if __name__ == "__main__":
    main()
