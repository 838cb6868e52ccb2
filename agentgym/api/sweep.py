"""Sweeps: one training run for each combination of values and each seed, with warm starts that runs share."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.api.changes import plain_changes, plain_values
from agentgym.api.run_dirs import as_path, need_train_extra, new_run_dir
from agentgym.api.sweep_runs import SweepJob, run_jobs
from agentgym.api.trust import require_trust
from agentgym.canonical import digest, is_whole, shell_word, strict_json
from agentgym.errors import ConfigError, CorruptDataError, RunStoppedError, UsageError
from agentgym.progress import StatusConsole
from agentgym.rollout.folder_lock import locked
from agentgym.rollout.kept_files import keep_files
from agentgym.rollout.record import read_json_object
from agentgym.settings import read_pair
from agentgym.trust import sign

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_LONGEST_NAME = 60
_MOST_RUNS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a sweep."""

    name: str
    seed: int
    changes: Mapping[str, object]
    """Values that replace the recipe's, by path, the seed among them."""
    config: TrainConfig
    start: str = ""
    """Name of the warm start that it shares; empty if it makes its own."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The runs of a sweep."""

    recipe: str
    changes: Mapping[str, object] = field(default_factory=dict)
    """Values of all runs, by path."""
    axes: Mapping[str, Sequence[object]]
    """The values of each setting that varies, by path. Every combination is a method."""
    seeds: Sequence[int]

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """The runs, the seeds of a method one after the other.

        Raises:
            UsageError: the recipe or a key is unknown.
            ConfigError: a value is wrong, or values do not fit together; the message names the run.
        """
        from agentgym.trainers.branches import warm_start_settings

        made: list[PlannedRun] = []
        by_start: dict[str, list[int]] = {}
        names: set[str] = set()
        for values in itertools.product(*self.axes.values()):
            own = dict(zip(self.axes, values, strict=True))
            label = _name_of(own, names)
            for seed in self.seeds:
                changes = {**self.changes, **own, "seed": seed}
                name = f"{label}-seed{seed}"
                config = _config(self.recipe, changes, name)
                if config.sft.has_phase and config.num_steps:
                    by_start.setdefault(digest(warm_start_settings(config)), []).append(len(made))
                made.append(PlannedRun(name=name, seed=seed, changes=changes, config=config))
        starts = {
            at: f"start-seed{made[at].seed}-{key[:6]}"
            for key, group in by_start.items()
            if len(group) > 1
            for at in group
        }
        return tuple(
            PlannedRun(name=run.name, seed=run.seed, changes=run.changes, config=run.config, start=starts.get(at, ""))
            for at, run in enumerate(made)
        )

    @property
    def starts(self) -> dict[str, PlannedRun]:
        """The shared warm starts by name, each with the first run that uses it."""
        found: dict[str, PlannedRun] = {}
        for run in self.runs:
            if run.start:
                found.setdefault(run.start, run)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as ``config.json`` of a sweep holds it."""
        names = [run.name for run in self.runs]
        return {"recipe": self.recipe, "changes": self.changes, "axes": self.axes, "seeds": self.seeds, "runs": names}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The result of a sweep."""

    sweep_dir: str
    runs: tuple[str, ...]
    """Folders of the runs that have finished."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The last line of each run that failed, by its folder."""


def sweep(
    recipe: str,
    axes: Mapping[str, Iterable[object]],
    *,
    seeds: Iterable[int] = (0,),
    changes: Mapping[str, object] | None = None,
    sweep_dir: str | Path | None = None,
    jobs: int = 0,
) -> SweepResult:
    """Train a recipe once for each combination of values and each seed, as ``agentgym sweep`` does.

    Runs of one seed that differ in settings of RL alone share one warm start. Each run is a process of its own, so
    components of one's own are named by their file (``idea.py:mine``).

    Args:
        recipe: a name from ``agentgym list --recipes``.
        axes: the values of each setting that varies, by path, as in ``{"credit.estimator": ["grpo", "gigpo"]}``.
        seeds: seed of each run of a combination.
        changes: values of all runs, by path.
        sweep_dir: folder of the sweep; by default ``runs/<recipe>-sweep-<NNN>``.
        jobs: runs at the same time; 0 for as many as the cores or GPUs allow.

    Raises:
        UsageError: the recipe or a key is unknown, a value cannot be stored, or nothing varies.
        ConfigError: a value is wrong, or values of a combination do not fit together.
        RunStoppedError: a run failed; :func:`resume_sweep` continues.
    """
    need_train_extra("training")
    most = _checked_jobs(jobs)
    varied = {key: plain_values(key, values) for key, values in plain_changes("axes", axes, several=True).items()}
    plan = plan_of(recipe, varied, plain_values("seeds", seeds), plain_changes("changes", changes))
    return run_sweep(plan, begin(plan, None if sweep_dir is None else as_path("sweep_dir", sweep_dir)), most)


def resume_sweep(sweep_dir: str | Path, *, jobs: int = 0) -> SweepResult:
    """Run what a sweep has not finished: runs that stopped go on, and those that failed are tried again.

    Raises:
        UsageError: there is no such sweep, or another user made it.
        RunStoppedError: a run failed.
    """
    need_train_extra("training")
    folder, most = as_path("sweep_dir", sweep_dir), _checked_jobs(jobs)
    return run_sweep(open_sweep(folder), folder, most)


def _checked_jobs(jobs: object) -> int:
    if is_whole(jobs) and jobs >= 0:
        return jobs
    raise UsageError(f"jobs={jobs!r} is not a number of runs; 0 takes as many as the cores or GPUs allow")


def plan_of(recipe: str, axes: Mapping[str, Any], seeds: Sequence[Any], changes: Mapping[str, object]) -> SweepPlan:
    """Return the plan of a sweep after checking that it varies something and repeats nothing.

    Raises:
        UsageError: nothing varies, a value is given twice, or there are too many runs.
    """
    for key, values in {**axes, "seeds": seeds}.items():
        written = [strict_json(value) for value in values]
        if twice := next((text for text in written if written.count(text) > 1), None):
            raise UsageError(f"{key} has {twice} twice; two runs of one seed are not two seeds")
    if wrong := [seed for seed in seeds if not isinstance(seed, int) or isinstance(seed, bool)]:
        raise UsageError(f"seeds={wrong[0]!r} is not a whole number; write seeds=0,1,2 or seeds=0..4")
    if {"seed", "seeds"} & {*changes, *axes}:
        raise UsageError("seed is an axis of every sweep; write seeds=0,1,2 or seeds=0..4, in Python seeds=range(5)")
    if both := [(key, axis) for key in changes for axis in axes if f"{key}.".startswith(f"{axis}.")]:
        key, axis = both[0]
        raise UsageError(f"{key} is set for all runs, and the values of {axis} would replace it; leave out one of them")
    number = len(seeds)
    for values in axes.values():
        number *= len(values)
    if number < 2:
        raise UsageError("nothing varies: give a setting several values, as in optimizer.lr=1e-4,3e-4, or seeds=0..4")
    if number > _MOST_RUNS:
        raise UsageError(f"{number:,} combinations; a sweep has at most {_MOST_RUNS:,} runs")
    return SweepPlan(recipe=recipe, changes=changes, axes=axes, seeds=seeds)


def read_words(words: Sequence[str]) -> tuple[dict[str, object], dict[str, list[object]], list[int]]:
    """Return the changes, axes and seeds that words such as ``optimizer.lr=1e-4,3e-4`` and ``seeds=0..4`` give.

    Raises:
        ConfigError: a word is not ``key=value``, or a list has an empty value.
        UsageError: a key is given twice.

    Example:
        >>> read_words(["num_steps=4", "credit.estimator=grpo,gigpo", "seeds=0..2"])
        ({'num_steps': 4}, {'credit.estimator': ['grpo', 'gigpo']}, [0, 1, 2])
        >>> read_words(['credit.shapers=[],[{"kind": "g_ra"}]', "optimizer.betas=[0.9,0.99]"])[0]
        {'optimizer.betas': [0.9, 0.99]}
    """
    changes: dict[str, object] = {}
    axes: dict[str, list[object]] = {}
    seeds: list[Any] = [0]
    seen: set[str] = set()
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"expected key=value, got {word!r}")
        name = "seeds" if key == "seed" else key
        if name in seen:
            raise UsageError(f"{key} is given twice; list its values as in {key}=1,2")
        seen.add(name)
        values = split_values(key, text)
        if name == "seeds":
            seeds = values
        elif len(values) > 1:
            axes[key] = values
        else:
            changes[key] = values[0]
    return changes, axes, seeds


def split_values(key: str, text: str) -> list[object]:
    """Return the values in a text: those between its commas, or the whole numbers of a range.

    Commas inside of brackets and quotes separate nothing.

    Raises:
        ConfigError: a value is empty, or a range goes down.

    Example:
        >>> split_values("seeds", "0..3"), split_values("credit.estimator", "grpo,mine.py:idea")
        ([0, 1, 2, 3], ['grpo', 'mine.py:idea'])
        >>> split_values("loss.options", '{"a": [1, 2]},null'), split_values("x", '"a,b"')
        ([{'a': [1, 2]}, None], ['a,b'])
    """
    if found := _RANGE.fullmatch(text):
        first, last = int(found[1]), int(found[2])
        if last < first or last - first >= _MOST_RUNS:
            raise ConfigError(f"{key}={text}: a range counts up, as in 0..4, and has at most {_MOST_RUNS:,} values")
        return list(range(first, last + 1))
    parts, depth, quoted, escaped = [""], 0, False, False
    for one in text:
        if one == "," and not depth and not quoted:
            parts.append("")
            continue
        parts[-1] += one
        if quoted:
            quoted, escaped = one != '"' or escaped, one == "\\" and not escaped
        else:
            quoted = one == '"'
            depth += (one in "[{(") - (one in "]})" and depth > 0)
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise ConfigError(f"{key}={text}: a value between two commas is empty; write a text with a comma in quotes")
    return [read_pair(f"{key}={part}")[1] for part in parts]


def has_several_values(word: str) -> bool:
    """Return True if a sweep would read several values from ``key=value``.

    Example:
        >>> has_several_values("seed=0..4"), has_several_values("seed=0"), has_several_values('x={"a": [1, 2]}')
        (True, False, False)
    """
    key, _, text = word.partition("=")
    try:
        return len(split_values(key, text)) > 1
    except ConfigError:
        return False


def begin(plan: SweepPlan, wanted: Path | None) -> Path:
    """Make the folder of a sweep, with its plan and copies of the files that it names."""
    saved = {"sweep": plan.as_dict()}  # checks every run before the folder is made
    folder = new_run_dir(f"{plan.recipe}-sweep", wanted)
    saved = keep_files(folder, saved)
    (folder / "config.json").write_text(strict_json(saved, indent=2) + "\n", encoding="utf-8")
    sign(folder)
    return folder


def open_sweep(folder: Path, require: Any = require_trust) -> SweepPlan:
    """Return the plan of a sweep that was begun.

    Raises:
        UsageError: there is no such sweep, or another user made it.
        CorruptDataError: its configuration cannot be read.
    """
    if not (folder / "config.json").is_file() or "sweep" not in read_json_object(folder / "config.json"):
        raise UsageError(f"{folder} is not the folder of a sweep: it has no config.json of one")
    require(folder)
    saved = read_json_object(folder / "config.json")["sweep"]
    try:
        return SweepPlan(recipe=saved["recipe"], changes=saved["changes"], axes=saved["axes"], seeds=saved["seeds"])
    except (KeyError, TypeError) as error:
        raise CorruptDataError(f"{folder / 'config.json'} is not the plan of a sweep ({error!r})") from error


def run_sweep(plan: SweepPlan, folder: Path, jobs: int = 0) -> SweepResult:
    """Run what has not finished, warm starts first, and return the folders of the runs.

    Raises:
        UsageError: another process runs the sweep.
        RunStoppedError: a run failed.
    """
    devices = _devices()
    most = jobs or _side_by_side(plan, len(devices))
    with locked(folder):
        failed = run_jobs(_jobs(plan, folder), folder / "logs", most, StatusConsole(), devices)
    finished = tuple(str(folder / "runs" / run.name) for run in plan.runs if run.name not in failed)
    if failed:
        first, why = next(iter(failed.items()))
        others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise RunStoppedError(
            f"{first}{others} failed: {why}; the others are kept: agentgym sweep --resume {shell_word(folder)} tries "
            f"again, and {folder / 'logs'} has what each run printed"
        )
    return SweepResult(sweep_dir=str(folder), runs=finished)


def _jobs(plan: SweepPlan, folder: Path) -> list[SweepJob]:
    """Return the jobs of a sweep, those of warm starts first."""
    starts = [
        SweepJob(
            name=name,
            folder=folder / "starts" / name,
            begin=(plan.recipe, *_words({**run.changes, "num_steps": 0})),
        )
        for name, run in plan.starts.items()
    ]
    runs = []
    for run in plan.runs:
        words = _words({**run.changes, "num_steps": run.config.num_steps})
        start = ("--resume", str(folder / "starts" / run.start))
        begun = (*start, *words) if run.start else (plan.recipe, *words)
        runs.append(
            SweepJob(
                name=run.name,
                folder=folder / "runs" / run.name,
                begin=begun,
                needs=run.start,
            )
        )
    return [*starts, *runs]


def _words(changes: Mapping[str, object]) -> list[str]:
    return [f"{key}={strict_json(value)}" for key, value in changes.items()]


def _config(recipe: str, changes: Mapping[str, object], name: str) -> TrainConfig:
    from agentgym.trainers.config.overrides import apply_overrides, without_arguments_of_its_env
    from agentgym.trainers.recipes import load_recipe

    words = _words(changes)
    config, _ = without_arguments_of_its_env(load_recipe(recipe), words)
    try:
        return apply_overrides(config, words)
    except ConfigError as error:
        raise type(error)(f"{name}: {error}") from error


def _name_of(values: Mapping[str, object], taken: set[str]) -> str:
    """Return a name of a combination for folders, which no other combination has."""
    parts = [f"{key.rpartition('.')[2]}-{_slug(value)}" for key, value in values.items()]
    name = "_".join(parts) or "run"
    if len(name) > _LONGEST_NAME or name in taken:
        name = f"{name[: _LONGEST_NAME - 7].rstrip('-_')}-{digest(values)[:6]}"
    taken.add(name)
    return name


def _slug(value: object) -> str:
    text = value if isinstance(value, str) else strict_json(value)
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-") or "none"


def _devices() -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return (named.split(",") if named else [*map(str, range(torch.cuda.device_count()))])[: torch.cuda.device_count()]


def _side_by_side(plan: SweepPlan, num_devices: int) -> int:
    """Return the number of runs that this machine's GPUs, or else its cores, can hold at the same time."""
    if any(run.config.cluster.address for run in plan.runs):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return num_devices or max(1, cores // max(run.config.num_threads for run in plan.runs))
