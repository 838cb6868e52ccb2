"""Tiny models that see, in ``from_pretrained`` folders, and an environment of pictures."""

from __future__ import annotations

import base64
import io
import json
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
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "llava")
_SPECIAL = {
    "qwen": ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "llava": ("<|im_start|>", "<|im_end|>", "<image>"),
}
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


def seeing_folder(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny model with random weights, its tokenizer and the settings of its image processor."""
    tokenizer = _tokenizer("llava" if family == "llava" else "qwen")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _llava(tokenizer) if family == "llava" else _qwen(family, tokenizer)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" not in name:
                    weight.normal_(std=0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = _QWEN_PIXELS if family != "llava" else _LLAVA_PIXELS
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


_QWEN_PIXELS = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 28 * 28, "max_pixels": 112 * 112}
_LLAVA_PIXELS = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"height": 56, "width": 56},
    "do_center_crop": False,
    "image_mean": [0.1, 0.05, 0.08],
    "image_std": [0.27, 0.27, 0.27],
}


def _tokenizer(kind: str) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE({one: number for number, one in enumerate(alphabet)}, []))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in _SPECIAL[kind]])
    made = _hub.PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="<|im_end|>", pad_token="<|im_end|>")
    slot = "<image>" if kind == "llava" else "<|vision_start|><|image_pad|><|vision_end|>"
    made.chat_template = _TEMPLATE.replace("SLOT", slot)
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


def _qwen(family: str, tokenizer: Any) -> Any:
    ids = {name: tokenizer.convert_tokens_to_ids(text) for name, text in _IDS.items()}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    text = _text(tokenizer, rope_parameters=rope, tie_word_embeddings=True)
    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
    if family == "qwen2_vl":
        vision |= {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
        return _hub.Qwen2VLForConditionalGeneration(_hub.Qwen2VLConfig(text_config=text, vision_config=vision, **ids))
    vision |= {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 64}
    vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
    return _hub.Qwen2_5_VLForConditionalGeneration(_hub.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids))


_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def _llava(tokenizer: Any) -> Any:
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    }
    shape = _hub.LlavaConfig(
        text_config=_text(tokenizer, model_type="llama"),
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    return _hub.LlavaForConditionalGeneration(shape)


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
