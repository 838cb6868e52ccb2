"""LLaVA with a CLIP or SigLIP tower: a vector for each patch."""

from __future__ import annotations

from typing import Any, Final

from agentgym.trainers.models.families.family import Family, Fields


def _count(shape: Any, fields: Fields) -> int:
    height, width = fields["pixel_values"].shape[-2:]
    size: int = shape.vision_config.patch_size
    has_class: bool = shape.vision_config.model_type == "clip_vision_model"
    return (height // size) * (width // size) + has_class - int(shape.vision_feature_select_strategy == "default")


def _why_not(shape: Any) -> str:
    kind = shape.vision_config.model_type
    return "" if kind in ("clip_vision_model", "siglip_vision_model") else f"with a tower {kind!r} is not tested"


LLAVA: Final = Family(count=_count, written="{}\n", why_not=_why_not)
