"""Growth of processor time with turns, context, group size, episodes at a time and ranks.

    OMP_NUM_THREADS=1 python benchmarks/growth/measure.py --output benchmarks/growth/results

Every curve gives the processor seconds of one unit of work at several sizes, the median of ``--rounds``. Its exponent
is the slope of a straight line through the logarithms of the upper half of the sizes: 1 is linear, 2 quadratic. The
lower half is left out, since constant costs, such as those of the first call, bend it.

The model has 0.8 M parameters and random weights. ``--output`` is a path without suffix: numbers go to ``.json``, the
table to ``.md`` and the curves to ``.svg``, which needs matplotlib.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import agentgym
from agentgym import ToolEnv, tool
from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.table import TurnTable
from agentgym.engine import SamplingParams
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.demos import collect_demos, collect_texts
from agentgym.trainers.data.row import Row
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs
from agentgym.trainers.losses.loss import policy_loss, token_logprobs
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.tiny import train_tokenizer
from agentgym.types import Message, Task, ToolCall

NUM_CONVERSATIONS = 8
TURN_TOKENS, SAMPLED_TOKENS = 24, 8
"""Tokens that a turn adds to a conversation, and how many of them are sampled."""


class Counter(ToolEnv):
    """An episode of as many presses as it has turns, so that its length can be chosen."""

    def start(self, task: Task) -> str:
        return "Press the button until it says that it is enough."

    @tool
    def press(self) -> str:
        """Press the button."""
        if self.turn + 1 >= self.max_turns:
            self.finish(1.0)
            return "That is enough."
        return "The button clicks, and nothing else happens."

    def oracle(self) -> Message:
        return Message("assistant", "press", (ToolCall("press", {}, "0"),))


def small_model(vocab_size: int = 512) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 384, "num_hidden_layers": 4}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    ends: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "max_position_embeddings": 1 << 15}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocab_size, **shape, **heads, **ends)).eval()


# -------------------------------------------------------------------------------------------------- turns of an episode


def play_by_oracle(num_turns: int) -> None:
    """Episodes without a model, written in tokens: the loop, the environment, the renderer and the context."""
    make_env = partial(Counter, max_turns=num_turns)
    asyncio.run(_demos(make_env))


async def _demos(make_env: Callable[[], Counter]) -> None:
    pool = EnvPool(make_env, NUM_CONVERSATIONS)
    tasks = [(at, Task(id=f"t{at}", split="train", seed=at)) for at in range(NUM_CONVERSATIONS)]
    demos = await collect_demos(tasks, pool, _renderer(), noise=0.0, max_context_tokens=1 << 15, seed=0)
    await pool.close()
    assert len(demos) == NUM_CONVERSATIONS and all(demo.success for demo in demos)


@cache
def _renderer() -> ChatRenderer:
    texts, words = collect_texts(partial(Counter, max_turns=8), [Task(id="t", split="train", seed=0)], seed=0)
    config = ModelConfig(vocab_size=512)
    return ChatRenderer(train_tokenizer(texts, config.vocab_size, words, config.splits))


def sample_turns(num_turns: int) -> None:
    """Conversations of the embedded engine, each turn read and sampled on top of those before it."""
    engine = TorchEngine(small_model(), num_slots=NUM_CONVERSATIONS, max_context_tokens=num_turns * TURN_TOKENS)
    rng = np.random.default_rng(0)
    said = rng.integers(1, 512, size=(NUM_CONVERSATIONS, num_turns, TURN_TOKENS - SAMPLED_TOKENS)).tolist()

    async def talk(number: int) -> None:
        ids: list[int] = []
        for turn in range(num_turns):
            ids += said[number][turn]
            sampling = SamplingParams(max_new_tokens=SAMPLED_TOKENS, seed=turn)
            ids += (await engine.generate(ids, sampling, session_id=str(number))).token_ids
        await engine.release(str(number))

    async def all_of_them() -> None:
        await asyncio.gather(*map(talk, range(NUM_CONVERSATIONS)))
        await engine.close()

    asyncio.run(all_of_them())


def train_on_turns(num_turns: int) -> None:
    """Forward and backward passes over a group of episodes."""
    model = small_model()
    turns = np.array(
        [at if n >= TURN_TOKENS - SAMPLED_TOKENS else -1 for at in range(num_turns) for n in range(TURN_TOKENS)]
    )
    ids = np.random.default_rng(0).integers(1, 512, size=(NUM_CONVERSATIONS, len(turns))).tolist()
    mask = turns >= 0
    samples = [
        Row.of(
            row,
            mask,
            {"advantage": mask * (member - 3.5), "logprob_rollout": mask * -6.2, "turn_index": turns},
            trajectory=member,
        )
        for member, row in enumerate(ids)
    ]
    for batch in build_batches(samples, layout="prefix"):
        logprob, entropy = token_logprobs(model, batch, 1.0)
        scores = BatchLogprobs(logprob=logprob, logprob_old=logprob.detach(), entropy=entropy)
        policy_loss(scores, batch, LossConfig()).loss.backward()  # type: ignore[no-untyped-call]


# ------------------------------------------------------------------------------------------------ length of the context


def generate_after(num_tokens: int, num_new: int) -> None:
    engine = TorchEngine(small_model(), num_slots=1, max_context_tokens=num_tokens + num_new)
    prompt = np.random.default_rng(0).integers(1, 512, size=num_tokens).tolist()

    async def once() -> None:
        await engine.generate(prompt, SamplingParams(max_new_tokens=num_new, seed=0))
        await engine.close()

    asyncio.run(once())


# --------------------------------------------------------------------------------------- members of a group, and credit


def credit_of_groups(estimator: str, group_size: int) -> Callable[[], None]:
    """GiGPO or HGPO over eight groups of episodes of ten turns; the table is made outside the time."""
    num_turns, num_groups, num_states = 10, 8, 40
    rng = np.random.default_rng(0)
    num = num_groups * group_size
    rewards = np.zeros((num, num_turns))
    rewards[:, -1] = rng.integers(2, size=num)
    table = TurnTable.from_lists(
        rewards=rewards.tolist(),
        states=[[f"state {at}" for at in row] for row in rng.integers(num_states, size=(num, num_turns)).tolist()],
        is_valid=np.ones((num, num_turns), dtype=bool).tolist(),
        group_of_trajectory=(np.arange(num) // group_size).tolist(),
    )

    def work() -> None:
        for _ in range(10):
            credit_turns(table, CreditConfig(estimator=estimator))

    return work


# --------------------------------------------------------------------------------------------------- episodes at a time


FEWEST_EPISODES = 512


def evaluate_at_once(num_envs: int) -> None:
    """Evaluate as many episodes as are played at a time, or a few hundred if those are fewer."""
    with tempfile.TemporaryDirectory() as folder:
        agentgym.evaluate(
            "agentgym/Household-v0",
            "oracle",
            episodes=max(FEWEST_EPISODES, num_envs),
            split="train",
            num_envs=num_envs,
            run_dir=Path(folder) / "run",
        )


# ---------------------------------------------------------------------------------------------------------------- ranks


def train_on_ranks(num_ranks: int, num_steps: int) -> float:
    """Processor seconds that a training step takes over all ranks: a long run less a short one, by their steps."""
    return (_run_seconds(num_ranks, 1 + num_steps) - _run_seconds(num_ranks, 1)) / num_steps


def _run_seconds(num_ranks: int, num_steps: int) -> float:
    settings = ["env.id=agentgym/GuessNumber-v0", "env.kwargs.largest=4", "env.kwargs.hints=false", "sft.num_demos=64"]
    settings += ["groups_per_step=8", "group.group_size=8", f"num_steps={num_steps}", "eval.num_episodes=8"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "-m", "agentgym"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *launcher, "train", "tiny", *settings, "--run-dir", f"{folder}/run"]
        subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# ------------------------------------------------------------------------------------------------------------------ all


@dataclass(frozen=True, slots=True)
class Curve:
    """One thing that is measured at several sizes."""

    what: str
    size: str
    sizes: Sequence[int]
    work: Callable[[int], Callable[[], Any]]
    """Makes the work of a size."""
    per: Callable[[int], int] = lambda size: 1
    """Units of work that it does, to which the seconds are given."""


TURNS, CONTEXT, MEMBERS = (5, 10, 20, 50, 100), (512, 1024, 2048, 4096, 8192), (4, 8, 16, 32, 64, 128, 256)
CURVES = (
    Curve(
        "episode by the oracle, written in tokens",
        "turns",
        TURNS,
        lambda n: partial(play_by_oracle, n),
        lambda n: NUM_CONVERSATIONS,
    ),
    Curve(
        "episode sampled by the embedded engine",
        "turns",
        TURNS,
        lambda n: partial(sample_turns, n),
        lambda n: NUM_CONVERSATIONS,
    ),
    Curve("training passes over a group of eight", "turns", TURNS, lambda n: partial(train_on_turns, n)),
    Curve("prompt read by the embedded engine", "tokens", CONTEXT, lambda n: partial(generate_after, n, 1)),
    Curve("prompt read, 64 tokens sampled", "tokens", CONTEXT, lambda n: partial(generate_after, n, 64)),
    Curve("GiGPO, eight groups of ten turns", "members", MEMBERS, partial(credit_of_groups, "gigpo"), lambda n: 10),
    Curve("HGPO, eight groups of ten turns", "members", MEMBERS, partial(credit_of_groups, "hgpo"), lambda n: 10),
    Curve(
        "household episode by the oracle, evaluated",
        "episodes at a time",
        (1, 8, 64, 512, 4096),
        lambda n: partial(evaluate_at_once, n),
        lambda n: max(FEWEST_EPISODES, n),
    ),
)


def measure_ranks(num_steps: int, *, is_tiny: bool) -> dict[str, Any]:
    sizes = (1, 2, 4)[: 2 if is_tiny else 3]
    seconds = [train_on_ranks(size, num_steps) for size in sizes]
    return {
        "what": "training step of 64 episodes, over all ranks",
        "size": "ranks (gloo)",
        "sizes": list(sizes),
        "processor_s": [float(f"{value:.4g}") for value in seconds],
        "exponent": round(exponent(sizes, seconds), 2),
    }


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of the logarithms over the upper half of the sizes.

    Example:
        >>> round(exponent([1, 2, 4, 8], [9.0, 9.0, 16.0, 64.0]), 2)
        2.0
    """
    first = min(len(sizes) // 2, len(sizes) - 2)
    return float(np.polyfit(np.log(sizes[first:]), np.log(seconds[first:]), 1)[0])


def processor_seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(curve: Curve, num_rounds: int, *, is_tiny: bool) -> dict[str, Any]:
    sizes = curve.sizes[:2] if is_tiny else curve.sizes
    curve.work(sizes[0])()  # imports, tokenizer, first calls
    seconds = []
    for size in sizes:
        work = curve.work(size)
        seconds.append(statistics.median(processor_seconds(work) for _ in range(num_rounds)) / curve.per(size))
    return {
        "what": curve.what,
        "size": curve.size,
        "sizes": list(sizes),
        "processor_s": [float(f"{value:.4g}") for value in seconds],
        "exponent": round(exponent(sizes, seconds), 2),
    }


# ------------------------------------------------------------------------------------------------------------ the files


def origin() -> str:
    """Machine, date and commit."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor")
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=Path(__file__).parent).stdout
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    today = datetime.now(UTC).date().isoformat()
    return f"{cpu}, {os.cpu_count()} cores, {versions}, {today}, commit {commit.strip()}"


def markdown(curves: Sequence[dict[str, Any]], about: str) -> str:
    """Return a table with a row per curve: its seconds at the smallest, middle and largest size."""
    lines = ["| processor time of | grows with | smallest | middle | largest | exponent |", "|---|---|---|---|---|---|"]
    for curve in curves:
        points = list(zip(curve["sizes"], curve["processor_s"], strict=True))
        shown = [f"{size:,}: {_time(value)}" for size, value in (points[0], points[len(points) // 2], points[-1])]
        lines.append(f"| {curve['what']} | {curve['size']} | {' | '.join(shown)} | {curve['exponent']:.2f} |")
    return "\n".join([*lines, "", f"{about}."]) + "\n"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def draw(curves: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot every curve in a panel of its own, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    for curve, axes in zip(curves, figure.subplots(3, 3).flat, strict=False):
        axes.loglog(curve["sizes"], curve["processor_s"], "o-", color="#2f6db3", markersize=4)
        axes.set_title(f"{curve['what']}\nexponent {curve['exponent']:.2f}", fontsize=8)
        axes.set_xlabel(curve["size"], fontsize=8)
        axes.set_ylabel("processor s", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    figure.savefig(path)


def main() -> None:
    """Measure all curves, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="training steps by which ranks are compared")
    parser.add_argument(
        "--tiny", action="store_true", help="only the two smallest sizes of each curve, as a test of the script"
    )
    parser.add_argument("--output", type=Path, help="without suffix")
    given = parser.parse_args()
    torch.set_num_threads(1)
    curves = []
    for curve in CURVES:
        curves.append(measure(curve, given.rounds, is_tiny=given.tiny))
        print(curves[-1], flush=True)
    curves.append(measure_ranks(given.steps, is_tiny=given.tiny))
    print(curves[-1])
    if given.output:
        about = origin()
        given.output.with_suffix(".json").write_text(json.dumps({"about": about, "curves": curves}, indent=1) + "\n")
        given.output.with_suffix(".md").write_text(markdown(curves, about), encoding="utf-8")
        draw(curves, given.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
