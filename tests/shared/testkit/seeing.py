"""Tiny models that see, in ``from_pretrained`` folders, and an environment of pictures."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentgym import Message, Task, register
from agentgym.env.env import Env
from agentgym.render.chat import ChatRenderer
from agentgym.types import Completion, FinishReason, ImagePart, Observation, TextPart, ToolResult

_hub: Any = transformers
_TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == "image" %}SLOT{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def picture(shade: int = 0, width: int = 56, height: int = 56, *, square: int = 0) -> bytes:
    """Return a PNG of one shade with a bright square in one of its quarters."""
    image = Image.new("RGB", (width, height), (shade, shade // 2, 20))
    left, top = (square % 2) * width // 2, (square // 2) * height // 2
    image.paste((250, 250, 90), (left, top, left + width // 2, top + height // 2))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def image_part(png: bytes) -> ImagePart:
    """Return a part of a message."""
    return ImagePart(base64.b64encode(png).decode())


def shown(*parts: str | bytes, role: str = "user") -> Message:
    """Return a message of texts and pictures."""
    content = tuple(TextPart(part) if isinstance(part, str) else image_part(part) for part in parts)
    return Message("tool", content, result=ToolResult("", "look")) if role == "tool" else Message("user", content)


def said(renderer: ChatRenderer, text: str) -> Completion:
    """Return a completion as if a policy had sampled it."""
    ids = renderer.action_ids(Message("assistant", text), ())
    return Completion(
        token_ids=ids, logprobs=(0.0,) * len(ids), policy_versions=(0,) * len(ids), finish_reason=FinishReason.STOP
    )


@dataclass(frozen=True)
class SeeingFamily:
    """A tiny model of a family, and what its processor makes of pictures."""

    build: Callable[[Any], Any]
    """Builds the model for a tokenizer."""
    special: tuple[str, ...]
    """Special tokens, beside those of the chat template."""
    slot: str
    """Text that the chat template writes for an image."""
    pixels: dict[str, Any]
    """Settings of the image processor."""
    expanded: Callable[[int], str]
    """Text of an image of ``n`` vectors, as the processor of transformers writes it in place of a slot."""
    counts: tuple[int, int] = (4, 4)
    """Vectors of pictures of 56 x 56 and of 84 x 56 pixels."""


def seeing_folder(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny model with random weights, its tokenizer and the settings of its image processor."""
    own = SEEING[family]
    tokenizer = _tokenizer(own)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = own.build(tokenizer)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" not in name:
                    weight.normal_(std=0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(own.pixels))
    return folder


def own_processor(family: str, tokenizer: Any) -> Any:
    """Return transformers' processor of a family that is built without torchvision."""
    settings = dict(SEEING[family].pixels)
    images = getattr(_hub, f"{settings.pop('image_processor_type')}Pil")(**settings)
    if family == "idefics3":
        return _hub.Idefics3Processor(images, tokenizer, image_seq_len=SEEING[family].counts[0])
    if family == "llava":
        sizes = {"patch_size": 14, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0}
        return _hub.LlavaProcessor(images, tokenizer, **sizes)
    texts = {"boi": "<start_of_image>", "eoi": "<end_of_image>", "image": "<image_soft_token>"}
    for name, text in texts.items():
        setattr(tokenizer, f"{name}_token", text)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(text))
    return _hub.Gemma3Processor(images, tokenizer, image_seq_length=SEEING[family].counts[0])


def _tokenizer(own: SeeingFamily) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE({one: number for number, one in enumerate(alphabet)}, []))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = decoders.ByteLevel()
    special = ("<|im_start|>", "<|im_end|>", *own.special)
    whole.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    made = _hub.PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="<|im_end|>", pad_token="<|im_end|>")
    made.chat_template = _TEMPLATE.replace("SLOT", own.slot)
    return made


def _text(tokenizer: Any, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
        **more,
    }


def _tower(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        **more,
    }


def _ids(tokenizer: Any, **texts: str) -> dict[str, int]:
    return {name: tokenizer.convert_tokens_to_ids(text) for name, text in texts.items()}


# ------------------------------------------------------------------------------------------------------------ Qwen

_QWEN_SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def _qwen(family: str) -> Callable[[Any], Any]:
    def build(tokenizer: Any) -> Any:
        ids = _ids(
            tokenizer,
            image_token_id="<|image_pad|>",
            video_token_id="<|video_pad|>",
            vision_start_token_id="<|vision_start|>",
            vision_end_token_id="<|vision_end|>",
        )
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
        vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
        more: dict[str, Any] = {}
        if family == "qwen2_vl":
            vision |= {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
            shape, model = _hub.Qwen2VLConfig, _hub.Qwen2VLForConditionalGeneration
        elif family == "qwen2_5_vl":
            vision |= {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 64}
            vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
            shape, model = _hub.Qwen2_5_VLConfig, _hub.Qwen2_5_VLForConditionalGeneration
        else:
            vision |= {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 64, "patch_size": 16}
            vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
            rope |= {"mrope_interleaved": True}
            more |= {"head_dim": 8}
            shape, model = _hub.Qwen3VLConfig, _hub.Qwen3VLForConditionalGeneration
        text = _text(tokenizer, rope_parameters=rope, tie_word_embeddings=True, **more)
        return model(shape(text_config=text, vision_config=vision, **ids))

    return build


def _qwen_family(name: str, **pixels: Any) -> SeeingFamily:
    return SeeingFamily(
        build=_qwen(name),
        special=_QWEN_SPECIAL,
        slot="<|vision_start|><|image_pad|><|vision_end|>",
        pixels={"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 784, "max_pixels": 12544, **pixels},
        expanded=lambda n: f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>",
        counts=(4, 6),
    )


# ---------------------------------------------------------------------------------------------------------- others


def _llava(tokenizer: Any) -> Any:
    shape = _hub.LlavaConfig(
        text_config=_text(tokenizer, model_type="llama"),
        vision_config=_tower(model_type="siglip_vision_model"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        **_ids(tokenizer, image_token_id="<image>"),
    )
    return _hub.LlavaForConditionalGeneration(shape)


def _idefics(family: str) -> Callable[[Any], Any]:
    def build(tokenizer: Any) -> Any:
        names = ("SmolVLMConfig", "SmolVLMForConditionalGeneration")
        if family == "idefics3":
            names = ("Idefics3Config", "Idefics3ForConditionalGeneration")
        shape, model = (getattr(_hub, name) for name in names)
        ids = _ids(tokenizer, image_token_id="<image>")
        text = _text(tokenizer, model_type="llama")
        end = tokenizer.eos_token_id
        return model(shape(text_config=text, vision_config=_tower(), scale_factor=2, pad_token_id=end, **ids))

    return build


def _idefics_family(name: str, processor: str) -> SeeingFamily:
    return SeeingFamily(
        build=_idefics(name),
        special=("<fake_token_around_image>", "<global-img>", "<image>"),
        slot="<image>",
        pixels={
            "image_processor_type": processor,
            "do_image_splitting": False,
            "size": {"longest_edge": 56},
            "max_image_size": {"longest_edge": 56},
        },
        expanded=lambda n: f"<fake_token_around_image><global-img>{'<image>' * n}<fake_token_around_image>",
    )


def _gemma3(tokenizer: Any) -> Any:
    text = _text(tokenizer, head_dim=8, sliding_window=12, layer_types=["sliding_attention", "full_attention"])
    ids = _ids(
        tokenizer,
        image_token_index="<image_soft_token>",
        boi_token_index="<start_of_image>",
        eoi_token_index="<end_of_image>",
    )
    shape = _hub.Gemma3Config(
        text_config=text, vision_config=_tower(vision_use_head=False), mm_tokens_per_image=16, **ids
    )
    return _hub.Gemma3ForConditionalGeneration(shape)


def _internvl(tokenizer: Any) -> Any:
    shape = _hub.InternVLConfig(
        text_config=_text(tokenizer, model_type="qwen2"),
        vision_config=_tower(image_size=[56, 56], patch_size=[14, 14]),
        image_seq_length=4,
        **_ids(tokenizer, image_token_id="<IMG_CONTEXT>"),
    )
    return _hub.InternVLForConditionalGeneration(shape)


def _onevision(tokenizer: Any) -> Any:
    shape = _hub.LlavaOnevisionConfig(
        text_config=_text(tokenizer, model_type="qwen2"),
        vision_config=_tower(model_type="siglip_vision_model", image_size=28, vision_use_head=False),
        image_grid_pinpoints=_GRIDS,
        vision_aspect_ratio="anyres_max_4",  # the larger of two pictures is scaled down, the smaller one is not
        **_ids(tokenizer, image_token_index="<image>", video_token_index="<video>"),
    )
    return _hub.LlavaOnevisionForConditionalGeneration(shape)


_GRIDS = [[28, 28], [28, 56], [56, 28], [56, 56], [56, 84], [84, 56], [84, 84], [28, 112], [112, 28]]
_PLAIN = {"image_mean": [0.1, 0.05, 0.08], "image_std": [0.27, 0.27, 0.27]}
SEEING: dict[str, SeeingFamily] = {
    "qwen2_vl": _qwen_family("qwen2_vl"),
    "qwen2_5_vl": _qwen_family("qwen2_5_vl"),
    "qwen3_vl": _qwen_family("qwen3_vl", patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3),
    "smolvlm": _idefics_family("smolvlm", "SmolVLMImageProcessor"),
    "idefics3": _idefics_family("idefics3", "Idefics3ImageProcessor"),
    "gemma3": SeeingFamily(
        build=_gemma3,
        special=("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        slot="<start_of_image>",
        pixels={"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}},
        expanded=lambda n: f"\n\n<start_of_image>{'<image_soft_token>' * n}<end_of_image>\n\n",
        counts=(16, 16),
    ),
    "internvl": SeeingFamily(
        build=_internvl,
        special=("<img>", "</img>", "<IMG_CONTEXT>"),
        slot="<IMG_CONTEXT>\n",
        pixels={
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": 56, "width": 56},
            "crop_to_patches": True,
            "max_patches": 4,
        },
        expanded=lambda n: f"<img>{'<IMG_CONTEXT>' * n}</img>\n",
        counts=(4, 12),
    ),
    "llava": SeeingFamily(
        build=_llava,
        special=("<image>",),
        slot="<image>",
        pixels={
            "image_processor_type": "CLIPImageProcessor",
            "size": {"height": 56, "width": 56},
            "do_center_crop": False,
            **_PLAIN,
        },
        expanded=lambda n: "<image>" * n,
        counts=(16, 16),
    ),
    "llava_onevision": SeeingFamily(
        build=_onevision,
        special=("<image>", "<video>"),
        slot="<image>",
        pixels={
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 28, "width": 28},
            "image_grid_pinpoints": _GRIDS,
            **_PLAIN,
        },
        expanded=lambda n: "<image>" * n,
        counts=(24, 19),
    ),
}
"""Families by the model type of their configuration."""
FAMILIES = tuple(SEEING)


class Pictures(Env):
    """Say something of odd length about a picture, and about another one, in two turns."""

    max_turns = 2
    needs_images = True

    def __init__(self, *, png: str = "", max_turns: int | None = None, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self._png = png

    def start(self, task: Task) -> Observation:
        self._seed, self._last = task.seed, 0
        part = ImagePart(self._png) if self._png else image_part(picture(task.seed % 200, square=task.seed % 4))
        return (Message("user", (TextPart("Say "), part)),)

    def state_key(self) -> str:
        return f"{self.turn} {self._last} {self._seed % 4}"

    def oracle(self) -> Message:
        return Message("assistant", "odd")

    def respond(self, action: Message) -> Observation:
        self._last = len(action.text) % 2
        self.award(float(self._last))
        return (shown("Odd " if self._last else "Even ", picture(7 + self._last, 56, 28)),)


register("Pictures-v0", Pictures)
