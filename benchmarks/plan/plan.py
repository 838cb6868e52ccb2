"""From 1 to 1,000 GPUs on paper: the rollout simulator on assumed devices, with measurements of everything else.

    python benchmarks/plan/plan.py --measure      processor time of a turn in the playing process -> measured.json
    python benchmarks/plan/plan.py                plan.json and plan.md, the same at every run

Measured: an environment's step, a search server, a turn of the playing process, the simulator against real runs.
Assumed, since none of this has run on a GPU: :class:`Device`, from the data sheet of an H100 SXM and shares of it that
are usual, and :class:`Workload`. Whoever has a recording of a run replaces both by it (``read_recording``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "simulator"))
from simulator import Mode, Plan, simulate
from traces import EngineCost, EpisodeTrace, Recording, TurnTrace

HERE = Path(__file__).parent
CHUNK = 10
"""Tokens that the simulator treats as one, at ten times the cost; as exact at this size, and ten times as fast."""
NUM_PARAMETERS = 1_543_714_304
"""Parameters of Qwen2.5-1.5B."""
GPUS = (1, 8, 64, 256, 1000)
SIMULATED = (1, 8, 64)
"""Simulated numbers of GPUs. Larger ones repeat the result of eight; figures that do not scale are computed."""
GROUPS_PER_GPU, GROUP_SIZE, NUM_STEPS = 2, 8, 5
ENVS_PER_ENGINE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Assumed device: an H100 SXM by its data sheet, and the share of it that each kind of work reaches."""

    bandwidth_bytes_per_s: float = 0.6 * 3.35e12
    bf16_flops: float = 0.4 * 989e12
    fp32_flops: float = 0.6 * 67e12
    tick_overhead_s: float = 0.001
    network_bytes_per_s: float = 50e9
    """Bandwidth of one GPU to other machines."""
    shared_disk_bytes_per_s: float = 10e9
    """Bandwidth of the storage from which all machines read weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Assumed workload: ALFWorld in the middle of training, with a prompt per turn (``context.policy=window``)."""

    success: float = 0.5
    success_turns: tuple[int, int] = (8, 24)
    """Turns of a successful episode, uniform; others use all their turns."""
    max_turns: int = 50
    prompt_tokens: int = 700
    sampled_tokens: int = 60
    num_groups: int = 64
    seed: int = 0


def measured() -> dict[str, float]:
    """Return the committed measurements of the other benchmarks that the plan uses."""

    def read(name: str) -> Any:
        return json.loads((HERE.parent / name).read_text(encoding="utf-8"))

    alfworld = read("household_speed/results.json")["alfworld"]
    http = [
        row for row in read("search/speed.json")["http"]["rows"] if row["backend"] == "fts5" and row["workers"] == 1
    ]
    errors = [abs(row["fitted_error"]) for row in read("asynchronous/simulated.json")]
    return {
        "env_step_s": alfworld["step_s"],
        "env_restart_s": alfworld["restart_s"],
        "search_cpu_s": http[0]["server_cpu_ms"] / 1000,
        "http_client_cpu_s": http[0]["our_client_cpu_ms"] / 1000,
        "playing_cpu_s": read("plan/measured.json")["playing_cpu_s"],
        "simulator_error_median": float(np.median(errors)),
        "simulator_error_max": max(errors),
    }


def recording(
    work: Workload, device: Device, found: dict[str, float], *, train_flops: float, trainers: float, sending_s: float
) -> Recording:
    """Return the workload as the simulator reads it.

    Args:
        train_flops: of one GPU in training.
        trainers: GPUs that train, for the groups of one step of as many GPUs as there are.
        sending_s: seconds until all engines have new weights.
    """
    rng = np.random.default_rng(work.seed)
    groups = tuple(tuple(_episode(work, rng, found) for _ in range(GROUP_SIZE)) for _ in range(work.num_groups))
    turns_per_group = sum(len(episode) for group in groups for episode in group) / len(groups)
    tokens = turns_per_group * (work.prompt_tokens + work.sampled_tokens)
    gradient_s = 10 * NUM_PARAMETERS * tokens / (train_flops * trainers)  # forward twice, recompute, backward
    cost = EngineCost(
        tick_s=CHUNK * (2 * NUM_PARAMETERS / device.bandwidth_bytes_per_s + device.tick_overhead_s),
        token_s=CHUNK * 2 * NUM_PARAMETERS / device.bf16_flops,
    )
    return Recording(groups=groups, gradient_s=gradient_s, other_training_s=sending_s, engine=cost)


def _episode(work: Workload, rng: np.random.Generator, found: dict[str, float]) -> EpisodeTrace:
    low, high = work.success_turns
    num_turns = int(rng.integers(low, high + 1)) if rng.random() < work.success else work.max_turns
    turn = TurnTrace(
        env_s=found["env_step_s"],
        num_prompt_tokens=work.prompt_tokens // CHUNK,
        num_sampled_tokens=work.sampled_tokens // CHUNK,
    )
    return (turn,) * num_turns


def transfer_s(device: Device, num_engines: int, num_trainers: int) -> dict[str, float]:
    """Return the seconds until all engines have new weights in bfloat16: from the trainers, or a shared folder.

    Trainers first gather the shards in float32. Then each sends to its share of the engines over its own network link,
    one after the other, or the first one writes the files that all engines read.
    """
    gather_s = 4 * NUM_PARAMETERS * (1 - 1 / num_trainers) / device.network_bytes_per_s
    one = 2 * NUM_PARAMETERS
    return {
        "nccl": gather_s + one * math.ceil(num_engines / num_trainers) / device.network_bytes_per_s,
        "folder": gather_s + one * num_engines / device.shared_disk_bytes_per_s,
    }


def split(num_gpus: int, train_share: float) -> tuple[int, int]:
    """Return the GPUs that sample and those that train; one GPU does both in turn."""
    trainers = min(num_gpus - 1, max(1, round(num_gpus * train_share)))
    return (num_gpus - trainers, trainers) if num_gpus > 1 else (1, 1)


def row(num_gpus: int, mode: Mode, staleness: int, train_share: float, train_flops: float, name: str) -> dict[str, Any]:
    """Simulate one arrangement and return its row."""
    device, work, found = Device(), Workload(), measured()
    simulated = num_gpus if num_gpus in SIMULATED else 8
    times = num_gpus / simulated
    engines, trainers = split(simulated, train_share)
    groups = max(2, GROUPS_PER_GPU * simulated)
    sending_s = transfer_s(device, engines, trainers)["nccl"]
    data = recording(work, device, found, train_flops=train_flops, trainers=trainers / groups, sending_s=sending_s)
    plan = Plan(
        mode=mode, num_steps=NUM_STEPS, groups_per_step=groups, max_staleness=staleness,
        num_envs=ENVS_PER_ENGINE * engines, num_engines=engines,
    )  # fmt: skip
    result = simulate(plan, data)
    mean_turns = sum(len(e) for g in data.groups for e in g) / (work.num_groups * GROUP_SIZE)
    turns_per_s = times * result.num_episodes * mean_turns / result.wall_s
    step_s = result.wall_s / NUM_STEPS
    to_engines = transfer_s(device, math.ceil(engines * times), math.ceil(trainers * times))
    return {
        "trainer": name, "gpus": num_gpus, "mode": mode, "max_staleness": staleness if mode == "async" else 0,
        "engines": round(engines * times), "trainers": round(trainers * times), "is_simulated": times == 1,
        "episodes_per_hour": times * result.episodes_per_hour, "step_s": step_s,
        "engine_busy": result.engine_busy_share, "trainer_busy": result.trainer_busy_share,
        "staleness_mean": result.staleness_mean, "turns_per_s": turns_per_s,
        "env_cores": turns_per_s * found["env_step_s"],
        "playing_cores": turns_per_s * (found["playing_cpu_s"] + found["http_client_cpu_s"]),
        "search_cores": turns_per_s * found["search_cpu_s"],
        "folder_share": to_engines["folder"] / step_s, "nccl_share": to_engines["nccl"] / step_s,
    }  # fmt: skip


def plan() -> list[dict[str, Any]]:
    """Return all arrangements: the trainer as it is, and one in bfloat16, at the fastest split of eight GPUs."""
    rows = []
    for name, flops in (("float32", Device().fp32_flops), ("bfloat16", Device().bf16_flops)):
        tried = [(row(8, "async", 1, k / 8, flops, name)["episodes_per_hour"], k / 8) for k in range(1, 8)]
        share = max(tried)[1]
        modes: list[tuple[Mode, int]] = [("sync", 0), ("async", 1), ("async", 2)]
        for gpus in GPUS:
            chosen = modes[:1] if gpus == 1 else modes if gpus == 8 else modes[1:2]
            rows += [row(gpus, *mode, share, flops, name) for mode in chosen]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the plan as Markdown."""
    lines = [
        "| trainer | GPUs | sampling + training | mode | episodes per hour | a step, s | engines busy | trainer busy "
        "| staleness | cores: environments | cores: playing | cores: search "
        "| weights by folder / NCCL, share of a step |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        mode = r["mode"] + (f" {r['max_staleness']}" if r["mode"] == "async" else "")
        mark = "" if r["is_simulated"] else " *"
        lines.append(
            f"| {r['trainer']} | {r['gpus']:,}{mark} | {r['engines']} + {r['trainers']} | {mode} "
            f"| {r['episodes_per_hour']:,.0f} | {r['step_s']:,.0f} | {r['engine_busy']:.0%} | {r['trainer_busy']:.0%} "
            f"| {r['staleness_mean']:.2f} | {r['env_cores']:,.1f} | {r['playing_cores']:,.2f} "
            f"| {r['search_cores']:,.2f} | {r['folder_share']:.1%} / {r['nccl_share']:.1%} |"
        )
    return "\n".join(lines)


def measure() -> dict[str, Any]:
    """Return the processor seconds of a turn in the rollouts' process: render, parse, and step a cheap environment."""
    from agentgym.registry import make
    from agentgym.render.chat import ChatRenderer
    from agentgym.rollout.agent import DemonstrationAgent
    from agentgym.rollout.loop import run_episode
    from agentgym.rollout.request import RolloutRequest
    from agentgym.trainers.models.tiny import train_tokenizer

    env = make("agentgym/Household-v0")
    tasks = env.tasks("test")[:12]
    texts = [env.reset(options={"task": task})[0][0].text for task in tasks]
    renderer = ChatRenderer(train_tokenizer(texts, 1024))

    def play() -> int:
        num_turns = 0
        for task in tasks:
            agent = DemonstrationAgent(lambda observation: env.oracle(), renderer, 8192)
            request = RolloutRequest(task=task, make_agent=lambda *_, agent=agent: agent)
            num_turns += len(asyncio.run(run_episode(env, request)).turns)
        return num_turns

    play()
    started = time.process_time()
    num_turns = sum(play() for _ in range(3))
    return {"playing_cpu_s": (time.process_time() - started) / num_turns, "num_turns": num_turns}


def main() -> None:
    """Measure, or plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the playing process instead")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the results")
    options = parser.parse_args()
    if options.measure:
        (options.out / "measured.json").write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
        return
    rows = plan()
    inputs = {"measured": measured(), "device": asdict(Device()), "workload": asdict(Workload())}
    (options.out / "plan.json").write_text(
        json.dumps({"inputs": inputs, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    (options.out / "plan.md").write_text(table(rows) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
