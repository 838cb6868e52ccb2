"""The way in which a family of models takes images. A family is one module of this folder, and a line in its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Fields = dict[str, Tensor]
"""Inputs of a model that an image processor makes of images."""


def appended(found: Sequence[Fields]) -> Fields:
    """Return the fields of several images, one after the other along the first dimension."""
    return {name: torch.cat([fields[name] for fields in found]) for name in found[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The way in which one family of models takes images."""

    positions: Literal["plain", "mrope"] = "plain"
    """``mrope``: images have three-dimensional positions, and text after them goes on from the largest."""
    inputs: tuple[str, ...] = ("pixel_values",)
    """Fields of the image processor that the model takes."""
    count: Callable[[Any, Fields], int]
    """Number of vectors of one image, from the model's configuration and all of the processor's fields."""
    joined: Callable[[Sequence[Fields]], Fields] = appended
    """Joins the fields of the images of a batch, in order."""
    slot: str = ""
    """Text that the chat template writes once for an image; empty: the placeholder."""
    before: str = ""
    """Text before the placeholders of an image that takes the place of a slot."""
    after: str = ""
    """Text after them."""
    written: str = "{}"
    """Text of an image in a message, where the chat template writes none; ``{}`` is the place of the slot."""
    placeholders: tuple[str, ...] = ()
    """Further tokens that a model may not sample, as their vectors come from pixels."""
    sees_both_ways: bool = False
    """True if the places of an image attend to each other, the later ones included."""
    why_not: Callable[[Any], str] = lambda shape: ""
    """Reason why a configuration of the family is refused; empty if it is not."""
    why_not_processor: Callable[[Any], str] = lambda processor: ""
    """Reason why an image processor is refused; empty if it is not."""
