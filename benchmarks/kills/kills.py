"""Kill runs with ``kill -9`` at random moments, resume them, and compare them with uninterrupted runs.

    python benchmarks/kills/kills.py --output benchmarks/kills/results
    python benchmarks/kills/kills.py --kills 2 --kinds sync eval --output OUT

Each run is killed again and again until it ends by itself or has been killed ``MOST_A_RUN`` times; then it runs to its
end. These must hold:

* ``sync``: training ends in the same weights, bit for bit, with the same episodes, token by token.
* ``branches``, ``hints``: so does training with rollout strategies, including their state.
* ``async``: each group of rollouts is trained on once, each step is in the metrics once, and no token is older than the
  bound. Weights depend on the order of arrival there.
* ``ray``: training on a Ray cluster of this machine, whose trainer is killed, ends in the weights of a run without Ray.
* ``eval``: the evaluation's results are the same except for their seconds, and each episode counts once.

A run that differs ends the script with exit code 1. Runs are forked from a process that has imported the trainer, so
that a kill costs the run's own seconds; a Ray cluster starts anew each time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTKIT = ROOT / "tests" / "shared" / "testkit"
sys.path.insert(0, str(TESTKIT.parent))  # small worlds and runs, and the process that forks them

from testkit.counting_runs import ENV_FILE, config, token_ages, trained_ordinals, weights  # noqa: E402
from testkit.warm_python import Command  # noqa: E402

from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps  # noqa: E402
from agentgym.trainers.config.cluster import ClusterConfig  # noqa: E402
from agentgym.trainers.config.overrides import apply_overrides, save_config  # noqa: E402
from agentgym.trainers.config.train import TrainConfig  # noqa: E402

MOST_A_RUN = 6
STALENESS = 2
SHARES = {"sync": 0.25, "async": 0.2, "branches": 0.15, "hints": 0.15, "eval": 0.15, "ray": 0.1}
"""Of all kills; a run on Ray takes longest."""
STRATEGIES = {
    "branches": (
        'strategy.tasks={"kind": "vade", "pool": 5}',
        'strategy.budget={"kind": "knapsack", "low": 2, "high": 9}',
        'strategy.horizon={"kind": "scaling_inter", "rounds": [2, 9], "steps": 3}',
        'strategy.branching={"kind": "arpo", "log_vocabulary": 5.8}',
        'strategy.replay={"kind": "success"}',
        'credit.modulators=[{"kind": "shared_prefix"}]',
        "env.num_train_tasks=8",
    ),
    "hints": (
        "strategy.probe=2",
        'strategy.guidance={"kind": "fading", "target": 1.0}',
        'strategy.replay={"kind": "success", "keep": 2}',
        "loss.echo=0.1",
        "env.num_train_tasks=8",
    ),
}
NUM_EPISODES = 60
TRAIN = (
    "import sys; from pathlib import Path; from agentgym.trainers.train import train; "
    "from agentgym.trainers.config.overrides import load_config; d = Path(sys.argv[1]); "
    "train(load_config(d / 'config.json'), d, resume=True)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of run: how to prepare its folder, to start or resume it, and to compare it."""

    prepare: Callable[[Path], None]
    command: Callable[[Path], list[str]]
    is_done: Callable[[Path], bool]
    differs: Callable[[Path, Path], str]
    """Description of how a killed run's folder differs from the uninterrupted one; empty if they agree."""


def _train_config(kind: str) -> TrainConfig:
    base = config()
    if kind == "async":
        changes = ["pipeline.mode=async", f"pipeline.max_staleness={STALENESS}", "num_steps=8"]
        return apply_overrides(base, changes)
    if kind in STRATEGIES:
        return apply_overrides(base, STRATEGIES[kind])
    if kind == "ray":
        cluster = ClusterConfig(
            address="local", num_env_workers=1, object_store_mb=100, start_timeout_s=300.0, wait_s=300.0
        )
        return replace(base, cluster=cluster, engine=replace(base.engine, batch_invariant=True))
    if kind == "ray, alone":
        return replace(base, engine=replace(base.engine, batch_invariant=True))
    return base


def training(kind: str) -> Kind:
    """A training run."""

    def prepare(folder: Path) -> None:
        folder.mkdir(parents=True)
        save_config(_train_config(kind), folder / "config.json")

    return Kind(
        prepare=prepare,
        command=lambda folder: ["-c", TRAIN, str(folder)],
        is_done=lambda folder: (folder / "model" / "model.safetensors").is_file(),
        differs=_async_differs if kind == "async" else _sync_differs,
    )


def evaluation() -> Kind:
    """An evaluation of the oracle."""
    begin = ["-m", "agentgym", "eval", f"{ENV_FILE}:Counting-v0", "--policy", "oracle", "--num-envs", "4"]

    def command(folder: Path) -> list[str]:
        if (folder / "config.json").is_file():
            return ["-m", "agentgym", "eval", "--resume", str(folder)]
        return [*begin, "--episodes", str(NUM_EPISODES), "--run-dir", str(folder)]

    return Kind(
        prepare=lambda folder: folder.parent.mkdir(parents=True, exist_ok=True),
        command=command,
        is_done=lambda folder: (folder / "summary.json").is_file(),
        differs=_eval_differs,
    )


def _rl_steps(folder: Path) -> list[int]:
    return [row["step"] for row in read_json_lines(folder / "metrics.jsonl") if row["phase"] == "rl"]


def _episodes(folder: Path) -> list[Any]:
    records = [record for step in recorded_steps(folder) for record in read_records(record_path(folder, step))]
    return [
        (record.group.ordinal, [[s.token_ids for s in t.segments] for t in record.group.trajectories])
        for record in records
    ]


def _sync_differs(killed: Path, whole: Path) -> str:
    if weights(killed) != weights(whole):
        return "its weights are others"
    if _rl_steps(killed) != _rl_steps(whole):
        return f"its steps are {_rl_steps(killed)}"
    return "" if _episodes(killed) == _episodes(whole) else "its episodes are others"


def _async_differs(killed: Path, whole: Path) -> str:
    if _rl_steps(killed) != _rl_steps(whole):
        return f"its steps are {_rl_steps(killed)}"
    if sorted(trained_ordinals(killed)) != sorted(trained_ordinals(whole)):
        return f"it trained on the groups {sorted(trained_ordinals(killed))}"
    oldest = max(token_ages(killed))
    return "" if oldest <= STALENESS else f"its oldest token is {oldest} versions old"


def _eval_differs(killed: Path, whole: Path) -> str:
    def rows(folder: Path) -> list[str]:
        lines = (folder / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
        return sorted(json.dumps({**json.loads(line), "seconds": 0}) for line in lines)

    if len(rows(killed)) != NUM_EPISODES:
        return f"it has {len(rows(killed))} episodes"
    return "" if rows(killed) == rows(whole) else "its episodes are others"


@contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """Return the address of a process that forks runs."""
    address = str(folder / "socket")
    paths = os.pathsep.join([str(ROOT), str(TESTKIT.parent)])
    server = subprocess.Popen(
        [sys.executable, str(TESTKIT / "warm_python.py"), "serve", address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "AGENTGYM_CACHE": str(folder / "cache")},
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield address
    finally:
        server.kill()
        server.wait()


def start(address: str, arguments: list[str], log: Path) -> Command:
    """Start a run whose output goes to a file."""
    with open(log, "ab") as out, open(os.devnull, "rb") as nothing:
        return Command(address, arguments, (nothing.fileno(), out.fileno(), out.fileno()))


def finish(address: str, kind: Kind, folder: Path, log: Path) -> float:
    """Wait for the end of a run; return the seconds that it took."""
    began = time.monotonic()
    code = start(address, kind.command(folder), log).wait()
    if code or not kind.is_done(folder):
        raise SystemExit(f"a run ended with {code}:\n{log.read_text(encoding='utf-8')[-3000:]}")
    return time.monotonic() - began


def kill_at_random(address: str, kind: Kind, folder: Path, log: Path, longest_s: float, rng: Random) -> int:
    """Kill and resume a run, then let it end; return how often it was killed."""
    kind.prepare(folder)
    for num_kills in range(MOST_A_RUN):
        run = start(address, kind.command(folder), log)
        deadline = time.monotonic() + rng.uniform(0.0, longest_s)
        while run.is_running() and time.monotonic() < deadline:
            time.sleep(0.002)
        if not run.is_running():
            code = run.wait()
            if code:
                raise SystemExit(f"a run ended with {code}:\n{log.read_text(encoding='utf-8')[-3000:]}")
            return num_kills
        run.kill()
    finish(address, kind, folder, log)
    return MOST_A_RUN


def attack(name: str, num_kills: int, address: str, scratch: Path, seed: int) -> dict[str, Any]:
    """Kill runs of a kind until there are enough kills."""
    kind = evaluation() if name == "eval" else training(name)
    whole, log = scratch / name / "whole", scratch / f"{name}.log"
    reference = training("ray, alone") if name == "ray" else kind
    reference.prepare(whole)
    longest_s = finish(address, reference, whole, log)
    if name == "ray":  # its cluster has to start first
        again = scratch / name / "timed"
        kind.prepare(again)
        longest_s = finish(address, kind, again, log)
        if difference := kind.differs(again, whole):
            raise SystemExit(f"an uninterrupted run on Ray differs: {difference}")
    rng = Random(f"{seed} {name}")
    killed, num_runs, wrong = 0, 0, []
    while killed < num_kills:
        folder = scratch / name / f"run-{num_runs}"
        killed += kill_at_random(address, kind, folder, log, longest_s, rng)
        num_runs += 1
        if difference := kind.differs(folder, whole):
            wrong.append(f"run {num_runs}: {difference}")
        print(f"{name}: {killed} kills of {num_runs} runs, {len(wrong)} differ", flush=True)
    return {"kind": name, "kills": killed, "runs": num_runs, "whole_run_s": longest_s, "wrong": wrong}


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# Runs killed at random moments",
        "",
        f"{results['date']}, {results['machine']}, commit {results['commit']}. Command: `{results['command']}`",
        "",
        "| kind | runs | kills | runs that differ from one that nothing interrupted |",
        "|---|---|---|---|",
        *(f"| `{row['kind']}` | {row['runs']} | {row['kills']} | {len(row['wrong'])} |" for row in results["rows"]),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--kinds", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="path without suffix; .json and .md are written")
    args = parser.parse_args()
    total = sum(SHARES[name] for name in args.kinds)
    with tempfile.TemporaryDirectory() as scratch, warm_python(Path(scratch)) as address:
        rows = [
            attack(name, max(1, round(args.kills * SHARES[name] / total)), address, Path(scratch), args.seed)
            for name in args.kinds
        ]
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    options = f"--kills {args.kills} --kinds {' '.join(args.kinds)} --seed {args.seed}"
    results = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {cpu}, {os.cpu_count()} cores",
        "commit": commit.stdout.strip(),
        "command": f"python benchmarks/kills/kills.py {options}",
        "rows": rows,
    }
    args.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    args.output.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")
    print(as_markdown(results))
    if wrong := [f"{row['kind']}: {line}" for row in rows for line in row["wrong"]]:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
