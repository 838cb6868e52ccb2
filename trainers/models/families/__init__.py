"""The families of models that see, by the model type of their configuration.

Each is held by the tests of ``tests/trainers/vision``.
"""

from collections.abc import Mapping
from typing import Final

from agentgym.trainers.models.families.family import Family
from agentgym.trainers.models.families.gemma3 import GEMMA3
from agentgym.trainers.models.families.idefics import IDEFICS
from agentgym.trainers.models.families.internvl import INTERNVL
from agentgym.trainers.models.families.llava import LLAVA
from agentgym.trainers.models.families.llava_onevision import LLAVA_ONEVISION
from agentgym.trainers.models.families.qwen_vl import QWEN_VL

FAMILIES: Final[Mapping[str, Family]] = {
    "qwen2_vl": QWEN_VL,
    "qwen2_5_vl": QWEN_VL,
    "qwen3_vl": QWEN_VL,
    "smolvlm": IDEFICS,
    "idefics3": IDEFICS,
    "gemma3": GEMMA3,
    "internvl": INTERNVL,
    "llava": LLAVA,
    "llava_onevision": LLAVA_ONEVISION,
}
