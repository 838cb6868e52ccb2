"""Comparison of two evaluations of the same tasks, episode by episode."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.canonical import digest, shell_word
from agentgym.errors import CorruptDataError, UsageError
from agentgym.evals.config import EvalConfig, read_config
from agentgym.evals.episodes import Key, key_of, read_rows
from agentgym.evals.statistics import (
    detectable_difference,
    difference_interval,
    difference_p_value,
    means_by_task,
    task_interval,
    tasks_needed,
)
from agentgym.evals.suite_runner import SUITE_FILE, load_saved, part_dir
from agentgym.rollout import journal
from agentgym.rollout.folder_lock import writer_of
from agentgym.rollout.record import read_json_object
from agentgym.rollout.run_kind import RunKind, kind_of_run, runs_in, saved_envs
from agentgym.types import Status

Rows = Mapping[tuple[str, Key], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvaluation:
    """A finished evaluation for a comparison."""

    folder: Path
    label: str
    """Suite with version, or environment; for a training run also the moment."""
    policy: str
    content_hash: str
    rows: Rows
    """Rows of all episodes by part, task and seed."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment. (A suite fixes those of its parts.)"""
    scoring: Mapping[str, object] = field(default_factory=dict)
    """The scorers that define success, by part of a suite; empty for the environment's own success."""
    moment: str = ""
    """Moment of a training run, as in ``before RL``; empty for other evaluations."""

    @property
    def name(self) -> str:
        """The label without the moment."""
        return self.label.removesuffix(f", {self.moment}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of comparing B with A on pairs of episodes that are evidence in both."""

    suite_or_env: str
    content_hash: str
    policy_a: str
    policy_b: str
    num_pairs: int
    num_left_out: int
    """Pairs in which an episode failed or is missing."""
    success_a: float
    """Success of A in the pairs: the mean over tasks of each task's rate, as everywhere."""
    success_b: float
    difference: float
    """Success of B minus success of A, which is :attr:`success_b` minus :attr:`success_a`."""
    difference_low: float
    """Lower end of the 95 % interval over tasks, by :func:`~agentgym.evals.statistics.difference_interval`."""
    difference_high: float
    num_only_a: int
    """Pairs that only A solved."""
    num_only_b: int
    p_value: float
    """p-value of the hypothesis that A and B solve equally many tasks, by the method of the interval: it is below 0.05
    if the interval excludes 0."""
    detectable: float
    """Smallest difference of success that so many tasks detect with probability 0.8; above 1 if there are too few."""
    tasks_needed: int | None
    """Number of tasks that would detect the observed difference with probability 0.8; None if A and B solve equally
    many."""
    return_difference: float
    return_difference_low: float
    """Lower end of the 95 % bootstrap interval over tasks."""
    return_difference_high: float
    p_adjusted: float | None = None
    """p-value by Holm's correction for all pairs of policies of a suite; None for a comparison by itself."""

    @property
    def is_distinguishable(self) -> bool:
        """True if the interval of the difference excludes 0."""
        return not self.difference_low <= 0 <= self.difference_high

    @property
    def pays_for_failure(self) -> bool:
        """True if B significantly earns more but solves less than A, so that the reward pays for something else."""
        return self.return_difference_low > 0 > self.difference_high


def holm_text(one: Comparison) -> str:
    """Return the corrected p-value as text; a dash for a comparison by itself."""
    return "–" if one.p_adjusted is None else f"{one.p_adjusted:.3g}"


def as_points(difference: float) -> str:
    """Format a difference of shares in percentage points.

    Example:
        >>> as_points(-0.123)
        '-12.3 pp'
    """
    return f"{100 * difference:+.1f} pp"


def open_evaluations(folder: Path) -> dict[str, FinishedEvaluation]:
    """Return the evaluations in a folder by suite, environment or moment of a training run, in order of time.

    Args:
        folder: folder of one evaluation, of an evaluation of several suites, or of a training run.

    Raises:
        UsageError: there is no such folder, or it contains several policies.
        CorruptDataError: it contains no finished evaluation.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder {str(folder)!r}; name the folder of an evaluation")
    if (folder / SUITE_FILE).is_file():
        found = [open_evaluation(folder)]
    elif (folder / "results.json").is_file():
        found = [open_evaluation(path.parent) for path in sorted(folder.glob(f"*/*/{SUITE_FILE}"))]
    elif (folder / "metrics.jsonl").is_file() or kind_of_run(folder) == "training":
        found = _of_training(folder)
    elif (run := training_run_of(folder)) is not None:
        found = [one for one in _of_training(run) if one.folder.resolve() == folder.resolve()]
    else:
        found = [_of_env(folder)]
    by_label: dict[str, FinishedEvaluation] = {}
    for evaluation in found:
        if evaluation.label in by_label:
            both = f"{by_label[evaluation.label].folder} or {evaluation.folder}"
            raise UsageError(f"{folder} has {evaluation.label} with several policies; name one of them: {both}")
        by_label[evaluation.label] = evaluation
    if not by_label:
        raise CorruptDataError(f"{folder} has no suite that was played")
    return by_label


def training_run_of(folder: Path) -> Path | None:
    """Return the training run to which an evaluation such as ``RUN/eval/before`` belongs, or None."""
    run = folder.absolute().parent.parent
    is_of_run = folder.absolute().parent.name == "eval" and (run / "metrics.jsonl").is_file()
    return Path(os.path.relpath(run)) if is_of_run else None


def pair_evaluations(
    a: Mapping[str, FinishedEvaluation], b: Mapping[str, FinishedEvaluation]
) -> list[tuple[FinishedEvaluation, FinishedEvaluation]]:
    """Return the pairs of evaluations in two folders that can be compared: those with the same label, else the last
    ones.
    """
    common = [(a[label], b[label]) for label in a if label in b]
    if not common and 1 in {len(a), len(b)}:
        return [([*a.values()][-1], [*b.values()][-1])]
    return common


def config_differences(a: Path, b: Path) -> dict[str, tuple[object, object]]:
    """Return the settings in which two runs' ``config.json`` differ, by dotted name. None means that one is missing.

    Settings in :func:`incomparable_settings` are left out.

    Raises:
        CorruptDataError: one of them cannot be read.
    """
    (_, of_a), (_, of_b) = _settings_of(a), _settings_of(b)
    # the comparison itself names the policies
    left_out = {"eval_suites.suites", "rescored_from", *incomparable_settings(a, b)}
    names = (name for name in {**of_a, **of_b} if name not in left_out and not name.startswith("own_files"))
    return {name: (of_a.get(name), of_b.get(name)) for name in names if of_a.get(name) != of_b.get(name)}


def incomparable_settings(a: Path, b: Path) -> list[str]:
    """Return the settings that only a training run or only an evaluation has, if one is compared with the other.

    Raises:
        CorruptDataError: a ``config.json`` cannot be read.
    """
    (kind_a, of_a), (kind_b, of_b) = _settings_of(a), _settings_of(b)
    return [] if kind_a == kind_b else sorted(set(of_a) ^ set(of_b))


def _settings_of(folder: Path) -> tuple[RunKind, dict[str, object]]:
    """Return the kind of a run and its settings by dotted name; of a training run for an evaluation inside one."""
    folder = training_run_of(folder) or folder
    return kind_of_run(folder), dict(flat_items(read_json_object(folder / "config.json")))


def journal_differences(a: Path, b: Path) -> list[str]:
    """Return the differences of two runs' versions, by the last lines of their journals; empty if one has no journal.

    Policies are left out, since they are what is compared. So are files of one's own that only one of the runs uses.

    Raises:
        CorruptDataError: a journal cannot be read.
    """
    of_a, of_b = (journal.read(_begun_folder(folder)) for folder in (a, b))
    if not of_a or not of_b:
        return []
    compared = ("policy", "policies", "model", "tasks", "env")
    last_a, last_b = ({k: v for k, v in one[-1].items() if k not in compared} for one in (of_a, of_b))
    shared = set(last_a.get("own_files", {})) & set(last_b.get("own_files", {}))
    for line in (last_a, last_b):
        line["own_files"] = {path: found for path, found in line.get("own_files", {}).items() if path in shared}
    return journal.differences(last_a, last_b)


def _begun_folder(folder: Path) -> Path:
    """Return the folder of the command that played an evaluation: a training run, or an evaluation of suites."""
    is_suite = (folder / SUITE_FILE).is_file() and not (folder / journal.JOURNAL).is_file()
    return training_run_of(folder) or (folder.absolute().parent.parent if is_suite else folder)


def flat_items(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested settings by dotted name.

    Example:
        >>> dict(flat_items({"optimizer": {"lr": 0.1}, "seed": 0}))
        {'optimizer.lr': 0.1, 'seed': 0}
    """
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat_items(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def compare(a: FinishedEvaluation, b: FinishedEvaluation) -> Comparison:
    """Compare two evaluations of the same content.

    Raises:
        UsageError: their content differs, or they have no episode in common.
    """
    if a.content_hash != b.content_hash:
        raise UsageError(
            f"{a.folder} and {b.folder} cannot be compared: {'; '.join(_content_differences(a, b))}. Only the same "
            f"tasks, seeds, arguments and limits can; {_how_to_evaluate_alike(a, b)}"
        )
    keys = _common(a, b)
    if not keys:
        raise UsageError(f"{a.folder} and {b.folder} have no finished episode in common")
    won = [(bool(a.rows[key]["success"]), bool(b.rows[key]["success"])) for key in keys]
    tasks = [f"{part}/{key[0]}/{key[1]}" for part, key in keys]
    gains = [float(y) - float(x) for x, y in won]
    by_task = means_by_task(gains, tasks)
    successes = difference_interval(by_task)
    returns = task_interval([b.rows[key]["return"] - a.rows[key]["return"] for key in keys], tasks)
    num_only_a, num_only_b = sum(x and not y for x, y in won), sum(y and not x for x, y in won)
    return Comparison(
        suite_or_env=a.label if a.label == b.label else a.name,
        content_hash=a.content_hash,
        policy_a=a.policy,
        policy_b=b.policy,
        num_pairs=len(keys),
        num_left_out=len(set(a.rows) | set(b.rows)) - len(keys),
        success_a=fmean(means_by_task([float(x) for x, _ in won], tasks)),
        success_b=fmean(means_by_task([float(y) for _, y in won], tasks)),
        difference=successes.value,
        difference_low=successes.low,
        difference_high=successes.high,
        num_only_a=num_only_a,
        num_only_b=num_only_b,
        p_value=difference_p_value(by_task),
        detectable=detectable_difference(by_task),
        tasks_needed=tasks_needed(by_task),
        return_difference=returns.value,
        return_difference_low=returns.low,
        return_difference_high=returns.high,
    )


def compare_moments(run_dir: Path) -> list[Comparison]:
    """Compare a training run's policy after RL with the one before it, on each of its environments.

    An environment without a finished episode in both is left out.

    Raises:
        CorruptDataError: the folder is not a training run, or it has no evaluation.
    """
    by_name: dict[str, dict[str, FinishedEvaluation]] = {}
    for one in _of_training(run_dir):
        by_name.setdefault(one.name, {})[one.moment] = one
    before, after = MOMENTS["before"], MOMENTS["after"]
    pairs = [(of[before], of[after]) for of in by_name.values() if before in of and after in of]
    return [compare(*pair) for pair in pairs if _common(*pair)]


def _common(a: FinishedEvaluation, b: FinishedEvaluation) -> list[tuple[str, Key]]:
    """Return the episodes that are evidence in both."""
    return [key for key in a.rows if key in b.rows and _is_evidence(a.rows[key]) and _is_evidence(b.rows[key])]


def _how_to_evaluate_alike(a: FinishedEvaluation, b: FinishedEvaluation) -> str:
    run = training_run_of(a.folder) or training_run_of(b.folder)
    if run is None:
        return "evaluate both alike"
    return f"agentgym eval {shell_word(run)} --policy random (or another policy) plays the tasks of the training run"


def _content_differences(a: FinishedEvaluation, b: FinishedEvaluation) -> list[str]:
    """Return the differences in content of two evaluations, each as a phrase."""
    of_a, of_b = dict(flat_items(a.kwargs)), dict(flat_items(b.kwargs))
    found = [f"{a.name} against {b.name}"] if a.name != b.name else []
    found += [
        f"{name}={of_a.get(name, 'the default')} against {of_b.get(name, 'the default')}"
        for name in {**of_a, **of_b}
        if of_a.get(name) != of_b.get(name)
    ]
    if a.scoring != b.scoring:
        found.append(f"success by {_scorers(a)} against success by {_scorers(b)}")
    if set(a.rows) != set(b.rows):
        num_common = len(set(a.rows) & set(b.rows))
        found.append(f"{len(a.rows)} episodes against {len(b.rows)}, {num_common} of them with the same task and seed")
    return found or [f"{a.name} was changed between them (its parts' arguments or limits)"]


def _scorers(one: FinishedEvaluation) -> str:
    return json.dumps(one.scoring, default=str) if one.scoring else "the environment's own word"


def open_evaluation(folder: Path) -> FinishedEvaluation:
    """Return the finished evaluation of one policy on one suite.

    Raises:
        CorruptDataError: the evaluation is not finished or cannot be read.
    """
    _check_finished(folder)
    saved = load_saved(folder)
    parts = {part.label: read_rows(part_dir(folder, saved.suite, part.label)) for part in saved.suite.parts}
    return FinishedEvaluation(
        folder=folder,
        label=saved.suite.label,
        policy=saved.policy,
        content_hash=saved.content_hash,
        rows={(label, key): row for label, rows in parts.items() for key, row in _by_key(rows).items()},
        scoring={part.label: asdict(part.scoring) for part in saved.suite.parts if part.scorers},
    )


def _of_env(folder: Path) -> FinishedEvaluation:
    _check_finished(folder)
    config = read_config(folder, {"eval": EvalConfig}, ignores_unknown=True)
    return _played(folder, config.env, config.env, config.kwargs, config.policy, config.scoring)


def _played(
    folder: Path,
    label: str,
    env: str,
    kwargs: Mapping[str, object],
    policy: str,
    scoring: Mapping[str, object] | None = None,
    moment: str = "",
) -> FinishedEvaluation:
    rows = _by_key(read_rows(folder))
    content = {"env": env, "kwargs": kwargs, "episodes": [list(key) for key in sorted(rows)]}
    content_hash = digest(content | ({"scoring": scoring} if scoring else {}))
    by_part = {("", key): row for key, row in rows.items()}
    return FinishedEvaluation(
        folder=folder,
        label=label,
        policy=policy,
        content_hash=content_hash,
        rows=by_part,
        kwargs=kwargs,
        scoring=scoring or {},
        moment=moment,
    )


MOMENTS = {"base": "base model", "before": "before RL", "after": "after RL"}
"""Evaluations of a training run by folder, in order of time."""


def _of_training(folder: Path) -> list[FinishedEvaluation]:
    source = folder / "config.json"
    if not (config := read_json_object(source)):
        raise CorruptDataError(f"{folder} is not a training run: it has no {source.name}")
    try:
        recipe, envs = str(config["recipe"]), _envs_of(config)
    except (KeyError, TypeError) as error:
        raise CorruptDataError(f"{source} is not a training configuration ({error!r})") from error
    found = [
        _played(path, f"{label}, {when}", env, kwargs, f"{recipe} ({folder})", moment=when)
        for suffix, label, env, kwargs in envs
        for moment, when in MOMENTS.items()
        if ((path := folder / "eval" / f"{moment}{suffix}") / "summary.json").is_file()
    ]
    if not found:
        writer = writer_of(folder)
        word = shell_word(folder)
        resume = f"resume it: agentgym train --resume {word}, or evaluate its model: agentgym eval {word}"
        raise CorruptDataError(
            f"{folder} has no finished evaluation yet; {f'{writer} is training it' if writer else resume}"
        )
    return found


def _envs_of(config: Mapping[str, Any]) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Return, for each environment of a training run, the suffix of its folders, a label, the id and the arguments."""
    of_eval, envs = config["eval"]["kwargs"], saved_envs(config)
    ids = [str(env["id"]) for env in envs]
    return [
        (
            f"-{env['name']}" if env["name"] else "",
            env_id if ids.count(env_id) == 1 else f"{env_id} as {env['name']}",
            env_id,
            {**env["kwargs"], **of_eval, **env.get("eval", {}).get("kwargs", {})},
        )
        for env, env_id in zip(envs, ids, strict=True)
    ]


def _check_finished(folder: Path) -> None:
    if (folder / "summary.json").is_file():
        return
    of_suites = folder.parent.parent
    run = next((one for one in (folder, of_suites) if kind_of_run(one) == "evaluation"), None)
    if run is None:
        which = runs_in(folder) or "; name the folder of one, or of a training run"
        raise CorruptDataError(f"{folder} is not a finished evaluation{which}")
    raise CorruptDataError(
        f"{folder} is not a finished evaluation; resume it: agentgym eval --resume {shell_word(run)}"
    )


def _by_key(rows: Iterable[dict[str, object]]) -> dict[Key, dict[str, object]]:
    return {key_of(row): row for row in rows}


def _is_evidence(row: Mapping[str, Any]) -> bool:
    return Status(row["status"]).is_evidence
