"""InternVL: tiles of one size, as many as the image processor cuts, and one run of vectors for all of them."""

from __future__ import annotations

from typing import Any, Final

from agentgym.trainers.models.families.family import Family, Fields


def _count(shape: Any, fields: Fields) -> int:
    num_tiles, _, height, width = fields["pixel_values"].shape
    down, across = shape.vision_config.patch_size
    of_tile = round((height // down) * (width // across) * shape.downsample_ratio**2)
    return int(num_tiles * of_tile)


INTERNVL: Final = Family(count=_count, before="<img>", after="</img>", written="{}\n")
