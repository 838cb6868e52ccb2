"""A table of the environments, over the tasks of our suites: success of scripted policies, speed and shared states.

    OMP_NUM_THREADS=1 python benchmarks/environments/table.py --out benchmarks/environments/results.json \\
        --markdown docs/environment-table.md

Per part of a suite, on its first tasks:

* success of the gold policy, of a random one and of one that says nothing (a task that silence solves measures
  nothing);
* steps per second of processor time, of this process and all below it, resets included, over the random policy's
  actions, recorded first. A sandbox's processes are children and are counted, except Docker's: hence ``--sandbox``;
* of ``--group-size`` random episodes of each task: the share of turns whose state key another episode of the group has,
  too (step-level credit needs such turns), and distinct keys per turn (1 if no state recurs).

Suites that cannot run here are in the table with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from agentgym.check.policies import noop_action, random_action
from agentgym.env.env import Env
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.errors import AgentGymError, UsageError
from agentgym.evals.suites import OpenPart, load_suite, open_suite, suite_names
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Message, Observation, Task

Choose = Callable[[Env, Observation, np.random.Generator], Message]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of a scripted policy."""

    actions: tuple[Message, ...]
    keys: tuple[str, ...]
    """State key before each action."""
    success: bool


def play(env: Env, task: Task, choose: Choose, seed: int) -> Episode:
    """Play one episode and record the state keys."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(options={"task": task})
    actions: list[Message] = []
    keys: list[str] = []
    is_over = False
    info: dict[str, Any] = {}
    while not is_over:
        keys.append(env.state_key())
        actions.append(choose(env, observation, rng))
        observation, _, terminated, truncated, info = env.step(actions[-1])
        is_over = terminated or truncated
    return Episode(tuple(actions), tuple(keys), bool(info["success"]))


def success(env: Env, tasks: Sequence[Task], choose: Choose) -> float | None:
    """Return the share of the tasks that a policy solves, None if it cannot play here."""
    try:
        return fmean(play(env, task, choose, derive_seed("table", task.id)).success for task in tasks)
    except UsageError:  # no gold policy
        return None


def shared_states(groups: Iterable[Sequence[Episode]]) -> tuple[float, float]:
    """Share of turns in a state that another episode of the group is in, too; and distinct states per turn."""
    num_shared = num_turns = num_distinct = 0
    for group in groups:
        for episode in group:
            others = {key for other in group if other is not episode for key in other.keys}
            num_shared += sum(key in others for key in episode.keys)
            num_turns += len(episode.keys)
            num_distinct += len(set(episode.keys))
    return num_shared / num_turns, num_distinct / num_turns


def cpu_s() -> float:
    """Processor seconds of this process and all below it, those that ended included."""
    parents: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process ended meanwhile
            continue
        ticks = sum(int(fields[at]) for at in (11, 12, 13, 14))  # user, system, and the same of ended children
        parents[int(folder.name)] = (int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
    return sum(seconds for pid, (_, seconds) in parents.items() if _is_below(pid, parents))


def _is_below(pid: int, parents: dict[int, tuple[int, float]]) -> bool:
    while pid in parents:
        if pid == os.getpid():
            return True
        pid = parents[pid][0]
    return False


def steps_per_s(env: Env, tasks: Sequence[Task], episodes: Sequence[Episode], min_cpu_s: float) -> float:
    """Return the steps of recorded episodes per processor second, repeated until so many seconds are measured."""
    before, num_steps = cpu_s(), 0
    while True:
        for task, episode in zip(tasks, episodes, strict=True):
            env.reset(options={"task": task})
            for action in episode.actions:
                env.step(action)
            num_steps += len(episode.actions)
        if (spent := cpu_s() - before) >= min_cpu_s:
            return num_steps / spent


def make_env(opened: OpenPart, sandbox: str) -> Env:
    """The part's environment, with the sandbox asked for where it has one."""
    env = opened.make_env()
    if not isinstance(env, SandboxEnv):
        return env
    env.close()
    part = opened.part
    return replace(part, kwargs={**part.kwargs, "sandbox": sandbox}).make_env()


def measure(opened: OpenPart, given: argparse.Namespace) -> dict[str, Any]:
    """Return a part's row."""
    env = make_env(opened, given.sandbox)
    tasks, group_size = opened.tasks[: given.tasks], given.group_size
    try:
        groups = [
            [play(env, task, random_action, derive_seed("table", task.id, n)) for n in range(group_size)]
            for task in tasks
        ]
        shared, distinct = shared_states(groups)
        firsts = [group[0] for group in groups]
        return {
            "num_tasks": len(tasks),
            "oracle": success(env, tasks, lambda env, observation, rng: env.oracle()),
            "random": fmean(episode.success for group in groups for episode in group),
            "noop": success(env, tasks, lambda env, observation, rng: noop_action(env)),
            "random_turns": fmean(len(episode.actions) for group in groups for episode in group),
            "steps_per_cpu_s": steps_per_s(env, tasks, firsts, given.min_cpu_s),
            "sandbox": given.sandbox if isinstance(env, SandboxEnv) else "",
            "shared_state_share": shared,
            "distinct_states_per_turn": distinct,
        }
    finally:
        env.close()


def rows_of(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of a suite; one row with a reason if it cannot run here."""
    suite = load_suite(name)
    facts = {"suite": suite.label, "licence": suite.licence}
    try:
        opened = open_suite(suite)
        return [
            facts
            | {"env": one.part.env, "part": one.part.label, "content_hash": opened.content_hash}
            | measure(one, given)
            for one in opened.parts
        ]
    except AgentGymError as error:
        return [
            facts | {"env": part.env, "part": part.label, "reason": " ".join(str(error).split()), "mend": suite.mend}
            for part in suite.parts
        ]


def as_markdown(rows: Sequence[dict[str, Any]], command: str) -> str:
    """The table for the docs."""
    titles = ("suite", "environment", "oracle", "random", "says nothing", "steps/s", "shared states", "licence")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows:
        suite = row["suite"] if row["part"] in row["env"].lower() else f"{row['suite']}, {row['part']}"
        cells = ["cannot run here", "", "", "", ""]
        if "reason" not in row:
            rates = [row[name] for name in ("oracle", "random", "noop")]
            cells = ["–" if rate is None else f"{rate:.0%}" for rate in rates]
            cells += [f"{row['steps_per_cpu_s']:,.0f}", f"{row['shared_state_share']:.0%}"]
        lines.append("| " + " | ".join([suite, f"`{row['env']}`", *cells, row["licence"]]) + " |")
    refused = {row["suite"]: row for row in rows if "reason" in row}
    reasons = [f"* {suite}: {row['reason']} (`{row['mend']}`)" for suite, row in refused.items()]
    note = "\n".join(["", "Could not run where the table was made:", "", *reasons]) if reasons else ""
    return "\n".join(
        [
            "# Environments, measured",
            "",
            "Scripted policies on the first tasks of every suite; steps per second of processor time, resets included;",
            "shared states: the share of a random policy's turns whose state another episode of its group comes to,",
            "too (step-level credit lives on those). Worlds of code run in namespaces here; starting a sandbox for",
            "every episode is most of what they cost. Made by",
            "",
            f"```text\n{command}\n```",
            "",
            *lines,
            note,
        ]
    )


def _suite_of(row: dict[str, Any]) -> str:
    return str(row["suite"]).partition("@")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=list(suite_names()))
    parser.add_argument("--earlier", type=Path, help="earlier results, for the suites that are not measured now")
    parser.add_argument("--tasks", type=int, default=20, help="of each part")
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--sandbox", default="namespaces", choices=("namespaces", "process"))
    parser.add_argument("--min-cpu-s", type=float, default=2.0, help="processor seconds over which a speed is measured")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.suites:
        print(name, flush=True)
        rows += rows_of(name, given)
    if given.earlier:
        played = {row["suite"].partition("@")[0] for row in rows}
        kept = json.loads(given.earlier.read_text(encoding="utf-8"))["rows"]
        rows = sorted((*rows, *(row for row in kept if row["suite"].partition("@")[0] not in played)), key=_suite_of)
    facts = {
        "when": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "num_tasks": given.tasks,
        "group_size": given.group_size,
    }
    given.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    if given.markdown:
        command = (
            f"python benchmarks/environments/table.py --tasks {given.tasks} --out results.json --markdown table.md"
        )
        given.markdown.write_text(as_markdown(rows, command).rstrip() + "\n")


if __name__ == "__main__":
    main()
