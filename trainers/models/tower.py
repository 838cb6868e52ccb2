"""Sizes of a vision tower, from a ``config.json``, for plans without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FLOAT32, _BFLOAT16 = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """The sizes of a vision tower that its memory depends on."""

    layers: int
    hidden: int
    intermediate: int
    patch: int
    """Side of a patch in pixels."""
    patches_per_token: float
    """Patches that the projector merges into a token of the language model."""

    @property
    def pixels_per_token(self) -> int:
        """Pixels of a picture for each of its tokens."""
        return round(self.patch**2 * self.patches_per_token)

    def bytes_per_patch(self, *, recompute: bool, in_bfloat16: bool) -> int:
        """Return the bytes that autograd stores for a patch in all layers.

        These are two norms (input, normalised input and output), queries, keys, values and the attended states, and the
        MLP's states before and after its activation. With ``recompute`` they are those of a single layer, and the
        states between layers.
        """
        product = _BFLOAT16 if in_bfloat16 else _FLOAT32
        of_layer = _FLOAT32 * 4 * self.hidden + product * (6 * self.hidden + 2 * self.intermediate)
        between = _FLOAT32 * self.layers * self.hidden
        return between + of_layer if recompute else self.layers * of_layer


def tower_of(values: Mapping[str, Any]) -> Tower | None:
    """Return the sizes of the tower of a ``config.json``; None if it has none, or not all of them.

    Example:
        >>> vision = {"depth": 2, "hidden_size": 64, "patch_size": 16, "spatial_merge_size": 2}
        >>> tower_of({"model_type": "qwen3_vl", "vision_config": vision}).pixels_per_token
        1024
    """
    own = values.get("vision_config")
    if not isinstance(own, Mapping):
        return None
    hidden, patch = own.get("hidden_size") or own.get("embed_dim"), own.get("patch_size")
    layers = own.get("depth") or own.get("num_hidden_layers")
    patch = patch[0] if isinstance(patch, list) else patch
    if not (hidden and patch and layers):
        return None
    intermediate = own.get("intermediate_size") or round(own.get("mlp_ratio", 4) * hidden)
    return Tower(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        patch=patch,
        patches_per_token=_merged(values, own, patch),
    )


def _merged(values: Mapping[str, Any], own: Mapping[str, Any], patch: int) -> float:
    """Return the number of patches that become one token, which families name in different ways."""
    if num_tokens := values.get("mm_tokens_per_image"):
        return float((own["image_size"] // patch) ** 2 / num_tokens)
    if share := values.get("downsample_ratio"):
        return float(share**-2)
    return float((own.get("spatial_merge_size") or values.get("scale_factor") or 1) ** 2)
