"""The files of a model's folder: what is damaged, missing or there twice, found without loading the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

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

INDEX: Final = "model.safetensors.index.json"
WEIGHTS: Final = "model.safetensors"
_PICKLED: Final = "pytorch_model.bin"
_ADAPTERS: Final = "adapter_config.json"
_NUM_COMPARED: Final = 257
"""Numbers of each tensor that are compared, where a folder has the same weights in two formats."""


def check_files(folder: Path) -> None:
    """Check that a folder has a model's configuration and weights, and that its JSON and safetensors files are whole.

    Raises:
        CorruptDataError: a file is missing or damaged; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    if why := why_unreadable(folder, None):
        raise CorruptDataError(f"the model at {folder} cannot be imported: {why}")
    check_answered_once(folder)
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


def tensor_names(folder: Path) -> list[str]:
    """Return the names of the tensors in a folder's safetensors files that transformers would read."""
    return [name for name, _ in _tensors(folder)]


def check_are_numbers(folder: Path, path: str | Path, tables: Callable[[], Collection[str]]) -> None:
    """Check that a folder's matrices are stored as floating-point numbers, for a model that is not quantized.

    Args:
        tables: function that returns the last parts of the names of tensors that the architecture itself has as whole
            numbers, such as the experts of each token in DeepSeek V4. It is called only if the folder has any.

    Raises:
        CorruptDataError: some are whole numbers, which stand for weights by a rule that config.json does not name.
    """
    codes = [(name, of) for name, of in _tensors(folder) if of.get_dtype()[0] in "IU" and len(of.get_shape()) > 1]
    known = tables() if codes else ()
    codes = [(name, of) for name, of in codes if name.rpartition(".")[2] not in known]
    if codes:
        name, of = codes[0]
        raise CorruptDataError(
            f"the model at {path} stores {len(codes)} matrices as whole numbers ({name} as {of.get_dtype()}), and its "
            "config.json has no quantization_config that says what they stand for: name its floating-point checkpoint"
        )


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Return the tensors of a folder's safetensors files, without reading their numbers."""
    from safetensors import safe_open

    for file in (
        [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else [folder / name for name in _shards(folder, INDEX)]
    ):
        with safe_open(file, "pt") as opened:
            for tensor in opened.keys():  # noqa: SIM118  (no mapping)
                yield tensor, opened.get_slice(tensor)


def _shards(folder: Path, name: str) -> list[str]:
    """Return the names of the existing files that an index names."""
    index = folder / name
    named = read_json(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else ()
    return [shard for shard in sorted(set(named)) if (folder / shard).is_file()]


def check_answered_once(folder: Path) -> None:
    """Check that no two files of a model's folder answer the same question, of which transformers would pick one.

    Raises:
        CorruptDataError: two files do; the message names them, and what to do.
    """
    is_whole = any((folder / name).is_file() for name in (WEIGHTS, INDEX, _PICKLED, f"{_PICKLED}.index.json"))
    if is_whole and (folder / _ADAPTERS).is_file():
        raise CorruptDataError(
            f"{folder} has the weights of a whole model and adapters ({_ADAPTERS}), which would be applied to them: if "
            f"they are merged already, remove {_ADAPTERS} and adapter_model.*; if not, move these to another folder"
        )
    if (folder / WEIGHTS).is_file() and (shards := [name for name in _shards(folder, INDEX) if name != WEIGHTS]):
        raise CorruptDataError(
            f"{folder} holds two models: {WEIGHTS}, and {len(shards)} files that {INDEX} names; remove the one that is "
            "not meant"
        )
    is_safe = (folder / WEIGHTS).is_file() or bool(_shards(folder, INDEX))
    pickles = [folder / name for name in (_PICKLED, *_shards(folder, f"{_PICKLED}.index.json"))]
    if is_safe and (there := [file for file in pickles if file.is_file()]):
        _check_same_weights(folder, there)
    _check_one_template(folder)


def _check_same_weights(folder: Path, pickles: list[Path]) -> None:
    """Check that a folder's two formats of weights agree, as those of many published models do.

    Raises:
        CorruptDataError: a tensor differs in one of the numbers that are compared.
    """
    import torch

    try:
        pickled: dict[str, torch.Tensor] = {}
        for file in pickles:
            pickled |= torch.load(file, mmap=True, weights_only=True)
        common = [(name, of[:]) for name, of in _tensors(folder) if name in pickled]
    except Exception as error:
        raise CorruptDataError(f"{pickles[0]} cannot be read: {gist(error)}; remove it") from error
    differ = [name for name, tensor in common if not _agree(tensor, pickled[name])]
    if differ or not common:
        raise CorruptDataError(
            f"{folder} holds two models: its .safetensors files and {pickles[0].name} differ "
            f"({differ[0] if differ else 'no common tensor'}); remove the one that is not meant"
        )


def _agree(one: Any, other: Any) -> bool:
    if one.shape != other.shape:
        return False
    step = max(1, one.numel() // _NUM_COMPARED)
    a, b = (tensor.reshape(-1)[::step].float() for tensor in (one, other))
    return bool(((a - b).abs() <= 1e-2 * b.abs() + 1e-6).all())  # one of them may be in half precision


def _check_one_template(folder: Path) -> None:
    """Check that a folder has one chat template.

    Raises:
        CorruptDataError: it has two that differ.
    """
    own, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if not own.is_file() or not settings.is_file():
        return
    try:
        found = read_json(settings.read_text(encoding="utf-8"))
    except ValueError:  # reported where the tokenizer is read
        return
    other = found.get("chat_template") if isinstance(found, dict) else None
    if isinstance(other, str) and other.strip() != own.read_text(encoding="utf-8").strip():
        raise CorruptDataError(
            f"{folder} has two chat templates that differ, {own.name} and chat_template in {settings.name}: remove the "
            "one that is not meant (transformers would take the first)"
        )
