"""Folders of adapters as peft writes them: merged into their model, continued, and saved beside a trained model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from agentgym.canonical import read_json
from agentgym.errors import ConfigError, CorruptDataError, UsageError, gist, require_extra
from agentgym.trainers.models.config import LoraSettings

if TYPE_CHECKING:
    from torch import Tensor

ADAPTERS: Final = "adapters"
"""Folder of a run with its adapters, beside the merged model."""
ADAPTER_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_PLAIN: Final[Mapping[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "layers_to_transform": (None, []),
}
"""Values of an ``adapter_config.json`` that adapters of :func:`~agentgym.trainers.models.model.add_lora` have."""


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return the settings of a folder of adapters.

    Raises:
        CorruptDataError: the folder's file cannot be read.
    """
    file = folder / ADAPTER_CONFIG
    try:
        values = read_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{file} cannot be read: {gist(error)}") from error
    if not isinstance(values, dict):
        raise CorruptDataError(f"{file} cannot be read: expected a JSON object")
    return values


def base_of(folder: Path) -> str:
    """Return the source of the model that a folder's adapters are for.

    Raises:
        CorruptDataError: the folder does not name it.
    """
    base = read_adapter_config(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CorruptDataError(
            f"{folder / ADAPTER_CONFIG} does not name the model that the adapters are for: set base_model_name_or_path "
            "to its folder or hub name"
        )
    if Path(base).is_dir() and has_adapters_alone(Path(base)):
        raise CorruptDataError(f"{folder / ADAPTER_CONFIG} names {base} as the model, which has adapters alone")
    return base


def has_adapters_alone(folder: Path) -> bool:
    """Return True if a folder has adapters, and no whole model beside them."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def merge_adapters(
    folder: Path,
    out: Path,
    say: Callable[[str], None] = lambda line: None,
    weights: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Write the model of a folder of adapters, with these merged into it, to an empty folder.

    Args:
        weights: trained parameters that replace those of the folder, by name.

    Raises:
        UsageError, CorruptDataError: the adapters or their model cannot be read.
    """
    from agentgym.trainers.models.model import load_model, save_model

    require_extra("adapters of peft", "train", "peft")
    from peft import PeftModel

    base = base_of(folder)
    say(f"merging {folder} into {base}")
    model, tokenizer = load_model(base, say=say)
    try:
        adapted: Any = PeftModel.from_pretrained(model, str(folder))
    except Exception as error:
        raise CorruptDataError(f"the adapters in {folder} do not fit {base}: {gist(error)}") from error
    _check_read(set(_stored_names(folder)), adapted, folder, base)
    replace_weights(adapted, weights)
    save_model(adapted, _own_tokenizer(folder, tokenizer), out / "merged")
    for file in (out / "merged").iterdir():
        file.rename(out / file.name)
    (out / "merged").rmdir()


def replace_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the parameters of a model that have their names.

    Raises:
        CorruptDataError: the model has no such parameter.
    """
    import torch

    own = dict(model.named_parameters())
    if unknown := sorted(weights.keys() - own.keys()):
        raise CorruptDataError(f"the weights are not those of the model, which has no {unknown[0]}")
    with torch.no_grad():
        for key, weight in weights.items():
            own[key].copy_(weight)


def _own_tokenizer(folder: Path, tokenizer: Any) -> Any:
    """Return the tokenizer that was saved with adapters, else that of their model."""
    from agentgym.trainers.models.model import tokenizer_in

    return tokenizer_in(str(folder)) if (folder / "tokenizer.json").is_file() else tokenizer


def continue_adapters(adapted: Any, settings: LoraSettings) -> None:
    """Give a model's new adapters the weights of a folder, to train them further.

    Raises:
        ConfigError: they have other sizes or places than the configuration says, or parts that are not trained here.
        CorruptDataError: the folder cannot be read, or its tensors are not those of the adapters.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    folder = Path(settings.path)
    found = read_adapter_config(folder)
    _check_settings(found, settings, folder)
    try:
        state = load_file(folder / _WEIGHTS)
        loaded: Any = set_peft_model_state_dict(adapted, state)
    except Exception as error:
        raise CorruptDataError(f"the adapters in {folder} do not fit the model: {gist(error)}") from error
    missing = [name for name in loaded.missing_keys if ".lora_" in name]
    if odd := sorted([*loaded.unexpected_keys, *missing]):
        raise CorruptDataError(f"the adapters in {folder} are not those of the model: {odd[0]} is in one of both alone")


def _check_settings(found: Mapping[str, Any], settings: LoraSettings, folder: Path) -> None:
    other = [
        f"{name} is {found[name]!r}" for name, known in _PLAIN.items() if name in found and found[name] not in known
    ]
    if other:
        raise ConfigError(f"model.lora.path: the adapters in {folder} cannot be continued here: {'; '.join(other)}")
    targets = found.get("target_modules")
    own = {"rank": found.get("r"), "alpha": found.get("lora_alpha"), "target_modules": tuple(sorted(targets or ()))}
    asked = {"rank": settings.rank, "alpha": settings.alpha, "target_modules": tuple(sorted(settings.target_modules))}
    if wrong := [name for name, value in own.items() if value != asked[name]]:
        values = {**own, "target_modules": json.dumps(own["target_modules"])}
        mend = " ".join(f"'model.lora.{name}={values[name]}'" for name in wrong)
        raise ConfigError(f"model.lora.path: the adapters in {folder} differ from the configuration: set {mend}")


def _stored_names(folder: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(folder / _WEIGHTS, "pt") as opened:
        return list(opened.keys())


def _check_read(stored: set[str], adapted: Any, folder: Path, base: str) -> None:
    """Check that a model has an adapter for each stored tensor, and no others."""
    from peft import get_peft_model_state_dict

    if odd := sorted(stored ^ set(get_peft_model_state_dict(adapted))):
        raise CorruptDataError(f"the adapters in {folder} are not those of {base}: {odd[0]} is in one of both alone")


def save_adapters(model: Any, folder: Path, base: str) -> None:
    """Write a model's adapters as peft reads them, with the source of the model that they are for.

    Raises:
        UsageError: the model has none.
    """
    if not hasattr(model, "merge_and_unload"):
        raise UsageError("the model has no adapters: it was trained without model.lora.rank")
    named = str(Path(base).resolve()) if Path(base).is_dir() else base  # they may be read from another folder
    vars(model.peft_config["default"])["base_model_name_or_path"] = named
    model.save_pretrained(folder)
