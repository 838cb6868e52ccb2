"""The files of a model's folder: what is damaged or missing in them, found without loading the weights."""

from __future__ import annotations

from pathlib import Path

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, gist

_LFS_POINTER = b"version https://git-lfs"
"""Beginning of the text that a clone without Git LFS has in place of a large file."""
_JSON_KEYS = {
    "config.json": ("model_type",),
    "model.safetensors.index.json": ("weight_map",),
    "tokenizer.json": ("added_tokens", "model"),
    "tokenizer_config.json": (),
}
"""JSON files from which a model is loaded, and the keys that each has."""

INDEX = "model.safetensors.index.json"


def check_files(folder: Path) -> None:
    """Check that a folder has a model's configuration and weights, and that its JSON and safetensors files are whole.

    Raises:
        CorruptDataError: a file is missing or damaged; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    if why := why_unreadable(folder, None):
        raise CorruptDataError(f"the model at {folder} cannot be imported: {why}")
    weights = sorted(folder.glob("*.safetensors"))
    index = folder / INDEX
    parts = set(read_json(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
    if missing := sorted(parts - {file.name for file in weights}):
        raise CorruptDataError(f"the model at {folder} lacks {', '.join(missing)}, which {INDEX} names")
    if not weights and not list(folder.glob("*.bin")):
        raise CorruptDataError(f"the model at {folder} has no weights: no .safetensors file is in the folder")
    for file in weights:
        try:
            with safe_open(file, "numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise CorruptDataError(f"{file} is damaged: {gist(error)}; copy or download it again") from error


def why_unreadable(path: Path, error: Exception | None) -> str:
    """Return why a model's folder or file cannot be read: Git LFS pointers, a damaged JSON file, or else the error."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    pointers = [file.name for file in files if file.is_file() and _is_lfs_pointer(file)]
    if not pointers:
        damages = (f"{file.name} is damaged: {why}" for file in files if (why := _json_damage(file)))
        return next(damages, f"{type(error).__name__}: {gist(error)}" if error else "")
    files_are = "is a Git LFS pointer" if len(pointers) == 1 else "are Git LFS pointers"
    folder = path if path.is_dir() else path.parent
    return f"{', '.join(pointers)} {files_are} without the content; run `git lfs pull` in {folder}"


def _is_lfs_pointer(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_LFS_POINTER)) == _LFS_POINTER


def _json_damage(file: Path) -> str:
    """Return what is wrong with a JSON file from which a model is loaded; empty for other files."""
    if file.name not in _JSON_KEYS:
        return ""
    try:
        values = read_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return gist(error)
    if not isinstance(values, dict):
        return "expected a JSON object"
    lacks = [key for key in _JSON_KEYS[file.name] if key not in values]
    return f"it lacks {', '.join(lacks)}" if lacks else ""
