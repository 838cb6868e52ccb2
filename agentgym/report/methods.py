"""Training runs as the methods of a study, each with its seeds. Figures and tables count runs by it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from agentgym.canonical import digest, readable_json, shell_word
from agentgym.errors import UsageError, unknown_name
from agentgym.evals.compare import flat_items
from agentgym.report.run_folder import RunFolder, open_run_folder
from agentgym.rollout import journal
from agentgym.rollout.kept_files import FOLDER
from agentgym.rollout.record import read_json_object
from agentgym.rollout.run_kind import kind_of_run

SWEEP = "sweep"
"""Key of ``config.json`` in the folder of a sweep."""
_PLACES = (
    "seed", "ranks.", "cluster.", "num_threads", "checkpoint_", "wandb_project", "engine.urls", "harness.host",
    "harness.port",
)  # fmt: skip
"""Settings that say where and with which seed a run was made, not by which method."""
_LONGEST_LABEL = 40
"""Longest label in characters. Methods whose settings are longer are labelled by their folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Runs that differ only in their seeds."""

    label: str
    by_seed: Mapping[str, Sequence[RunFolder]]
    """The runs of each seed. Two runs of one seed count as one, with the mean of their values."""

    @property
    def runs(self) -> list[RunFolder]:
        """All runs, in the order of their seeds."""
        return [run for runs in self.by_seed.values() for run in runs]

    @property
    def seeds_text(self) -> str:
        """The number of seeds, with that of the runs where it is another."""
        seeds = count(len(self.by_seed), "seed")
        return seeds if len(self.runs) == len(self.by_seed) else f"{seeds}, {count(len(self.runs), 'run')}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count(1, "seed"), count(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def several(given: str | Path | Sequence[Any]) -> list[Any]:
    """Return a single text or path as a list of it, and the items of anything else.

    Example:
        >>> several("runs/idea"), several(["a", "b"])
        (['runs/idea'], ['a', 'b'])
    """
    return [given] if isinstance(given, str | os.PathLike) else list(given)


def training_runs(folders: str | Path | Sequence[str | Path]) -> list[RunFolder]:
    """Return the training runs in one folder or several: of a sweep all its runs, and each run once.

    Raises:
        UsageError: there is no folder, one is no training run and no sweep, or a sweep has no run yet.
        CorruptDataError: a file of a run cannot be read.
    """
    found: dict[Path, RunFolder] = {}
    for folder in map(Path, several(folders)):
        paths = runs_of_sweep(folder) if is_sweep(folder) else [folder]
        if not paths:
            resume = f"agentgym sweep --resume {shell_word(folder)}"
            raise UsageError(f"{folder} is a sweep without a run that has begun; {resume} continues it")
        for path in paths:
            if path.resolve() in found:
                continue
            run = open_run_folder(path)
            if run.kind != "training run":
                shows = "agentgym view shows it" if run.kind == "cross-play" else "agentgym compare compares those"
                raise UsageError(f"{path} is not the folder of a training run, its kind is {run.kind}; {shows}")
            found[path.resolve()] = run
    if not found:
        raise UsageError("name at least one folder of a training run or of a sweep")
    return list(found.values())


def is_sweep(folder: Path) -> bool:
    """Return True for the folder of a sweep."""
    return (folder / "config.json").is_file() and SWEEP in read_json_object(folder / "config.json")


def runs_of_sweep(folder: Path) -> list[Path]:
    """Return the folders of a sweep's runs that have begun, in the order of the sweep."""
    names = read_json_object(folder / "config.json")[SWEEP]["runs"]
    return [folder / "runs" / name for name in names if (folder / "runs" / name / "metrics.jsonl").is_file()]


def methods_of(runs: Sequence[RunFolder], by: Sequence[str] = ()) -> list[Method]:
    """Group runs into methods, in the order of their first runs.

    Args:
        by: settings whose equal values make a method, by path; by default all that do not name a place or a seed.
            A warm start that differs only in its seed is no difference, whatever the path of its model.

    Raises:
        UnknownNameError: no run has one of the settings ``by``.
    """
    starts = _starts_of_methods(runs)
    settings = [_settings(run, starts) for run in runs]
    names = [_known(name, settings) for name in by]
    groups: dict[str, list[int]] = {}
    for at, (values, _) in enumerate(settings):
        chosen = {name: values.get(name) for name in names} if names else values
        groups.setdefault(json.dumps(chosen, sort_keys=True, default=str), []).append(at)
    labels = _labels(runs, [settings[group[0]][0] for group in groups.values()], list(groups.values()), names)
    methods = []
    for label, group in zip(labels, groups.values(), strict=True):
        by_seed: dict[str, list[RunFolder]] = {}
        for at in sorted(group, key=lambda at: _order(settings[at][1])):
            by_seed.setdefault(settings[at][1], []).append(runs[at])
        methods.append(Method(label=label, by_seed=by_seed))
    return methods


def notes_on(methods: Sequence[Method]) -> list[str]:
    """Return remarks on what the runs of a study do not share: seeds that count once, versions and files."""
    notes = []
    for method in methods:
        several = [seed for seed, runs in method.by_seed.items() if len(runs) > 1]
        if several:
            differing = _differing([_settings(run)[0] for run in method.runs])
            why = f"they differ in {', '.join(differing)}" if differing else "the same settings"
            notes.append(
                f"{method.label}: several runs of seed {', '.join(several)} ({why}) count as one seed, with their mean"
            )
    lines = {run.path: journal.read(run.path) for method in methods for run in method.runs}
    first = next((found for found in lines.values() if found), None)
    if first is not None:
        found = {change for made in lines.values() if made for change in _versions(first[-1], made[-1])}
        if found:
            notes.append(f"the runs were made with different {', '.join(sorted(found))}")
    return notes


def _versions(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of software that two lines of journals name in different versions."""
    compared = ("agentgym", "commit", "python", "packages")
    a, b = ({name: line.get(name) for name in compared} for line in (one, other))
    return [change.partition(":")[0] for change in journal.differences(a, b)]


def _starts_of_methods(runs: Sequence[RunFolder]) -> dict[str, str]:
    """Return the name of each warm start's path: with a mark in place of the seed where each seed has its own.

    A path that runs of several seeds start from is no path of a seed, nor is a number in the folders that all share.
    """
    seeds: dict[str, set[str]] = {}
    for run in runs:
        path = dict(flat_items(run.config)).get("model.path")
        if isinstance(path, str) and path:
            seeds.setdefault(path, set()).add(str(run.config.get("seed", 0)))
    levels = zip(*[Path(path).parts for path in seeds], strict=False)
    shared = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
    return {path: path if len(used) > 1 else _without(used.pop(), path, shared) for path, used in seeds.items()}


def _settings(run: RunFolder, starts: Mapping[str, str] | None = None) -> tuple[dict[str, object], str]:
    """Return the settings that make a run's method, and its seed; ``starts`` names warm starts that are gone."""
    found = {name: value for name, value in flat_items(run.config) if not name.startswith(_PLACES)}
    seed = str(run.config.get("seed", 0))
    path = found.get("model.path")
    if isinstance(path, str) and path:
        start = _start_of(run, path)
        found["model.path"] = (starts or {}).get(path, path) if start is None else f"a run of {digest(start[0])[:8]}"
        if start is not None and start[1] not in (seed, "0"):
            seed = f"{seed} from {start[1]}"
    return found, seed


def _start_of(run: RunFolder, path: str) -> tuple[dict[str, object], str] | None:
    """Return the settings and the seed of the training run that made a model, if its folder is still there."""
    folders = [Path(path), *(parent / path for parent in run.path.resolve().parents)]
    for folder in folders:
        if kind_of_run(folder.parent) == "training":
            made = RunFolder(
                path=folder.parent,
                config=read_json_object(folder.parent / "config.json"),
                metrics={},
                steps=(),
                evals={},
            )
            return _settings(made)
    return None


def _without(seed: str, path: str, shared: int = 0) -> str:
    """Return a path with a mark in place of its run's seed, since one method has a warm start for each seed.

    Example:
        >>> _without("1", "runs/easy/start-1/model"), _without("1", "runs/v12/model")
        ('runs/easy/start-SEED/model', 'runs/v12/model')
        >>> _without("1", "/data/sweep-1/start-1/model", shared=3)
        '/data/sweep-1/start-SEED/model'
    """
    parts = Path(path).parts
    marked = [re.sub(rf"(?<![\w.]){seed}(?![\w.])", "SEED", part) for part in parts[shared:]]
    return str(Path(*parts[:shared], *marked))


def _order(seed: str) -> tuple[float, str]:
    number = seed.partition(" ")[0]
    return (float(number) if number.lstrip("-").isdigit() else 0.0), seed


def _known(name: str, settings: Sequence[tuple[Mapping[str, object], str]]) -> str:
    """Return the path of a setting that is given whole or by its last parts."""
    known = list(dict.fromkeys(path for values, _ in settings for path in values))
    found = [path for path in known if path == name] or [path for path in known if path.endswith(f".{name}")]
    if len(found) != 1:
        raise unknown_name("setting", name, found or known)
    return found[0]


def _differing(settings: Sequence[Mapping[str, object]]) -> list[str]:
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if len({json.dumps(one.get(name), default=str) for one in settings}) > 1]


def _labels(
    runs: Sequence[RunFolder],
    firsts: Sequence[Mapping[str, object]],
    groups: Sequence[Sequence[int]],
    by: Sequence[str],
) -> list[str]:
    """Return a label for each group: the settings in which the groups differ, or the name of its first folder."""
    differing = list(by) or _differing(firsts)
    shown = [name for name in differing if name != "recipe" and not name.startswith(f"{FOLDER}.")] or differing
    written = [dict(flat_items(runs[group[0]].config)) for group in groups]
    labels = [", ".join(f"{_short(name)}={_word(name, one.get(name))}" for name in shown) for one in written]
    if by:
        return labels
    if len(groups) == 1 or max(map(len, labels)) > _LONGEST_LABEL or len({*labels}) < len(labels):
        return [runs[group[0]].name for group in groups]
    return labels


def _short(name: str) -> str:
    """Return the last part of a setting's name; for a component's ``kind``, the name of the component.

    Example:
        >>> _short("credit.estimator"), _short("strategy.branching.kind"), _short("own_files.lab/idea.py")
        ('estimator', 'branching', 'idea.py')
    """
    if name.startswith(f"{FOLDER}."):
        return Path(name).name.removeprefix(f"{FOLDER}.")
    return name.removesuffix(".kind").split(".")[-1]


def _word(name: str, value: object) -> str:
    text = value if isinstance(value, str) else readable_json(value)
    return text[:6] if name.startswith(f"{FOLDER}.") else text  # the digest of a file
