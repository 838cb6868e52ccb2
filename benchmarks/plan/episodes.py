"""Memory, bytes received and processor time of each rank for a step's episodes, from rollouts to micro-batches.

    python benchmarks/plan/episodes.py                    -> a line of JSON for each number of ranks and way
    python benchmarks/plan/episodes.py --ranks 2 --groups 2 --turns 2

``everything``: every rank receives all episodes, as it was once. ``spread``: outlines, and the rows
that it trains. Each rank makes its share of the groups from a seed. Memory is the process's peak resident size
(``VmHWM``) above its size with its own groups. The micro-batches of its share are made, but no model computes them.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loading import resident

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.trainers.data.batch import make_batch
from agentgym.trainers.data.outline import outlined
from agentgym.trainers.data.plan import plan_batches
from agentgym.trainers.data.samples import build_samples, filter_groups
from agentgym.trainers.data.spread import RankRows
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    RewardPart,
    Segment,
    Status,
    Task,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

MIB = 1 << 20
EPISODES, PROMPT, SAMPLED, CHARACTERS = 8, 150, 150, 600
WAYS = ("everything", "spread")


class Counted(Ranks):
    """Ranks that count the bytes received from the others."""

    received = 0

    def gathered(self, value: Any) -> Any:
        values = Ranks.gathered(self, value)
        Counted.received += sum(len(pickle.dumps(one)) for at, one in enumerate(values) if at != self.rank)
        return values

    def exchanged(self, parcels: Sequence[Any]) -> Any:
        values = Ranks.exchanged(self, parcels)
        Counted.received += sum(len(pickle.dumps(one)) for at, one in enumerate(values) if at != self.rank)
        return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--groups", type=int, default=32, help="groups of a step, over all ranks")
    parser.add_argument("--turns", type=int, default=20, help="turns of an episode")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        way, folder = arguments.measure
        measure(way, Path(folder), arguments.groups, arguments.turns)
        return
    for num_ranks in arguments.ranks:
        for way in WAYS:
            found = of_ranks(num_ranks, way, ["--groups", str(arguments.groups), "--turns", str(arguments.turns)])
            print(json.dumps({"ranks": num_ranks, "way": way, **found}), flush=True)


def of_ranks(num_ranks: int, way: str, size: list[str]) -> dict[str, list[float]]:
    """Return the measures, each by rank."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        subprocess.run([sys.executable, *torchrun, __file__, "--measure", way, folder, *size], check=True)
        found = [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(num_ranks)]
    return {name: [one[name] for one in found] for name in found[0]}


def measure(way: str, folder: Path, num_groups: int, num_turns: int) -> None:
    """Take part in a step as one rank, and write what it cost."""
    joined = join_ranks()
    ranks = Counted(joined.rank, joined.count, joined.config, joined.groups)
    own = [made(ordinal, num_turns) for ordinal in range(ranks.rank, num_groups, ranks.count)]
    forget_peak()
    before, began = resident("VmRSS"), time.process_time()
    num_tokens = step(own, ranks, rollouts_are_sharded=way == "spread")
    seconds, peak = time.process_time() - began, resident("VmHWM") - before
    found = {"mib": round(peak / MIB), "received_mib": round(Counted.received / MIB, 1), "cpu_s": round(seconds, 1)}
    (folder / str(ranks.rank)).write_text(json.dumps({**found, "trained_tokens": num_tokens}))
    ranks.meet()
    ranks.leave()


def step(own: Sequence[TrajectoryGroup], ranks: Ranks, *, rollouts_are_sharded: bool) -> int:
    """Exchange episodes, credit them, and make the micro-batches that this rank trains; return their sampled tokens."""
    shown = [outlined(group, with_texts=False) for group in own] if rollouts_are_sharded else own
    mine = {group.ordinal: group for group in own}
    every = sorted((group for share in ranks.gathered(shown) for group in share), key=lambda group: group.ordinal)
    groups = [mine.get(group.ordinal, group) for group in every]
    verdicts = filter_groups(groups, credit_groups(groups, CreditConfig(estimator="gigpo")), 2, "off")
    rows = RankRows.of(build_samples(verdicts), ranks, is_spread=rollouts_are_sharded)
    plan = plan_batches(rows.outlines, num_lanes=ranks.count)
    shares = [ranks.share(len(plan.batches), of=rank) for rank in range(ranks.count)]
    wanted = [[row for index, _ in share for row in plan.batches[index].rows] for share in shares]
    held = rows.fetched(ranks, wanted)
    return sum(make_batch(plan, index, held, "cpu").num_tokens for index, scale in shares[ranks.rank] if scale)


def made(ordinal: int, num_turns: int) -> TrajectoryGroup:
    """Return a group of episodes of random tokens, states, texts and rewards."""
    rng = random.Random(ordinal)
    task = Task(id=f"t{ordinal}", split="train", seed=ordinal)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(150_000), k=count))

    def turn(index: int) -> Turn:
        completion = Completion(
            token_ids=tokens(SAMPLED),
            logprobs=tuple(-rng.random() for _ in range(SAMPLED)),
            policy_versions=(0,) * SAMPLED,
            finish_reason=FinishReason.STOP,
        )
        words = "".join(rng.choices("abcdefgh ", k=CHARACTERS))
        return Turn(
            index=index,
            prompt_ids=tokens(PROMPT),
            completion=completion,
            action=Message("assistant", words, (ToolCall("go", {"to": words[:20]}),)),
            replies=(Message("tool", words[::-1]),),
            reward_parts=(RewardPart("goal", float(rng.random() < 0.1)),),
            state_key=f"room {rng.randrange(50)}",
        )

    members = tuple(
        Trajectory(
            task=task,
            env_id="made",
            status=Status.COMPLETED,
            segments=(Segment(tuple(turn(index) for index in range(num_turns))),),
            seed=member,
            success=True,
        )
        for member in range(EPISODES)
    )
    return TrajectoryGroup(ordinal=ordinal, task=task, trajectories=members)


def forget_peak() -> None:
    """Make the current resident size the peak so far."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
