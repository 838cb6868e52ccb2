"""LLaVA-OneVision: the whole image and crops of it, whose padding is cut off and whose rows end with a vector.

transformers' processor crops an image only if it is the one image of its conversation. Here every image is cropped, as
if it were alone, so that an image has the same vectors in every turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from transformers.image_processing_utils import select_best_resolution

from agentgym.trainers.models.families.family import Family, Fields


def _count(shape: Any, fields: Fields) -> int:
    """Return the number of vectors of an image, as ``pack_image_features`` of the model counts them.

    Source: ``LlavaOnevisionProcessor._get_number_of_features`` of transformers.
    """
    tower = shape.vision_config
    side = tower.image_size // tower.patch_size
    height, width = fields["image_sizes"][0].tolist()
    best = select_best_resolution((height, width), shape.image_grid_pinpoints)
    rows, columns = (side * (length // tower.image_size) for length in best)
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    ratio = math.sqrt(rows * columns / (int(shape.vision_aspect_ratio.removeprefix("anyres_max_")) * side**2))
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return int(side * side + rows * (columns + 1))


def _joined(found: Sequence[Fields]) -> Fields:
    most = max(fields["pixel_values"].shape[1] for fields in found)
    pixels = [
        torch.nn.functional.pad(one, (0, 0, 0, 0, 0, 0, 0, most - one.shape[1]))
        for one in (fields["pixel_values"] for fields in found)
    ]
    return {"pixel_values": torch.cat(pixels), "image_sizes": torch.cat([fields["image_sizes"] for fields in found])}


def _why_not(shape: Any) -> str:
    kind, strategy = shape.vision_config.model_type, shape.vision_feature_select_strategy
    if kind != "siglip_vision_model":
        return f"with a tower {kind!r} is not tested"
    return "" if strategy == "full" else f"with vision_feature_select_strategy={strategy!r} is not tested"


LLAVA_ONEVISION: Final = Family(
    inputs=("pixel_values", "image_sizes"),
    count=_count,
    joined=_joined,
    written="{}\n",
    placeholders=("<video>",),
    why_not=_why_not,
)
