"""Idefics 3 and SmolVLM: vectors between marks; images of a batch lie in the second dimension of the pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from agentgym.trainers.models.families.family import Family, Fields


def _count(shape: Any, fields: Fields) -> int:
    side: int = fields["pixel_values"].shape[-1] // shape.vision_config.patch_size
    shuffled: int = shape.scale_factor**2
    return side * side // shuffled


def _joined(found: Sequence[Fields]) -> Fields:
    return {name: torch.cat([fields[name] for fields in found], dim=1) for name in found[0]}


def _why_not(processor: Any) -> str:
    # parts of an image would be several runs of places with texts between, and a prefill could begin between them
    is_split = processor.do_image_splitting
    return "splits images into parts: set do_image_splitting to false in preprocessor_config.json" if is_split else ""


IDEFICS: Final = Family(
    inputs=("pixel_values", "pixel_attention_mask"),
    count=_count,
    joined=_joined,
    before="<fake_token_around_image><global-img>",
    after="<fake_token_around_image>",
    why_not_processor=_why_not,
)
