"""Gemma 3: a fixed number of vectors between marks, which attend to each other both ways."""

from __future__ import annotations

from typing import Any, Final

from agentgym.trainers.models.families.family import Family, Fields


def _count(shape: Any, fields: Fields) -> int:
    number: int = shape.mm_tokens_per_image
    return number


def _why_not(processor: Any) -> str:
    is_on = bool(processor.do_pan_and_scan)
    return "crops images: set do_pan_and_scan to false in preprocessor_config.json" if is_on else ""


GEMMA3: Final = Family(
    count=_count,
    slot="<start_of_image>",
    before="\n\n<start_of_image>",
    after="<end_of_image>\n\n",
    sees_both_ways=True,
    why_not_processor=_why_not,
)
