"""``agentgym eval``: evaluate a policy on an environment or on suites."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgym.canonical import read_json, shell_word
from agentgym.cli.env_args import parse_pairs
from agentgym.cli.exits import FAILED, resumable_by
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.cli.trust import TrustFlag, require_trust
from agentgym.errors import CorruptDataError, UnknownNameError, UsageError, unknown_name
from agentgym.registry import with_id
from agentgym.settings import checked, read_pairs

if TYPE_CHECKING:
    from agentgym.api.effort import Effort
    from agentgym.api.evaluation import EvalPlan
    from agentgym.cli.eval_suites import SuitesPlan

GROUPS = {"chat": "chat", "context": "context", "scorer": "scoring", "harness": "harness", "verify": "verify"}
"""Groups of settings given as ``GROUP.KEY=VALUE``, with the field of the plan that holds each group."""


_OF_A_MODEL = ("temperature", "max_new_tokens", "max_thinking_tokens", "max_context_tokens", "chat", "context")
"""Options that change nothing of a policy without a model."""


def eval_(  # noqa: PLR0913  (a command's options)
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE...|ENV|RUN] [KEY=VALUE]...",
            help="Suites by name or file, or 'all'; or one environment (an id, module:Id, or file.py:Id) with its "
            "arguments; or a training run's folder, to evaluate as the run did. context.KEY=VALUE sets the content of "
            "a model's prompts, chat.KEY=VALUE their rendering, scorer.kind=NAME the definition of success (agentgym "
            "list --scorers), verify.kind=NAME the scorer that chooses an attempt of best: or retry:. Not used with "
            "--resume.",
        ),
    ] = None,
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="oracle, random, idle, openai:URL?model=NAME, vllm:URL?model=SOURCE, or a model (a folder, a GGUF "
            "file, pypi:PACKAGE, a hub name, smollm2); with suites also several times. A training run's folder brings "
            "the run's own settings. best:POLICY,attempts=4, retry:POLICY and summary:POLICY attempt each task several "
            "times."
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1, help="The first N tasks, of a suite's parts or of the split. [default: all, the run's or 50]"
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Episodes per task, for pass@k and pass^k. [default: 1]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the policy's sampling. [default: 0]")] = None,
    split: Annotated[str | None, typer.Option(help="train, valid or test. [default: test]")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy. [default: 1]")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most sampled tokens per turn. [default: 64]")
    ] = None,
    max_thinking_tokens: Annotated[
        int | None, typer.Option(min=1, help="Thinking tokens per turn, in addition to --max-new-tokens.")
    ] = None,
    max_context_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in the context. [default: the model's own limit]")
    ] = None,
    codec: Annotated[str | None, typer.Option(help="Tool-call format. [default: the chat template's]")] = None,
    harness: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Agent program that plays, through the policy endpoint: openai_loop, command, mini_swe_agent, "
            "file.py:NAME; harness.KEY=VALUE sets it up.",
        ),
    ] = None,
    opponent: Annotated[
        str | None, typer.Option(help="In a game with opponent=self: who plays against the policy, named as it is.")
    ] = None,
    num_envs: Annotated[int | None, typer.Option(min=1, help="Episodes played at the same time. [default: 32]")] = None,
    max_minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so many minutes; --resume continues. 0: no limit.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="Stop after so many sampled tokens; --resume continues. 0: no limit.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Stop after spending so much according to --prices; --resume continues. 0: no limit."
        ),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="IN,OUT|FILE",
            help="Money per million tokens: IN,OUT or IN,CACHED,OUT for every policy, or a file .toml or .json with a "
            "table for each.",
        ),
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
) -> None:
    """Evaluate a policy on tasks and write success rates, confidence intervals and every episode."""
    from agentgym.api.effort import Effort
    from agentgym.evals.prices import read_prices

    given = {
        "episodes": episodes, "repeats": repeats, "seed": seed, "split": split, "temperature": temperature,
        "max_new_tokens": max_new_tokens, "max_thinking_tokens": max_thinking_tokens,
        "max_context_tokens": max_context_tokens, "opponent": opponent,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    pairs = [target for target in targets or () if "=" in target]
    given |= _pairs(
        [*pairs, *([f"chat.codec={codec}"] if codec else []), *([f"harness.name={harness}"] if harness else [])]
    )
    names = [target for target in targets or () if "=" not in target]
    with output(as_json) as out:
        effort = Effort(
            num_envs=num_envs,
            max_minutes=max_minutes,
            max_tokens=max_tokens,
            max_cost=max_cost,
            prices=None if prices is None else read_prices(prices),
        )
        if trust:
            _trust(folder for folder in (resume, rescore, *map(Path, (*names, *(policy or [])))) if folder is not None)
        if rescore is not None:
            is_done = _rescore(rescore, [*names, *(policy or [])], given, run_dir, effort, out)
        elif resume is not None:
            is_done = _resume(resume, names, policy or [], given, effort, out)
        else:
            is_done = _begin(names, policy or [], given, run_dir, effort, out)
    if not is_done:
        raise typer.Exit(FAILED)


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
    names: list[str], policies: list[str], given: dict[str, Any], run_dir: Path | None, effort: Effort, out: Output
) -> bool:
    """Run a new evaluation. Return False if a part of it could not run."""
    from agentgym.api import evaluation
    from agentgym.api.policies import SamplingPlan
    from agentgym.api.run_settings import as_the_run, is_run
    from agentgym.cli import eval_suites
    from agentgym.render.config import ChatConfig
    from agentgym.rollout.context import FULL

    if names and not policies and is_run(names[0]):
        policies = [names[0]]
    if not names or not policies:
        found = f"{names[0]} is not a training run; " if names and Path(names[0]).is_dir() else ""
        raise UsageError(
            f"{found}name an environment and a policy: agentgym eval ENV --policy oracle|random|MODEL_DIR; "
            "or a training run: agentgym eval RUN; or suites: agentgym list --suites"
        )
    FULL.changed(given.get("context", {}))  # report wrong keys before a model is loaded
    ChatConfig().changed(given.get("chat", {}))
    _note_unused(policies, given, out)
    suites = [name for name in names if eval_suites.is_suite(name)]
    if not suites:
        if len(names) > 1 or len(policies) > 1:
            raise UsageError("one environment and one policy at a time; several are for suites")
        try:
            plan, folder = evaluation.begin(as_the_run(names[0], policies[0], given, out.note, require_trust), run_dir)
        except UnknownNameError as error:
            is_of_the_env = str(error).startswith("unknown environment")  # not one of its arguments
            if is_of_the_env and (suites := eval_suites.suites_like(names[0])):
                raise UnknownNameError(f"{error}; suites with such names: {', '.join(suites)}") from None
            raise
        return _play_env(plan, folder, effort, False, out)
    if others := [name for name in names if name not in suites]:
        raise UsageError(f"{others[0]} is not a suite; evaluate it by itself (agentgym list --suites)")
    if fixed := sorted({"seed", "split", "kwargs", "opponent"} & set(given)):
        raise UsageError(
            f"a suite fixes {', '.join(fixed)}; to change that, write a suite of your own (docs/evaluation.md)"
        )
    if given.get("context", {}).get("example_turns"):
        raise UsageError("context.example_turns shows an episode of one environment; evaluate it by itself")
    size = eval_suites.SuiteSize(given.pop("episodes", None), given.pop("repeats", None), given.pop("scoring", {}))
    given = _sampled_as_the_run(policies, given, out)
    made, folder = eval_suites.begin(suites, policies, size, SamplingPlan(**given), run_dir)
    return _play_suites(made, folder, effort, False, out)


def _note_unused(policies: list[str], given: Mapping[str, object], out: Output) -> None:
    """Print a note on settings of a model, if none of the policies has one."""
    from agentgym.api.policies import is_scripted

    if all(map(is_scripted, policies)) and (unused := [name for name in _OF_A_MODEL if name in given]):
        out.note(f"note: without effect, since {', '.join(policies)} samples no tokens: {', '.join(unused)}")


def _sampled_as_the_run(policies: list[str], given: dict[str, object], out: Output) -> dict[str, Any]:
    """Return sampling settings for suites: the given ones, and the rest from the training run if the policy is one."""
    from agentgym.api.run_settings import run_settings

    run = run_settings(policies[0], require=require_trust) if len(policies) == 1 else None
    if run is None:
        return given
    taken = {name: value for name, value in run.sampling.items() if name not in given}
    told = ", ".join(f"{name}={value}" for name, value in taken.items())
    out.status.print(f"from {run.folder}: {told}", markup=False, soft_wrap=True)
    return taken | given


def _resume(
    folder: Path, names: list[str], policies: list[str], given: dict[str, Any], effort: Effort, out: Output
) -> bool:
    """Resume an evaluation. Return False if a part of it could not run."""
    from agentgym.api.evaluation import EvalPlan
    from agentgym.cli import eval_suites
    from agentgym.rollout.run_kind import kind_of_run

    if kind_of_run(folder) == "training":
        word = shell_word(folder)
        raise UsageError(
            f"{folder} is a training run: agentgym train --resume {word} continues it, agentgym eval {word} "
            "evaluates its model"
        )
    require_trust(folder)
    try:
        config = read_json((folder / "config.json").read_text(encoding="utf-8"))
        is_of_suites = "eval_suites" in config
        plan = eval_suites.read_plan(config["eval_suites"]) if is_of_suites else checked(EvalPlan, config["eval"])
    except FileNotFoundError:
        raise CorruptDataError(f"{folder} is not an evaluation: it has no config.json") from None
    except UsageError as error:
        raise CorruptDataError(
            f"{folder / 'config.json'}: {error}; another version of agentgym may have written it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{folder / 'config.json'} is not an evaluation's configuration ({error!r})") from error
    if isinstance(plan, eval_suites.SuitesPlan):
        if names or policies or given:
            raise UsageError(f"{folder} keeps its own suites, policies and options; leave them out to resume")
        return _play_suites(plan, folder, effort, True, out)
    saved = asdict(plan)
    given |= {name: asked[0] for name, asked in (("env", [*map(with_id, names)]), ("policy", policies)) if asked}
    for name, value in given.items():
        if saved[name] != value:
            raise UsageError(
                f"{folder} was begun with {name}={saved[name]!r}, not {value!r}; "
                "leave it out to resume, or begin another evaluation"
            )
    return _play_env(plan, folder, effort, True, out)


def _rescore(
    source: Path, others: list[str], given: dict[str, Any], run_dir: Path | None, effort: Effort, out: Output
) -> bool:
    """Score the recorded episodes of an evaluation with other scorers."""
    from agentgym.cli import eval_rescore
    from agentgym.cli.eval_env import print_summary
    from agentgym.cli.eval_suites import print_results, write_results

    if others or set(given) != {"scoring"}:
        raise UsageError(
            "--rescore takes the folder of an evaluation and scorer.KEY=VALUE, and nothing else: "
            "agentgym eval --rescore RUN_DIR scorer.kind=NAME (agentgym list --scorers)"
        )
    folder, found = asyncio.run(eval_rescore.rescored(source, given["scoring"], run_dir, effort.prices))
    if isinstance(found, list):
        compared = write_results(found, folder)
        results = {"results": [asdict(one) for one in found], "comparisons": [asdict(one) for one in compared]}
        out.result({"run_dir": str(folder), **results})
        print_results(out, found, folder, compared)
    else:
        out.result(asdict(found))
        print_summary(out, found, folder)
    return True


def _fresh(folder: Path, resume: bool) -> AbstractContextManager[None]:
    from agentgym.api.run_dirs import removed_if_nothing_was_played

    return nullcontext() if resume else removed_if_nothing_was_played(folder)


def _play_env(plan: EvalPlan, folder: Path, effort: Effort, resume: bool, out: Output) -> bool:
    from agentgym.api.evaluation import play
    from agentgym.cli.eval_env import print_summary

    command = f"agentgym eval --resume {shell_word(folder)}"
    with resumable_by(command, folder, after_stop=True, is_it=resume), _fresh(folder, resume):
        summary = asyncio.run(play(plan, folder, effort, resume=resume, status=out.status))
    out.result(asdict(summary))
    print_summary(out, summary, folder)
    return True


def _play_suites(plan: SuitesPlan, folder: Path, effort: Effort, resume: bool, out: Output) -> bool:
    from agentgym.cli.eval_suites import evaluate_suites, has_failed, print_results, write_results

    command = f"agentgym eval --resume {shell_word(folder)}"
    with resumable_by(command, folder, is_it=resume), _fresh(folder, resume):
        results = asyncio.run(evaluate_suites(plan, folder, effort, resume, out))
    compared = write_results(results, folder)
    out.result(
        {
            "run_dir": str(folder),
            "results": [asdict(result) for result in results],
            "comparisons": [asdict(one) for one in compared],
        }
    )
    print_results(out, results, folder, compared)
    return not has_failed(plan, results)
