"""Training from Python, as ``agentgym train`` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.api.changes import plain_changes
from agentgym.api.run_dirs import as_path, need_train_extra, new_run_dir
from agentgym.api.trust import require_trust
from agentgym.errors import UsageError, raising_first_cause

if TYPE_CHECKING:
    from agentgym.trainers.run.folder import TrainResult


def train(
    recipe: str, changes: Mapping[str, object] | None = None, *, run_dir: str | Path | None = None
) -> TrainResult:
    """Train an agent with a recipe, as ``agentgym train`` does, and write its report.

    It also works if an event loop is already running, as in a notebook.

    Args:
        recipe: a name from ``agentgym list --recipes``.
        changes: values that replace the recipe's, by path, as in ``{"env.id": "Guess-v0", "optimizer.lr": 1e-4}``.
        run_dir: folder of the run; by default ``runs/<recipe>-<NNN>``.

    Returns:
        Success on held-out tasks before and after RL, numbers of steps and episodes, and ``run_dir``, which holds the
        model (``model/``), metrics, rollouts, checkpoints and ``report.html``.

    Raises:
        UsageError: the recipe, key or model is unknown, ``changes`` is no mapping, or ``run_dir`` is not empty.
        ConfigError: a value is wrong, or values do not fit together.
        RunStoppedError: the run stopped itself; :func:`resume` continues it.
    """
    given = plain_changes("changes", changes)
    need_train_extra("training")
    from agentgym.trainers.config.overrides import apply_changes
    from agentgym.trainers.models.sources import check_source
    from agentgym.trainers.recipes import load_recipe

    config = apply_changes(load_recipe(recipe), given)
    check_source(config.model.path)
    folder = new_run_dir(config.recipe, None if run_dir is None else as_path("run_dir", run_dir))
    return _run(config, folder, resume=False)


def resume(
    run_dir: str | Path,
    *,
    num_steps: int | None = None,
    changes: Mapping[str, object] | None = None,
    branch_dir: str | Path | None = None,
) -> TrainResult:
    """Resume a run from its last checkpoint and train to its last step, or to a later one.

    With ``branch_dir`` the run itself stays as it is, and a branch of it goes on from the checkpoint in that folder.
    Its settings may differ, such as the learning rate or the group size. ``branch.json`` records what differs.

    Args:
        run_dir: folder of the run.
        num_steps: new number of steps, not below the old one; by default the old one.
        changes: values of a branch that replace the run's, by path.
        branch_dir: new folder of the branch; by default the run itself is resumed.

    Raises:
        UsageError: there is no such run, another user made it, ``num_steps`` is below the old number, or ``changes``
            are given without ``branch_dir``.
        ConfigError: the checkpoint depends on a value that is to change.
        CorruptDataError: the files of the run cannot be read.
    """
    need_train_extra("training")
    from agentgym.trainers.branches import branch
    from agentgym.trainers.config.overrides import apply_changes, load_config

    folder = as_path("run_dir", run_dir)
    require_trust(folder)
    if changes and branch_dir is None:
        raise UsageError(f"a resumed run keeps its values of {', '.join(changes)}; branch_dir=NEW makes a branch")
    given = plain_changes("changes", changes) | ({} if num_steps is None else {"num_steps": num_steps})
    config = apply_changes(load_config(folder / "config.json"), given)
    if branch_dir is not None:
        target = new_run_dir(config.recipe, as_path("branch_dir", branch_dir))
        branch(folder, target, config)
        folder = target
    return _run(config, folder, resume=True)


def _run(config: Any, folder: Path, *, resume: bool) -> TrainResult:
    from agentgym.report import write_report
    from agentgym.trainers.train import train as train_ranks

    result = raising_first_cause(lambda: train_ranks(config, folder, resume=resume))
    write_report(folder)
    return result
