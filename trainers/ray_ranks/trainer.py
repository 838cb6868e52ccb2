"""Training with ranks as Ray actors: the part that runs in the command's process."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentgym.canonical import shell_word
from agentgym.errors import AgentGymError, ConfigError, RunStoppedError, UsageError
from agentgym.progress import VisibleConsole
from agentgym.rollout.folder_lock import locked
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.config.overrides import to_dict
from agentgym.trainers.config.rank_limits import check_ranks
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.ray.connection import check_resources, connect, environment_of_run
from agentgym.trainers.ray.fleet import cause_of, first_line
from agentgym.trainers.ray_ranks.rank import NUM_THREADS, RankPlace, RankStart, TrainerRank
from agentgym.trainers.run.folder import TrainResult, check_run_dir, forget_failed_start
from agentgym.trust import sign
from agentgym.visible_text import visible

_LOOK_S, _LAST_WORDS_S = 0.2, 5.0
_STOP_S = 10.0
"""Seconds that the first rank has to close its files after Ctrl-C."""
_OTHERS_S = 30.0
"""Seconds to wait, after a rank's error, for the message that another rank died, which may be the cause."""


class LostRankError(Exception):
    """A rank's process or machine died."""


def train_on_cluster(config: TrainConfig, run_dir: Path, *, resume: bool = False) -> TrainResult:
    """Train with ranks that Ray places, as :func:`agentgym.trainers.train.train` does with those of torchrun.

    If a rank dies, all ranks are stopped, and new ones continue from the last checkpoint.

    Raises:
        UsageError: the configuration is invalid, or a machine cannot access the run's folder.
        RunStoppedError: the run stopped itself, or lost ranks more than ``cluster.max_restarts`` times.
    """
    check_ranks(config, config.cluster.num_trainer_ranks)
    check_run_dir(config, run_dir, resume=resume)
    is_ours, num_restarts, servers_name = connect(config), 0, uuid.uuid4().hex
    try:
        while True:
            check_resources(config, config.cluster.start_timeout_s if num_restarts else 0.0)
            try:
                is_resumed = resume or (run_dir / "config.json").is_file()
                return _train_once(config, run_dir, is_resumed, num_restarts, servers_name)
            except LostRankError as error:
                if num_restarts == config.cluster.max_restarts:
                    is_saved = (run_dir / "config.json").is_file()
                    again = (
                        f"to go on: agentgym train --resume {shell_word(run_dir)}"
                        if is_saved
                        else "nothing was saved yet"
                    )
                    raise RunStoppedError(f"{error} (cluster.max_restarts={num_restarts}); {again}") from None
                num_restarts += 1
                _say(f"{error}; restart {num_restarts} of {config.cluster.max_restarts} from the last checkpoint")
            except UsageError:
                # The first rank may have been killed before it could remove the folder that it had created.
                with suppress(UsageError, OSError), locked(run_dir, _LAST_WORDS_S):
                    pass
                raise
            if not resume:
                forget_failed_start(run_dir)
    finally:
        if is_ours:
            ray.shutdown()


def _train_once(config: TrainConfig, run_dir: Path, resume: bool, num_restarts: int, servers_name: str) -> TrainResult:
    """Start all ranks, and wait until the run ends or a rank fails."""
    with _reserved(config.cluster) as (group, bundles):
        handles = [_actor(config.cluster, group, bundle, rank) for rank, bundle in enumerate(bundles)]
        places = _places(handles, run_dir, config.cluster)
        start = RankStart(
            config=to_dict(config),
            run_dir=str(run_dir.absolute()),
            resume=resume,
            rank=0,
            num_ranks=len(handles),
            num_restarts=num_restarts,
            meeting_point=places[0].address,
            servers_name=servers_name,
        )
        runs = [handle.train.remote(replace(start, rank=rank)) for rank, handle in enumerate(handles)]
        speech = _Speech(handles[0])
        try:
            result = _followed(runs, places, speech)
        except KeyboardInterrupt:
            for handle in handles:  # the first one ends when the others, which play as well, have stopped
                handle.stop.remote()
            ray.wait([runs[0]], timeout=_STOP_S)
            speech.show(_LAST_WORDS_S)
            raise
        finally:
            if (run_dir / "config.json").is_file():
                sign(run_dir)  # the first rank may be another machine's user
    return replace(result, run_dir=str(run_dir))


def _followed(runs: Sequence[ObjectRef], places: Sequence[RankPlace], speech: _Speech) -> TrainResult:
    """Print the first rank's output until all ranks have ended; return its result.

    Raises:
        LostRankError: a rank died.
        AgentGymError: no rank died, and a rank raised this error first.
    """
    waiting, errors, give_up = list(runs), list[AgentGymError](), float("inf")
    while waiting and time.monotonic() < give_up:
        done, waiting = ray.wait(waiting, timeout=_LOOK_S)
        speech.show()
        for ref in done:
            rank = runs.index(ref)
            try:
                ray.get(ref)
            except RayTaskError as error:
                errors.append(cause_of(error))
                give_up = min(give_up, time.monotonic() + _OTHERS_S)
            except RayError as error:
                raise LostRankError(f"trainer rank {rank} ({places[rank].process}) is lost: {_reason(error)}") from None
        if any(isinstance(error, UsageError) for error in errors):
            break
    speech.show(_LAST_WORDS_S)
    if errors:  # ranks that lost a peer, or were stopped, are not the cause
        raise min(errors, key=lambda error: isinstance(error, RunStoppedError))
    result: TrainResult = ray.get(runs[0])
    return result


class _Speech:
    """A relay of a rank's standard error to that of this process."""

    def __init__(self, rank: ActorHandle) -> None:
        self._rank, self._next = rank, rank.said.remote()

    def show(self, timeout_s: float = 0.0) -> None:
        """Print the output so far; with a timeout, wait for everything written before this call."""
        for _ in range(2 if timeout_s else 1):  # the answer under way may have been given before the last words
            ready, _ = ray.wait([self._next], timeout=timeout_s)
            if not ready:
                return
            try:
                text = ray.get(self._next)
            except RayError:  # it died; whoever waits for its result is told
                return
            sys.stderr.write(visible(text))
            sys.stderr.flush()
            self._next = self._rank.said.remote()


# ------------------------------------------------------------------------------------------------- where the ranks are


@contextmanager
def _reserved(config: ClusterConfig) -> Iterator[tuple[PlacementGroup, list[int]]]:
    """Reserve a place for each rank; when the context ends, everything in these places is killed.

    Yields:
        the placement group, and its bundles in the order of ranks; those of a machine are adjacent.

    Raises:
        ConfigError: the cluster had no free resources in time.
    """
    bundle = {"CPU": config.cpus_per_rank} | ({"GPU": float(config.gpus_per_rank)} if config.gpus_per_rank else {})
    group = placement_group([bundle] * config.num_trainer_ranks, strategy=config.rank_placement.upper())
    try:
        if not group.wait(config.start_timeout_s):
            raise ConfigError(
                f"the Ray cluster had no room for {config.num_trainer_ranks} trainer ranks of {bundle} within "
                f"cluster.start_timeout_s={config.start_timeout_s:g} (cluster.rank_placement={config.rank_placement})"
            )
        nodes = placement_group_table(group)["bundles_to_node_id"]
        in_order = list(nodes.values())
        yield group, sorted(nodes, key=lambda bundle: (in_order.index(nodes[bundle]), bundle))
    finally:
        with suppress(RayError):
            remove_placement_group(group)


def _actor(config: ClusterConfig, group: PlacementGroup, bundle: int, rank: int) -> ActorHandle:
    """Start the process of a rank, with a name for Ray's dashboard such as "rank 1"."""
    actor = ray.remote(TrainerRank).options(
        num_cpus=config.cpus_per_rank,
        num_gpus=config.gpus_per_rank,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
        name=f"rank {rank}",
        namespace=group.id.hex(),  # a name for each start: those who had it before may not be gone yet
        max_restarts=0,  # a rank alone is of no use
        max_concurrency=NUM_THREADS,
    )
    handle: ActorHandle = actor.remote(os.getcwd(), rank == 0, _terminal(), environment_of_run())
    return handle


def _places(handles: Sequence[ActorHandle], run_dir: Path, config: ClusterConfig) -> list[RankPlace]:
    """Wait until all ranks have started, and return their places.

    Raises:
        ConfigError: they were not ready in time, or the machine of a rank cannot access the run's folder.
        LostRankError: a rank died, or could not start.
    """
    with _marked(run_dir) as mark:
        try:
            places: list[RankPlace] = ray.get(
                [handle.begin.remote(str(mark)) for handle in handles], timeout=config.start_timeout_s
            )
        except GetTimeoutError:
            raise ConfigError(
                f"not all trainer ranks were up after {config.start_timeout_s:g} s (cluster.start_timeout_s)"
            ) from None
        except RayError as error:
            raise LostRankError(f"a trainer rank did not start: {_reason(error)}") from None
    for rank, place in enumerate(places):
        if not place.sees_folder:
            raise ConfigError(
                f"trainer rank {rank} ({place.process}) does not see {mark.parent}: with cluster.num_trainer_ranks a "
                "run's folder must be at the same path on all machines (--run-dir)"
            )
    return places


@contextmanager
def _marked(run_dir: Path) -> Iterator[Path]:
    """Create a file in the run's folder that the ranks' machines must see; remove it when the context ends."""
    run_dir.mkdir(parents=True, exist_ok=True)
    mark = run_dir.absolute() / f".seen-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)
        if not any(run_dir.iterdir()):
            run_dir.rmdir()


def _terminal() -> dict[str, str]:
    """Return the environment variables that describe this process's terminal; empty without a terminal."""
    console = VisibleConsole(stderr=True)
    if not console.is_terminal:
        return {}
    kept = {name: os.environ[name] for name in ("TERM", "COLORTERM", "NO_COLOR") if name in os.environ}
    return {**kept, "COLUMNS": str(console.width), "LINES": str(console.height)}


def _reason(error: RayError) -> str:
    return first_line(error).rstrip(".")


def _say(line: str) -> None:
    console = VisibleConsole(stderr=True)
    console.show_cursor()  # which the bars of a rank that died have hidden
    console.print(line, highlight=False, markup=False, soft_wrap=True)
