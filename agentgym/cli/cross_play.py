"""``agentgym cross-play``: play every policy against every other, and rate them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from agentgym.canonical import shell_word
from agentgym.cli.eval import given_options, with_options
from agentgym.cli.exits import resumable_by
from agentgym.cli.grid import Grid
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.cli.trust import TrustFlag, require_trust
from agentgym.errors import UsageError

if TYPE_CHECKING:
    from agentgym.api.cross_play import CrossPlay


@with_options
def cross_play(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV|RUN] [KEY=VALUE]...",
            help="A game of two players with its arguments, or a training run on one, to play all versions that it "
            "has kept.",
        ),
    ] = None,
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A policy as `agentgym eval` takes it, RUN@STEP, or RUN@all; give it several times."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume a stopped cross-play.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the results. [default: runs/cross-play-<name>-<NNN>]")
    ] = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Play every policy against every other on the same tasks, and print their Elo ratings with intervals."""
    from agentgym.api import cross_play as api
    from agentgym.api.run_dirs import removed_if_nothing_was_played

    words = targets or []
    names = [word for word in words if "=" not in word]
    with output(as_json) as out:
        given = given_options(options, [word for word in words if "=" in word])
        limits = {name: given.pop(name) for name in api.LIMITS if name in given}
        if resume is not None:
            if names or policy or given or run_dir is not None:
                raise UsageError(f"{resume} keeps its environment, policies and options; leave them out to resume")
            require_trust(resume, trust)
            plan, folder = api.reopened(resume), resume
        else:
            if len(names) != 1:
                raise UsageError(
                    "name one game and its policies: agentgym cross-play ENV --policy A --policy B; or a training run"
                )
            plan, folder = api.begin(
                names[0], policy or [], given, run_dir, out.note, lambda path: require_trust(path, trust)
            )
        begun = removed_if_nothing_was_played(folder, is_new=resume is None)
        command = f"agentgym cross-play --resume {shell_word(folder)}"
        with resumable_by(command, folder, after_stop=True, is_it=resume is not None), begun:
            result = api.play(plan, folder, limits, out.status)
        out.result(api.as_json(result))
        _print(out, result)


def _signed(value: float | None) -> str:
    return "?" if value is None else f"{value:+.3f}"


def _print(out: Output, result: CrossPlay) -> None:
    """Print the ratings, then the mean return of each policy against each other."""
    rated = Grid("policy", "Elo", "95 % interval", "points a game", "games", whole=("95 % interval",))
    for one in result.ratings:
        interval = f"{one.low:.0f} to {one.high:.0f}"
        rated.add_row(escape(one.policy), f"{one.elo:.0f}", interval, f"{one.points:.3f}", f"{one.num_games}")
    out.console.print(rated)
    titles = ("policy", "opponent", "return", "95 % interval", "won", "drawn", "lost", "games")
    met = Grid(*titles, whole=titles)
    for pair in result.pairings:
        failed = f", {pair.num_failed} failed" if pair.num_failed else ""
        met.add_row(
            escape(pair.policy),
            escape(pair.opponent),
            _signed(pair.mean_return),
            f"{_signed(pair.return_low)} to {_signed(pair.return_high)}",
            str(pair.num_won),
            str(pair.num_drawn),
            str(pair.num_games - pair.num_won - pair.num_drawn),
            f"{pair.num_games}{failed}",
        )
    out.console.print()
    out.console.print(met)
    told = "intervals are over tasks; a policy meets each other one from both seats of each task"
    out.console.print(told, markup=False, soft_wrap=True)
    told = f"results: {result.run_dir}; their games: agentgym view {shell_word(result.run_dir)}"
    out.console.print(told, markup=False, soft_wrap=True)
