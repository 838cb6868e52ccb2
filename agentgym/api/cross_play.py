"""Cross-play in Python, as ``agentgym cross-play`` does it: every policy against every other in a game."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from agentgym.api import evaluation
from agentgym.api.policies import note_on_stderr
from agentgym.api.run_dirs import as_path, new_run_dir, removed_if_nothing_was_played
from agentgym.api.run_settings import as_the_run, is_run
from agentgym.api.trust import require_trust
from agentgym.env.game_env import SELF, GameEnv
from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import UsageError, raising_first_cause
from agentgym.evals.config import OPPONENT, EvalConfig, keep_config, read_config
from agentgym.evals.cross_play import RESULT_NAME, Pairing, Rating, pairings, ratings
from agentgym.evals.episodes import read_rows, write_json
from agentgym.evals.runner import is_complete
from agentgym.registry import id_of, make, with_id
from agentgym.settings import Settings
from agentgym.trainers.models.versions import versions_of

ALL_VERSIONS = "@all"
LIMITS = ("num_envs",)
"""Options that may change between the start and a resume."""
_FIXED = ("policy", "roles", "opponent", "max_minutes", "max_tokens", "max_cost", "prices")
"""Options of an evaluation that cross-play sets, or that would apply to each pair by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossPlayPlan(Settings):
    """The policies of a cross-play and the environment that they play, as its folder keeps them."""

    env: str
    policies: list[str] = field(default_factory=list)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The numbers of the policies of each pair, in both orders."""
        return list(itertools.permutations(range(len(self.policies)), 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossPlay:
    """The results of a cross-play."""

    env: str
    ratings: list[Rating]
    """The best policy first."""
    pairings: list[Pairing]
    run_dir: Path

    def __str__(self) -> str:
        best = self.ratings[0]
        return f"{best.policy} is first of {len(self.ratings)} with Elo {best.elo:.0f}: {self.run_dir}"


def cross_play(env: str, policies: Sequence[str], *, run_dir: str | Path | None = None, **options: Any) -> CrossPlay:
    """Play every policy against every other, each on the same tasks from both seats.

    Args:
        env: an id or ``file.py:Id`` of a game of two players, or the folder of a training run on one.
        policies: names as :func:`~agentgym.api.evaluation.evaluate` takes them; ``RUN@STEP`` is an earlier version of
            a training run's policy, and ``RUN@all`` all that it has kept.
        run_dir: folder of the results; by default ``runs/cross-play-<name>-<NNN>``.
        options: fields of :class:`~agentgym.evals.config.EvalConfig` for each pair, such as ``kwargs``, ``episodes``
            and ``temperature``; by default those of the first policy's training run, if it is of one.

    Raises:
        UsageError: the environment is no game of two players, or fewer than two policies are named.
        RunStoppedError: too many games of a pair failed.

    Example:
        >>> import tempfile
        >>> found = cross_play("agentgym/TicTacToe-v0", ["oracle", "random"], episodes=4, run_dir=tempfile.mkdtemp())
        >>> [one.policy for one in found.ratings]
        ['oracle', 'random']
    """
    limits = {name: options.pop(name) for name in LIMITS if name in options}
    plan, folder = begin(env, policies, options, None if run_dir is None else as_path("run_dir", run_dir))
    with removed_if_nothing_was_played(folder):
        return raising_first_cause(lambda: play(plan, folder, limits))


def begin(
    env: str,
    policies: Sequence[str],
    given: Mapping[str, Any],
    run_dir: Path | None,
    say: Callable[[str], None] = note_on_stderr,
    require: Callable[[Path], None] = require_trust,
) -> tuple[CrossPlayPlan, Path]:
    """Check all pairs, and make the folder of a cross-play with one evaluation for each.

    Raises:
        UsageError, ConfigError: as :func:`cross_play`. No folder has been made then.
    """
    if fixed := [name for name in _FIXED if name in given]:
        raise UsageError(f"cross-play takes no {fixed[0]}, which would hold for each pair by itself; leave it out")
    if (chosen := given.get("kwargs", {}).get("opponent", SELF)) != SELF:
        raise UsageError(f"cross-play gives both seats to the policies: leave opponent={chosen} out")
    named = _expanded(policies or ([f"{env}{ALL_VERSIONS}", env] if is_run(env) else []))
    settings = as_the_run(env, named[0], dict(given), say, require)
    env = with_id(str(settings["env"]))
    settings |= {"env": env, "kwargs": _between_players(env, settings.get("kwargs", {}))}
    plan = CrossPlayPlan(env=env, policies=named)
    wanted = new_run_dir(f"cross-play-{env.rpartition('/')[2].lower()}", run_dir)
    with removed_if_nothing_was_played(wanted):
        keep_config(wanted, {"cross_play": asdict(plan)})
        for one, other in plan.pairs:
            pair = {"policy": named[one], "roles": {OPPONENT: named[other]}}
            evaluation.begin(settings | pair, _folder(wanted, one, other))
    return plan, wanted


def reopened(folder: Path) -> CrossPlayPlan:
    """Return the plan of a cross-play that was begun in a folder.

    Raises:
        UsageError, CorruptDataError: it is no such folder.
    """
    return read_config(folder, {"cross_play": CrossPlayPlan})


def play(
    plan: CrossPlayPlan, folder: Path, limits: Mapping[str, Any] | None = None, status: Console | None = None
) -> CrossPlay:
    """Play the pairs that are not complete, and write the ratings.

    Args:
        limits: ``num_envs``, if it is given.

    Raises:
        RunStoppedError: too many games of a pair failed; those before it are kept.
    """
    for number, (one, other) in enumerate(plan.pairs, 1):
        pair = _folder(folder, one, other)
        if is_complete(pair, [pair]):
            continue
        if status is not None:
            told = f"{number}/{len(plan.pairs)} {plan.policies[one]} against {plan.policies[other]}"
            status.print(told, markup=False, soft_wrap=True)
        config = read_config(pair, {"eval": EvalConfig})
        run_coroutine(evaluation.play(config, pair, limits or {}, resume=True, status=status, forfeits_count=True))
    matches = {(one, other): read_rows(_folder(folder, one, other)) for one, other in plan.pairs}
    result = CrossPlay(
        env=plan.env,
        ratings=ratings(plan.policies, matches),
        pairings=pairings(plan.policies, matches),
        run_dir=folder,
    )
    write_json(folder / RESULT_NAME, as_json(result))
    return result


def as_json(result: CrossPlay) -> dict[str, Any]:
    """Return the results as JSON values."""
    return asdict(result) | {"run_dir": str(result.run_dir)}


def _folder(folder: Path, one: int, other: int) -> Path:
    return folder / "pairs" / f"{one + 1}-{other + 1}"


def _expanded(policies: Sequence[str]) -> list[str]:
    """Return the policies, each once, with all versions in place of ``RUN@all``."""
    found: list[str] = []
    for policy in policies:
        run = policy.removesuffix(ALL_VERSIONS)
        found += [policy] if run == policy else [f"{run}@{step}" for step in versions_of(Path(run))]
    found = list(dict.fromkeys(found))
    if len(found) < 2:
        raise UsageError(f"cross-play needs at least two policies, got {', '.join(found) or 'none'}")
    return found


def _between_players(env: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment's arguments with which all players act through ``step``.

    Raises:
        UsageError: it is no game of two players.
    """
    kwargs = dict(kwargs)
    with closing(make(id_of(env, kwargs), **kwargs)) as probe:
        # players of other matches, such as a proposer and a solver, do not play against each other
        if not isinstance(probe, GameEnv):
            raise UsageError(f"cross-play needs a game of two players, such as KuhnPoker-v0; {env} is none")
        if len(probe.players) != 2:
            raise UsageError(f"cross-play needs a game of two players; {env} has {', '.join(probe.players)}")
        return kwargs if probe.num_players == 2 else kwargs | {"opponent": SELF}
