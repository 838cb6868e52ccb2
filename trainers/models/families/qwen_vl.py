"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: flat patches with a grid for each image, and three-dimensional positions.

Qwen3-VL interleaves the dimensions of its positions and adds vectors of lower layers of its tower to the first layers
of its text (deepstack). Both happen within the model.
"""

from __future__ import annotations

from typing import Any, Final

from agentgym.trainers.models.families.family import Family, Fields


def _count(shape: Any, fields: Fields) -> int:
    merged: int = shape.vision_config.spatial_merge_size**2
    return int(fields["image_grid_thw"][0].prod()) // merged


QWEN_VL: Final = Family(
    positions="mrope",
    inputs=("pixel_values", "image_grid_thw"),
    count=_count,
    written="<|vision_start|>{}<|vision_end|>",
    placeholders=("<|video_pad|>",),
)
