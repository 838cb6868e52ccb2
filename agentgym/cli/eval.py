"""``agentgym eval``: evaluate a policy on an environment or on suites."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from agentgym.canonical import shell_word
from agentgym.cli.env_args import parse_pairs
from agentgym.cli.exits import FAILED, resumable_by
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.cli.trust import TrustFlag, require_trust
from agentgym.errors import UnknownNameError, UsageError, unknown_name
from agentgym.evals.config import GROUPS, MAPPINGS, EvalConfig, names_of_options, read_config
from agentgym.registry import with_id
from agentgym.settings import checked, read_pairs

if TYPE_CHECKING:
    from agentgym.cli.eval_suites import SuitesPlan
    from agentgym.evals.runner import EvalSummary
    from agentgym.evals.suite_runner import SuiteResult


_HELP = {part.name: part.metadata["help"] for part in fields(EvalConfig)}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option to a command for each of :class:`EvalConfig` that is one value, in place of ``**options``."""
    hints = get_type_hints(EvalConfig, include_extras=True)
    own = [*inspect.signature(command, eval_str=True).parameters.values()]
    before = next(at for at, one in enumerate(own) if one.name == "resume")
    given_by_word = {"env", "policy", *MAPPINGS}
    flags = [part for part in fields(EvalConfig) if part.name not in given_by_word or "key" in part.metadata]
    made = [_parameter(part, hints[part.name]) for part in flags]
    parameters = [*own[:before], *made, *own[before:-1]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _parameter(part: Field[Any], hint: Any) -> inspect.Parameter:
    """Return the command's parameter for an option; None stands for one that is not given."""
    facts = part.metadata
    kind, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    default = facts.get("shown", part.default)
    shown = f"{default:g}" if isinstance(default, float | int) else default
    option = typer.Option(
        help=facts.get("flag_help", facts["help"]) + (f" [default: {shown}]" if shown else ""),
        metavar=facts.get("metavar"),
        min=marks[0].at_least if kind is float else int(marks[0].at_least) if marks else None,
    )
    kind = str if "key" in facts else kind
    name, annotation = facts.get("flag", part.name), Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@with_options
def eval_(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE...|ENV|RUN] [KEY=VALUE]...",
            help="Suites by name or file, or 'all'; or one environment (an id, module:Id, or file.py:Id) with its "
            "arguments; or a training run's folder, to evaluate as the run did. Not used with --resume. "
            + " ".join(f"{group}.KEY=VALUE: {_HELP[name]}" for group, name in GROUPS.items()),
        ),
    ] = None,
    *,
    policy: Annotated[list[str] | None, typer.Option(help=_HELP["policy"])] = None,
    role: Annotated[
        list[str] | None, typer.Option(metavar="PART=POLICY", help="As roles.PART=POLICY; give it for each part.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN_DIR", help="Resume a stopped evaluation.")] = None,
    rescore: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            help="Score the recorded episodes of an evaluation with scorer.kind; runs no new episodes.",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the results. [default: runs/eval-<name>-<NNN>]")
    ] = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Evaluate a policy on tasks and write success rates, confidence intervals and every episode."""
    names = [target for target in targets or () if "=" not in target]
    policies = policy or []
    with output(as_json) as out:
        if nameless := [one for one in role or () if "=" not in one]:
            raise UsageError(f"--role takes PART=POLICY, as in --role solver=oracle; got {nameless[0]}")
        of_roles = [f"roles.{one}" for one in role or ()]
        given = given_options(options, [*(target for target in targets or () if "=" in target), *of_roles])
        limits = {name: given.pop(name) for name in names_of_options("limit") if name in given}
        if trust:
            _trust(folder for folder in (resume, rescore, *map(Path, (*names, *policies))) if folder is not None)
        if resume is not None and (idle := [*["--rescore"] * bool(rescore), *["--run-dir"] * bool(run_dir)]):
            raise UsageError(f"--resume goes on in its folder: leave {' and '.join(idle)} out")
        if rescore is not None:
            is_done = _rescore(rescore, [*names, *policies], given, run_dir, limits, out)
        elif resume is not None:
            is_done = _resume(resume, names, policies, given, limits, out)
        else:
            is_done = _begin(names, policies, given, run_dir, limits, out)
    if not is_done:
        raise typer.Exit(FAILED)


def given_options(options: Mapping[str, Any], pairs: list[str]) -> dict[str, Any]:
    """Return what was given on the command line by the names of :class:`EvalConfig`."""
    keys = {part.metadata["flag"]: part.metadata for part in fields(EvalConfig) if "flag" in part.metadata}
    found = {name: value for name, value in options.items() if value is not None}
    short = [f"{keys[name]['group']}.{keys[name]['key']}={found.pop(name)}" for name in keys if name in found]
    return found | _pairs([*pairs, *short])


def _trust(folders: Iterable[Path]) -> None:
    """Trust the run folders among the named ones; raise an error if ``--trust`` applies to none of them."""
    runs = [folder for folder in folders if (folder / "config.json").is_file()]
    if not runs:
        raise UsageError("--trust is for a run folder of another user: name one as target, policy or with --resume")
    for folder in runs:
        require_trust(folder, is_trusted=True)


def _pairs(pairs: list[str]) -> dict[str, Any]:
    """Return the environment's arguments and the model's settings, grouped by name."""
    read_pairs(pairs)  # which names a doubled setting with its group
    groups: dict[str, list[str]] = {"kwargs": []}
    for pair in pairs:
        group, dot, rest = pair.partition(".")
        is_setting = bool(dot) and group in GROUPS
        if dot and not is_setting and get_close_matches(group, GROUPS):
            raise unknown_name("group of settings", group, GROUPS)
        groups.setdefault(GROUPS[group] if is_setting else "kwargs", []).append(rest if is_setting else pair)
    found = {name: parse_pairs(listed) for name, listed in groups.items()}
    return {name: values for name, values in found.items() if values}


def _begin(
    names: list[str],
    policies: list[str],
    given: dict[str, Any],
    run_dir: Path | None,
    limits: dict[str, Any],
    out: Output,
) -> bool:
    """Run a new evaluation. Return False if a part of it could not run."""
    from agentgym.api import evaluation
    from agentgym.api.run_settings import as_the_run, is_run
    from agentgym.cli import eval_suites
    from agentgym.evals.suites import suite_names

    if names and not policies and is_run(names[0]):
        policies = [names[0]]
    if not names or not policies:
        found = f"{names[0]} is not a training run; " if names and Path(names[0]).is_dir() else ""
        raise UsageError(
            f"{found}name an environment and a policy: agentgym eval ENV --policy oracle|random|MODEL_DIR; "
            "or a training run: agentgym eval RUN; or suites: agentgym list --suites"
        )
    suites = [name for name in names if eval_suites.is_suite(name)]
    if not suites:
        if len(names) > 1 or len(policies) > 1:
            raise UsageError("one environment and one policy at a time; several are for suites")
        try:
            own = as_the_run(names[0], policies[0], given, out.note, require_trust)
            plan, folder = evaluation.begin(own | limits, run_dir)
        except UnknownNameError as error:
            is_of_the_env = error.name == names[0]  # not one of its arguments
            if is_of_the_env and (suites := get_close_matches(names[0], suite_names())):
                raise UnknownNameError(f"{error}; suites with such names: {', '.join(suites)}") from None
            raise
        _note_unused(policies, given, out)
        return _play_env(plan, folder, limits, False, out)
    if others := [name for name in names if name not in suites]:
        raise UsageError(f"{others[0]} is not a suite; evaluate it by itself (agentgym list --suites)")
    if fixed := sorted({*names_of_options("env")} & set(given)):
        raise UsageError(
            f"a suite fixes {', '.join(fixed)}; to change that, write a suite of your own (docs/evaluation.md)"
        )
    if given.get("context", {}).get("example_turns"):
        raise UsageError("context.example_turns shows an episode of one environment; evaluate it by itself")
    made, folder = eval_suites.begin(suites, policies, given | limits, run_dir, out)
    _note_unused(policies, given, out)
    return _play_suites(made, folder, limits, False, out)


def _note_unused(policies: list[str], given: Mapping[str, object], out: Output) -> None:
    """Print a note on settings of a model, if none of the policies has one."""
    from agentgym.evals.policies import is_scripted

    of_model = [name for name in names_of_options("model") if name not in ("harness", "verify")]  # refused elsewhere
    if all(map(is_scripted, policies)) and (unused := [name for name in of_model if name in given]):
        out.note(f"note: without effect, since {', '.join(policies)} samples no tokens: {', '.join(unused)}")


def _resume(
    folder: Path, names: list[str], policies: list[str], given: dict[str, Any], limits: dict[str, Any], out: Output
) -> bool:
    """Resume an evaluation. Return False if a part of it could not run."""
    from agentgym.cli.eval_suites import SuitesPlan
    from agentgym.rollout.roles import part_name
    from agentgym.rollout.run_kind import kind_of_run

    if kind_of_run(folder) == "training":
        word = shell_word(folder)
        raise UsageError(
            f"{folder} is a training run: agentgym train --resume {word} continues it, agentgym eval {word} "
            "evaluates its model"
        )
    require_trust(folder)
    plan: EvalConfig | SuitesPlan = read_config(folder, {"eval": EvalConfig, "eval_suites": SuitesPlan})
    if isinstance(plan, SuitesPlan):
        if names or policies or given:
            raise UsageError(f"{folder} keeps its own suites, policies and options; leave them out to resume")
        return _play_suites(plan, folder, limits, True, out)
    given |= {name: asked[0] for name, asked in (("env", [*map(with_id, names)]), ("policy", policies)) if asked}
    saved = asdict(plan)
    if "scoring" in given:  # each in its full form
        saved["scoring"], given["scoring"] = (asdict(one.scorers) for one in (plan, checked(EvalConfig, given)))
    if "roles" in given:
        given["roles"] = {part_name(name): policy for name, policy in given["roles"].items()}
    for name, value in given.items():
        if saved[name] != value:
            raise UsageError(
                f"{folder} was begun with {name}={saved[name]!r}, not {value!r}; "
                "leave it out to resume, or begin another evaluation"
            )
    return _play_env(plan, folder, limits, True, out)


def _rescore(
    source: Path, others: list[str], given: dict[str, Any], run_dir: Path | None, limits: dict[str, Any], out: Output
) -> bool:
    """Score the recorded episodes of an evaluation with other scorers."""
    from agentgym.cli import eval_rescore

    if others or set(given) != {"scoring"} or set(limits) - {"prices"}:
        raise UsageError(
            "--rescore takes the folder of an evaluation, scorer.KEY=VALUE, --prices and --run-dir, and nothing else: "
            "agentgym eval --rescore RUN_DIR scorer.kind=NAME (agentgym list --scorers)"
        )
    folder, found = asyncio.run(eval_rescore.rescored(source, given["scoring"], run_dir, limits.get("prices")))
    if isinstance(found, list):
        _show_suites(found, folder, out)
    else:
        _show_env(found, folder, out)
    return True


def _play_env(plan: EvalConfig, folder: Path, limits: dict[str, Any], resume: bool, out: Output) -> bool:
    from agentgym.api.evaluation import play
    from agentgym.api.run_dirs import removed_if_nothing_was_played

    command = f"agentgym eval --resume {shell_word(folder)}"
    begun = removed_if_nothing_was_played(folder, is_new=not resume)
    with resumable_by(command, folder, after_stop=True, is_it=resume), begun:
        summary = asyncio.run(play(plan, folder, limits, resume=resume, status=out.status))
    _show_env(summary, folder, out)
    return True


def _show_env(summary: EvalSummary, folder: Path, out: Output) -> None:
    from agentgym.cli.eval_env import print_summary

    out.result(asdict(summary))
    print_summary(out, summary, folder)


def _play_suites(plan: SuitesPlan, folder: Path, limits: dict[str, Any], resume: bool, out: Output) -> bool:
    from agentgym.api.run_dirs import removed_if_nothing_was_played
    from agentgym.cli.eval_suites import evaluate_suites, has_failed

    command = f"agentgym eval --resume {shell_word(folder)}"
    with resumable_by(command, folder, is_it=resume), removed_if_nothing_was_played(folder, is_new=not resume):
        results = asyncio.run(evaluate_suites(plan, folder, limits, resume, out))
    _show_suites(results, folder, out)
    return not has_failed(plan, results)


def _show_suites(results: Sequence[SuiteResult], folder: Path, out: Output) -> None:
    from agentgym.cli.eval_suites import print_results, write_results

    compared = write_results(results, folder)
    shown = {"results": [asdict(one) for one in results], "comparisons": [asdict(one) for one in compared]}
    out.result({"run_dir": str(folder), **shown})
    print_results(out, results, folder, compared)
