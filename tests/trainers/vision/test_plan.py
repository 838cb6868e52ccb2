"""Plans of models that see: their weights, a trained tower's activations, and Qwen3-VL-8B on eight GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.seeing import FAMILIES, picture, shown

from agentgym.render.config import ChatConfig
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import add_lora, load_model, train_vision
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.models.reading import senses_of
from agentgym.trainers.models.tower import tower_of
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.planning.dry_run import TooSmallError, dry_run
from agentgym.trainers.recipes import load_recipe

FolderOf = Callable[[str], Path]
QWEN3_VL = (
    "model.picture_size=0",
    "model.path=Qwen/Qwen3-VL-8B-Instruct",
    "env.kwargs.picture=448",
    "model.max_context_tokens=8192",
    "loss.tokens_per_microbatch=8192",
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vision", ["frozen", "trained", "adapters"])
def test_a_plan_counts_the_weights_that_are_trained(family: str, vision: str, folder_of: FolderOf) -> None:
    lora = LoraSettings(rank=2 if vision == "adapters" else 0)
    config = ModelConfig(path=str(folder_of(family)), vision="trained" if vision == "trained" else "frozen", lora=lora)
    _, counts = plan_model(config)
    model: Any = load_model(folder_of(family), say=lambda line: None)[0]
    senses = sum(weight.numel() for weight in {w for _, part in senses_of(model) for w in part.parameters()})
    if vision == "trained":
        train_vision(model)
    model = add_lora(model, lora, seed=0)
    assert counts.senses == senses > 0
    assert counts.all == sum(weight.numel() for weight in model.parameters())
    assert counts.trained == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "llava", "internvl", "gemma3"])
def test_the_activations_of_a_trained_tower_are_about_those_that_are_stored(family: str, folder_of: FolderOf) -> None:
    folder = folder_of(family)
    model, tokenizer = load_model(folder, say=lambda line: None)
    train_vision(model)
    vision, tower = vision_of(model), tower_of(json.loads((folder / "config.json").read_text()))
    assert vision is not None and tower is not None
    ids = renderer_for(folder, tokenizer, ChatConfig()).prompt_ids([shown(picture(1, 112, 112))], ())
    (image,) = vision.images_in(ids)
    stored: dict[int, int] = {}
    own = {weight.data_ptr() for weight in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    parts: list[Any] = [part for name, part in senses_of(model) if name.endswith((".layers", ".blocks", ".layer"))]
    assert len(parts) == 1, "the layers of the tower"
    inside: list[Any] = []
    parts[0][0].register_forward_pre_hook(lambda *_: inside.append(_enter(pack)))
    parts[0][-1].register_forward_hook(lambda *_: inside.pop().__exit__(None, None, None))
    trunk_of(model)(input_ids=torch.tensor([ids]), use_cache=False)
    expected = image[2] * tower.patches_per_token * tower.bytes_per_patch(recompute=False, in_bfloat16=False)
    assert 0.5 < expected / sum(stored.values()) < 2, (expected, sum(stored.values()))


def _enter(pack: Any) -> Any:
    context = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    context.__enter__()
    return context


def test_qwen3_vl_8b_is_planned_on_eight_gpus_without_its_weights() -> None:
    config = apply_overrides(load_recipe("see-tiny"), [*QWEN3_VL, "model.vision=frozen"])
    with pytest.raises(TooSmallError, match=r"It fits 8 such GPUs .* loss\.recompute_activations=true"):
        dry_run(config, num_ranks=8, device_gib=80)
    sizes = {}
    for vision in ("frozen", "trained"):
        config = apply_overrides(config, [f"model.vision={vision}", "loss.recompute_activations=true"])
        plan = dry_run(config, num_ranks=8, device_gib=80)
        assert plan.num_parameters == 8_767_123_696, "as published"
        assert "a token for 1,024 pixels, so 8,192 tokens" in plan.vision_note and "8.4 megapixels" in plan.vision_note
        sizes[vision] = plan
    frozen, trained = sizes["frozen"], sizes["trained"]
    assert trained.num_trained - frozen.num_trained == 576_388_336, "the tower and its projector"
    assert trained.memory.vision > 2**30 > frozen.memory.vision == 0
