"""Functions that read and remove checkpoints of finished runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from agentgym.trainers.checkpoint import checkpoint_path
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.tensor_folder import load_tree, read_outline
from agentgym.trainers.train_state import Phase


def drop_checkpoint(run_dir: Path, step: int, phase: Phase = "rl") -> None:
    """Remove a checkpoint from a finished run, as if the run had been killed before it wrote it."""
    shutil.rmtree(checkpoint_path(run_dir, phase, step))


def read_checkpoint(run_dir: Path, step: int, phase: Phase = "rl") -> dict[str, Any]:
    """Return the contents of a checkpoint, with unsharded tensors."""
    folder = checkpoint_path(run_dir, phase, step)
    outline, plain = read_outline(folder)
    tree: dict[str, Any] = load_tree(folder, outline, {}, Ranks())
    return tree | plain
