"""The model of any checkpoint of a run, as a folder."""

from __future__ import annotations

from pathlib import Path

from agentgym.errors import CorruptDataError, UsageError
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.checkpoint import checkpoints_of
from agentgym.trainers.config.overrides import load_config
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.tensor_folder import load_tree, read_outline, tensors_of
from agentgym.trainers.models.adapters import save_adapters
from agentgym.trainers.models.model import add_lora, load_model, save_model
from agentgym.trainers.models.quantized import check_same_tensors, kept_state, stored_state
from agentgym.trainers.models.rehearsal import prepare_saving
from agentgym.trainers.models.tiny import build_model, build_vision, read_tokenizer
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.run.folder import TOKENIZER_NAME


def export_checkpoint(run_dir: Path, out: Path, name: str = "", *, only_adapters: bool = False) -> Path:
    """Write the model of a run's checkpoint to a new folder, and return the checkpoint's folder.

    Args:
        name: the checkpoint's, as in ``rl-000040``; empty: the latest.
        only_adapters: write the adapters as peft does, instead of the model with these merged in.

    Raises:
        UsageError: the run has no such checkpoint, it trains no adapters, or ``out`` is not empty.
        CorruptDataError: the checkpoint cannot be read, or does not fit the run's configuration.
    """
    if out.exists():
        raise UsageError(f"{out} exists; choose another folder")
    found = _checkpoint(run_dir, name)
    config = load_config(run_dir / "config.json")
    settings = config.model
    if settings.path:
        model, tokenizer = load_model(settings.path, settings.lora.quantize)
    else:
        tokenizer = read_tokenizer(run_dir / TOKENIZER_NAME)
        vision = build_vision(tokenizer, settings)
        model = build_model(tokenizer, settings, derive_seed(config.seed, "model"), vision)
    model = add_lora(model, settings.lora, derive_seed(config.seed, "lora"))
    try:
        outline, _ = read_outline(found)
    except Exception as error:
        raise CorruptDataError(f"the checkpoint {found} cannot be read: {error}") from error
    has_base = not settings.trains_adapters_of_files or set(outline["model"]) == set(kept_state(model))
    own = stored_state(model, has_base=has_base)
    check_same_tensors(own, outline["model"])
    load_tree(found, {"model": outline["model"]}, dict(tensors_of({"model": own})), Ranks())
    if only_adapters:
        save_adapters(model, out, settings.path)
        tokenizer.save_pretrained(out)
        return found
    renderer = renderer_for(settings.path, tokenizer, settings.chat)
    prepare_saving(model, tokenizer, renderer.turn_end_ids)
    save_model(model, tokenizer, out, config.context, settings.chat)
    return found


def _checkpoint(run_dir: Path, name: str) -> Path:
    found = {path.name: path for path in checkpoints_of(run_dir)}
    if not found:
        raise UsageError(f"{run_dir} has no checkpoints")
    if name and name not in found:
        raise UsageError(f"{run_dir} has no checkpoint {name!r}; it has {', '.join(found)}")
    return found[name] if name else list(found.values())[-1]
