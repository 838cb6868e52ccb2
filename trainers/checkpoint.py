"""Checkpoints of the state of a training run. Each checkpoint is a folder that is written atomically.

Every rank writes and reads its own shards (:mod:`agentgym.trainers.distributed.tensor_folder`).
:class:`CheckpointWriter` writes them while training continues.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from agentgym.credit.state import CreditState
from agentgym.errors import CorruptDataError, RunStoppedError, UsageError, error_text
from agentgym.rollout.plan import PlanState
from agentgym.rollout.stream import StreamState
from agentgym.settings import checked
from agentgym.trainers.config.roles import POLICY
from agentgym.trainers.distributed.devices import on_this_device
from agentgym.trainers.distributed.hashes import compare_hashes, this_python
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.reference import reference_state
from agentgym.trainers.distributed.sharding import load_optimizer
from agentgym.trainers.distributed.tensor_folder import (
    held_in_memory,
    load_tree,
    read_outline,
    save_tree,
    tensors_of,
)
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.models.quantized import check_same_tensors, kept_state, stored_state
from agentgym.trainers.train_state import Learner, Phase, TrainState
from agentgym.trainers.types import StateDict

_PHASES: tuple[Phase, ...] = ("sft", "start", "rl")
START: Phase = "start"
"""The end of another run's warm start, from which a branch begins RL with settings of its own."""
NUM_KEPT = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose tensors have not been read yet; :func:`restore_state` reads them."""

    folder: Path
    phase: Phase
    step: int
    outline: StateDict
    """``model``, ``optimizer``, ``columns`` and possibly ``reference``, with tensors on the meta device."""
    plain: StateDict
    """All values that are not sharded tensors."""


def save_state(run_dir: Path, state: TrainState, ranks: Ranks) -> None:
    """Write a checkpoint, move it into place atomically, and delete all but the latest two. All ranks must call this.

    Raises:
        UsageError: the ranks do not share the run's folder.
        RunStoppedError: the checkpoint cannot be written; older checkpoints are unchanged.
    """
    _write(checkpoint_path(run_dir, state.phase, state.step), _tree_of(state), _plain_of(state), ranks)


class CheckpointWriter:
    """A context manager that writes the checkpoints of a run, in a background thread or at once.

    At most one write is in progress. Leaving the context waits for it, also after an error.

    Args:
        run_dir: the run's folder.
        ranks: the ranks of the run, which must all make the same calls.
        in_background: copy the state to this machine's memory and write the copy while training continues. The copy
            needs as much memory as the rank's share of a checkpoint.
        say: called with a message when the run has to wait for the disk.

    Example:
        >>> with CheckpointWriter(run_dir, Ranks(), in_background=True) as checkpoints:  # doctest: +SKIP
        ...     checkpoints.save(state)
    """

    def __init__(
        self, run_dir: Path, ranks: Ranks, *, in_background: bool, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._run_dir, self._ranks, self._in_background, self._say = run_dir, ranks, in_background, say
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._under_way: Future[None] | None = None
        self._path = Path()

    def save(self, state: TrainState) -> None:
        """Write the current state, after any write in progress.

        Raises:
            UsageError, RunStoppedError: this write or the one in progress failed, see :func:`save_state`.
        """
        self.finish()
        if not self._in_background:
            save_state(self._run_dir, state, self._ranks)
            return
        self._path = checkpoint_path(self._run_dir, state.phase, state.step)
        tree, plain = held_in_memory((_tree_of(state), _plain_of(state)))
        self._under_way = self._thread.submit(on_this_device(_write), self._path, tree, plain, self._ranks.beside())

    def check(self) -> None:
        """Raise the error of a background write that has failed; call it after each step.

        Raises:
            UsageError, RunStoppedError: see :func:`save_state`.
        """
        if self._under_way is None:
            return
        is_done = self._under_way.done()
        found = self._ranks.gathered((is_done, is_done and self._under_way.exception() is not None))
        if all(done for done, _ in found) or any(failed for _, failed in found):
            self.finish()

    def finish(self) -> None:
        """Wait for the write in progress, if there is one.

        Raises:
            UsageError, RunStoppedError: see :func:`save_state`.
        """
        if self._under_way is None:
            return
        if not self._under_way.done():
            self._say(f"waiting until the checkpoint {self._path.name} is written")
        under_way, self._under_way = self._under_way, None
        under_way.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.finish()
        except (UsageError, RunStoppedError, OSError) as failure:
            if error is None:
                raise
            self._say(f"the checkpoint under way failed, too: {failure}")
        finally:
            self._thread.shutdown()


def _write(path: Path, tree: StateDict, plain: StateDict, ranks: Ranks) -> None:
    partial = path.with_name(path.name + ".partial")
    if ranks.is_main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    ranks.meet()
    try:
        save_tree(partial, tree, plain, ranks)
    except (UsageError, RunStoppedError):
        if ranks.is_main:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if ranks.is_main:
        _sync_folder(partial)
        shutil.rmtree(path, ignore_errors=True)  # of a step that is made again; one of before stays
        os.replace(partial, path)
        _sync_folder(path.parent)
        for old in checkpoints_of(path.parents[1])[:-NUM_KEPT]:
            gone = old.with_name(old.name + ".partial")
            os.replace(old, gone)  # no checkpoint from here on, however far its removal comes
            shutil.rmtree(gone)
    ranks.meet()


def restore_state(state: TrainState, found: Checkpoint, ranks: Ranks) -> None:
    """Restore a checkpoint into the state of a new process. All ranks must call this.

    Args:
        state: the state to fill; its optimizer must be that of the checkpoint's phase.

    Raises:
        CorruptDataError: the checkpoint cannot be read, or belongs to another model.
    """
    state.phase, state.step = found.phase, found.step
    outlines = {POLICY: found.outline, **found.outline.get("roles", {})}
    if set(found.outline["columns"]) != set(state.columns) or set(outlines) != set(state.learners):
        raise _older(found.folder)
    own_base = {name: learner.has_base for name, learner in state.learners.items()}
    for name, learner in state.learners.items():
        _begin_learner(learner, outlines[name])
    for key, columns in state.columns.items():
        if {"critic", "progress"} & set(found.outline["columns"][key]):
            columns.begin()
    parts = _filled(state, found, ranks)
    for name, learner in state.learners.items():
        load_optimizer(learner.optimizer, (parts if name == POLICY else parts["roles"][name])["optimizer"])
        learner.has_base = own_base[name]  # later checkpoints are as this version writes them
    for key, columns in state.columns.items():
        columns.load_state_dict(parts["columns"][key])
    plain = found.plain
    torch.set_rng_state(plain["rng"])
    state.credit = {key: CreditState.from_dict(saved) for key, saved in plain["credit"].items()}
    for name, learner in state.learners.items():
        own = plain if name == POLICY else plain["roles"][name]
        learner.entropy_history = EntropyHistory.from_dict(own["entropy_history"])
        learner.loss_memory = own.get("loss_memory", {})  # earlier versions had none
    state.past_results = plain.get("past_results", {})
    state.stream = None if plain["stream"] is None else StreamState(**plain["stream"])
    state.plan = None if plain["plan"] is None else checked(PlanState, plain["plan"], "plan")
    state.success_before, state.num_trajectories = plain["success_before"], plain["num_trajectories"]
    state.started -= plain["wall_s"]
    state.activity.load_state_dict(plain["activity"])


def _begin_learner(learner: Learner, outline: StateDict) -> None:
    """Prepare a model for the tensors of a checkpoint, and check that they are its own."""
    # earlier versions stored the weights below adapters, too
    learner.has_base = has_base = learner.has_base or set(outline["model"]) == set(kept_state(learner.model))
    if "reference" in outline:
        learner.refer_to_itself()
        assert learner.reference is not None
        check_same_tensors(reference_state(learner.reference, has_base=has_base), outline["reference"])
    check_same_tensors(stored_state(learner.model, has_base=has_base), outline["model"])


def restore_start(state: TrainState, found: Checkpoint, ranks: Ranks) -> None:
    """Restore the weights of a run that is done with its warm start, and nothing that RL makes anew.

    All ranks must call this.

    Raises:
        CorruptDataError: the checkpoint cannot be read, or belongs to another model.
    """
    state.phase, state.step = found.phase, found.step
    has_base = state.has_base or set(found.outline["model"]) == set(kept_state(state.model))
    own = stored_state(state.model, has_base=has_base)
    check_same_tensors(own, found.outline["model"])
    try:
        load_tree(found.folder, {"model": found.outline["model"]}, dict(tensors_of({"model": own})), ranks)
    except CorruptDataError as error:
        raise _unreadable(found.folder, str(error)) from error
    torch.set_rng_state(found.plain["rng"])
    state.started -= found.plain["wall_s"]


def _tree_of(state: TrainState) -> StateDict:
    roles = {name: _learner_tree(learner) for name, learner in state.roles.items()}
    return {
        **_learner_tree(state),
        "columns": {key: columns.state_dict() for key, columns in state.columns.items()},
        **({"roles": roles} if roles else {}),
    }


def _learner_tree(learner: Learner) -> StateDict:
    kept, has_base = learner.reference, learner.has_base
    reference = {} if kept is None else {"reference": reference_state(kept, has_base=has_base)}
    model = stored_state(learner.model, has_base=has_base)
    return {"model": model, "optimizer": learner.optimizer.state_dict(), **reference}


def _plain_of(state: TrainState) -> StateDict:
    return {
        "rng": torch.get_rng_state(),  # the library itself draws nothing from it, a model with dropout does
        "credit": {key: memory.to_dict() for key, memory in state.credit.items()},  # of trackers and curricula
        **_learner_plain(state),
        "roles": {name: _learner_plain(learner) for name, learner in state.roles.items()},
        "past_results": state.past_results,
        "stream": None if state.stream is None else asdict(state.stream),
        "plan": None if state.plan is None else asdict(state.plan),
        "success_before": state.success_before,
        "num_trajectories": state.num_trajectories,
        "wall_s": state.wall_s,
        "activity": state.activity.state_dict(),
    }


def _learner_plain(learner: Learner) -> StateDict:
    return {"entropy_history": learner.entropy_history.to_dict(), "loss_memory": dict(learner.loss_memory)}


def _filled(state: TrainState, found: Checkpoint, ranks: Ranks) -> StateDict:
    """Read the checkpoint's tree; weights are read in place, and the optimizer's tensors are sharded like them."""
    optimizers = {
        "optimizer": state.optimizer,
        **{f"roles/{name}/optimizer": learner.optimizer for name, learner in state.roles.items()},
        **{
            f"columns/{key}/{path}": optimizer
            for key, columns in state.columns.items()
            for path, optimizer in columns.optimizers().items()
        },
    }
    of_optimizers = tuple(f"{at}/" for at in optimizers)
    targets = {at: one for at, one in tensors_of(_tree_of(state)) if not at.startswith(of_optimizers)}
    for at, optimizer in optimizers.items():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for path, tensor in tensors_of(_part(found.outline, at), at):
            _, index, *_ = path.removeprefix(f"{at}/").split("/")  # as in optimizer/state/0/exp_avg
            if tensor.shape == parameters[int(index)].shape:
                targets[path] = torch.zeros_like(parameters[int(index)], dtype=tensor.dtype)
    try:
        parts: StateDict = load_tree(found.folder, dict(found.outline), targets, ranks)
    except CorruptDataError as error:
        raise _unreadable(found.folder, str(error)) from error
    return parts


def _part(tree: StateDict, path: str) -> object:
    for name in path.split("/"):
        tree = tree[name]
    return tree


def checkpoint_path(run_dir: Path, phase: Phase, step: int) -> Path:
    """Return the folder of a checkpoint."""
    return run_dir / "checkpoints" / f"{phase}-{step:06d}"


def load_latest_checkpoint(run_dir: Path) -> Checkpoint | None:
    """Return the latest checkpoint of a run without its tensors, or None if the run has none.

    Raises:
        CorruptDataError: it cannot be read, or was written by an older version; the message says what to do.
    """
    found = checkpoints_of(run_dir)
    if not found:
        if old := sorted((run_dir / "checkpoints").glob("*.pt")):
            raise _older(old[-1])
        return None
    path, phase, step = found[-1], *phase_and_step(found[-1])
    try:
        outline, plain = read_outline(path)
    except Exception as error:
        raise _unreadable(path, error_text(error)) from error
    return Checkpoint(path, phase, step, outline, plain)


def latest_checkpoint(run_dir: Path) -> Path | None:
    """Return the folder of a run's latest checkpoint, or None if it has none."""
    return next(reversed(checkpoints_of(run_dir)), None)


def phase_and_step(path: Path) -> tuple[Phase, int]:
    """Return the phase and the step of a checkpoint's folder."""
    phase, _, step = path.name.partition("-")
    return next(known for known in _PHASES if known == phase), int(step)


def _older(path: Path) -> CorruptDataError:
    return CorruptDataError(
        f"{path} is a checkpoint of an older version of agentgym, which this one does not read; resume the run with "
        "that version, or start a new one"
    )


def _unreadable(path: Path, reason: str) -> CorruptDataError:
    """Return the error of a checkpoint that was not read. Only its hashes say whether it is damaged."""
    found = checkpoints_of(path.parents[1])
    earlier = [other.name for other in found[: found.index(path)]]
    reason = reason.strip().partition("\n")[0]
    aside = f"move it out of {path.parent} to resume from {earlier[-1] if earlier else 'the beginning'}"
    findings = compare_hashes(path)
    if findings is None:
        return CorruptDataError(
            f"the checkpoint {path} cannot be read ({reason}); it has no hashes, so it may be whole: keep it, and "
            f"resume with the Python, torch and agentgym that wrote it, or {aside}"
        )
    if findings.damaged:
        changed = f"{', '.join(findings.damaged)} {'is' if len(findings.damaged) == 1 else 'are'} not as written"
        return CorruptDataError(f"the checkpoint {path} is damaged: {changed} ({reason}); {aside}")
    return CorruptDataError(
        f"the checkpoint {path} is whole, as its hashes say, but {this_python()} cannot read it ({reason}); "
        f"resume with what wrote it ({findings.written_by}), and keep it"
    )


def checkpoints_of(run_dir: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, the latest last."""
    paths = (path for path in (run_dir / "checkpoints").glob("*-*") if path.is_dir() and not path.suffix)
    return sorted(paths, key=lambda path: (_PHASES.index(path.name.partition("-")[0]), path.name))


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk; without this a crash of the machine may undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
