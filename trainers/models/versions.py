"""Earlier versions of a run's policy as model sources: ``RUN@STEP``.

A run with a role of the past (``roles.NAME.policy=self:N`` or ``league:N``) keeps the weights of versions in ``past/``.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentgym.cache import built_once, cache_folder
from agentgym.canonical import digest
from agentgym.errors import CorruptDataError, UsageError
from agentgym.rollout.run_kind import kind_of_run

PAST = "past"
"""Folder of a run with one folder for each role of the past."""
_SOURCE = re.compile(r"(.+)@(\d+)")
_FILE = re.compile(r"step-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Version:
    """An earlier version of the policy of a training run.

    Example:
        >>> import tempfile
        >>> run = tempfile.mkdtemp()
        >>> Version.read(f"{run}@25") == Version(Path(run), 25), Version.read(run)
        (True, None)
    """

    run: Path
    step: int

    @classmethod
    def read(cls, source: str) -> Version | None:
        """Return the version that a source names, or None if the source is none, or a folder of that name."""
        found = None if Path(source).is_dir() else _SOURCE.fullmatch(source)
        return cls(Path(found[1]), int(found[2])) if found and Path(found[1]).is_dir() else None

    def folder(self) -> Path:
        """Return a model folder of the version, which is made in the cache at its first use.

        Raises:
            UsageError: the run is none, or has no such version.
            CorruptDataError: the version cannot be read.
        """
        kept = _files(self.run)
        if self.step not in kept:
            raise UsageError(f"{self.run} has no version {self.step}: {_known(self.run)}")
        model, state = self.run / "model", kept[self.step].stat()
        if not (model / "config.json").is_file():
            raise UsageError(f"{self.run} has no whole model, from which its versions differ in their weights")
        facts = [str(kept[self.step].resolve()), state.st_size, state.st_mtime_ns]
        cached = cache_folder() / "models" / f"{self.run.name}-{self.step}-{digest(facts)[:12]}"
        return built_once(cached, lambda empty: _write(model, kept[self.step], empty))


def versions_of(run: Path) -> list[int]:
    """Return the steps of the policy's versions that a training run has kept, in ascending order.

    Raises:
        UsageError: it has kept none.
    """
    if not (steps := sorted(_files(run))):
        raise UsageError(f"{run} has no versions: {_known(run)}")
    return steps


def _known(run: Path) -> str:
    if steps := sorted(_files(run)):
        return f"it has kept those of the steps {', '.join(map(str, steps))}"
    return "a run keeps them with a role of the past (roles.opponent.policy=league:N)"


def _files(run: Path) -> dict[int, Path]:
    """Return the files of a run's versions by step; roles of the past keep the same weights at the same step."""
    if kind_of_run(run) != "training":
        raise UsageError(f"{run} is not the folder of a training run, so it has no versions")
    found = ((_FILE.fullmatch(path.name), path) for path in sorted((run / PAST).glob("*/*")))
    return {int(match[1]): path for match, path in found if match}


def _write(model_dir: Path, weights_file: Path, out: Path) -> None:
    """Write a run's model with the weights of a version."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from agentgym.trainers.models.adapters import ADAPTERS, merge_adapters, replace_weights
    from agentgym.trainers.models.model import load_model

    try:
        weights = load_file(weights_file)
    except (OSError, SafetensorError) as error:
        raise CorruptDataError(f"{weights_file} cannot be read: {error}") from error
    if (adapters := model_dir.with_name(ADAPTERS)).is_dir():
        merge_adapters(adapters, out, weights=weights)
    elif adapters_only := [key for key in weights if ".lora_" in key]:
        raise UsageError(f"{weights_file} holds adapters ({adapters_only[0]}) over weights that the run has not kept")
    else:
        model, _ = load_model(str(model_dir))
        replace_weights(model, weights)
        model.save_pretrained(out)
    for path in model_dir.iterdir():  # with the prompts of training
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copy(path, out)
