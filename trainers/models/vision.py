"""The vision of a model: the text of an image in prompts, its pixels, its positions.

A model that sees has two hooks. One stands before the network below its head: it puts pixels and positions in place of
media ids (:mod:`agentgym.media`). The other one follows the head: no distribution holds the placeholders of images, in
sampling and in training alike. Engines, losses, references and critics therefore take rows with images as they take
others, and a model of a family that is not in the table has no hooks and refuses them.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

from agentgym.errors import CorruptDataError, EngineError, EnvError, require_extra
from agentgym.media import MEDIA, spans_in
from agentgym.trainers.kinds import ImageRoute
from agentgym.trainers.models.families import FAMILIES
from agentgym.trainers.models.families.family import Family, Fields
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.types import CausalLM, ModelShape, Tokenizer, unwrapped

SUPPRESSED: Final = -3e4
"""Logit of a placeholder: finite in half precision, and exp(SUPPRESSED) is 0."""
NO_IMAGES: Final = "images reach the embedded engine, or vLLM servers of engine.urls without adapters"
"""Reason why a model that sees plays by text where its engine gets no images."""
SERVED: Final = ("qwen2_vl", "qwen2_5_vl")
"""Types of models whose images vLLM servers get; a test holds Qwen2.5-VL, and Qwen2-VL expands images alike."""
MAX_PIXELS: Final = 1 << 24
"""Most pixels of an image, such as 4096 x 4096; larger ones would take gigabytes in a vision tower."""
_MOST_KEPT: Final = 1 << 26
"""Most bytes of pixels that are kept between calls."""
PROCESSOR_FILE: Final = "preprocessor_config.json"
_FILES: Final = (PROCESSOR_FILE, "processor_config.json", "video_preprocessor_config.json")

_NORMALISED: Final = ("image_mean", "image_std")


class Vision:
    """The vision of a model: the image processor that prompts need, and the hooks of its forward pass.

    Args:
        shape: the model's configuration.
        files: contents of the files with the image processor's settings, by name.
        tokenizer: the model's tokenizer.
        source: the model's name in messages.
    """

    def __init__(self, shape: ModelShape, files: Mapping[str, str], tokenizer: Tokenizer, source: str) -> None:
        require_extra("a model that sees", "images", "PIL")
        self._shape: Any = shape
        self.files = dict(files)
        self._processor = _processor(self.files, source)
        family = self.family
        self.pad_id: int = self._shape.image_token_id
        self.pad = str(tokenizer.convert_ids_to_tokens(self.pad_id))
        self.slot = family.slot or self.pad
        self.written = family.written
        texts = (self.slot, family.before, family.after, family.written.replace("{}", ""), *family.placeholders)
        marks = [token for token in tokenizer.get_added_vocab() if any(token in text for text in texts)]
        self.control_texts = (self.pad, *marks)
        known = tokenizer.get_added_vocab()
        self.suppressed = tuple(sorted({self.pad_id, *(known[one] for one in family.placeholders if one in known)}))
        self._kept: OrderedDict[str, tuple[Fields, int]] = OrderedDict()
        self._is_raw = False

    @property
    def family(self) -> Family:
        """Family of the model."""
        return FAMILIES[self._shape.model_type]

    @property
    def why_not(self) -> str:
        """Reason why the image processor is refused; empty if it is not."""
        return self.family.why_not_processor(self._processor)

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Context in which placeholders keep their probability, as in scores of prompts on a server."""
        self._is_raw = True
        try:
            yield
        finally:
            self._is_raw = False

    def __deepcopy__(self, _memo: object) -> Vision:
        return self  # nothing of it changes, and copies of a model share it

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": OrderedDict()}

    # ------------------------------------------------------------------------------------------------- of prompts

    def expansion(self, png: bytes) -> str:
        """Return the text of an image: one placeholder for each of its vectors."""
        return self.family.before + self.pad * self._seen(MEDIA.put(png))[1] + self.family.after

    def _seen(self, digest: str) -> tuple[Fields, int]:
        """Return the fields of an image, and the number of its vectors."""
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        made = self._processor(images=[_opened(MEDIA.get(digest))], return_tensors="pt")
        fields = {name: made[name] for name in self.family.inputs}
        self._kept[digest] = found = fields, self.family.count(self._shape, fields)
        while len(self._kept) > 1 and sum(map(_num_bytes, self._kept.values())) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    def save(self, folder: Path) -> None:
        """Write the settings of the image processor as they were read, beside a saved model."""
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    # ------------------------------------------------------------------------------------------- of the forward pass

    def images_in(self, token_ids: Sequence[int]) -> list[tuple[int, str, int]]:
        """Return the images of a row or of a part of one, in order: place, digest and number of vectors.

        Raises:
            EngineError: a part begins or ends inside of an image.
        """
        found = []
        for span in spans_in(token_ids):
            count = self._seen(span.digest)[1]
            if span.length % count:
                raise EngineError(f"an image of {count} vectors fills {span.length} places of a row: it was cut")
            found += [(span.start + before, span.digest, count) for before in range(0, span.length, count)]
        return found

    def positions(self, token_ids: Sequence[int], begin: int) -> Tensor:
        """Return the positions ``[3, T]`` (temporal, height, width) of tokens whose first one has position ``begin``.

        For plain positions all three rows are equal. An image's next token follows the largest of its positions.
        """
        made = torch.arange(begin, begin + len(token_ids)).repeat(3, 1)
        if self.family.positions == "plain":
            return made
        for place, digest, count in self.images_in(token_ids):
            _, height, width = (
                self._seen(digest)[0]["image_grid_thw"][0] // self._shape.vision_config.spatial_merge_size
            ).tolist()
            start = int(made[0, place])
            made[1, place : place + count] = start + torch.arange(height).repeat_interleave(width)
            made[2, place : place + count] = start + torch.arange(width).repeat(height)
            made[0, place : place + count] = start
            after = start + max(height, width)
            made[:, place + count :] = torch.arange(after, after + len(token_ids) - place - count)
        return made

    def before(
        self, module: Any, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Put pixels and positions in place of media ids; a pre-hook of the network below the head."""
        ids = kwargs.get("input_ids")
        if ids is None:
            return None
        if hasattr(module, "rope_deltas"):  # of whichever row came last
            module.rope_deltas = None
        rows = ids.tolist() if bool((ids < 0).any()) else []
        if not rows:
            return None
        images = [digest for row in rows for _, digest, _ in self.images_in(row)]
        joined = self.family.joined([self._seen(digest)[0] for digest in images])
        changed: dict[str, Any] = {name: field.to(ids.device) for name, field in joined.items()}
        if self.family.sees_both_ways:
            changed |= self._both_ways(ids, kwargs)
        if self.family.positions == "mrope":
            given, cache = kwargs.get("position_ids"), kwargs.get("cache") or kwargs.get("past_key_values")
            if given is None and (cache is None or not cache.get_seq_length()):
                changed["position_ids"] = torch.stack([self.positions(row, 0) for row in rows], 1).to(ids.device)
            elif given is None or given.dim() != 3:
                raise EngineError(f"images of {self._shape.model_type} need positions in three dimensions")
        return args, {**kwargs, **changed, "input_ids": ids.masked_fill(ids < 0, self.pad_id)}

    def _both_ways(self, ids: Tensor, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by which the places of an image attend to each other, the later ones included."""
        mask, cache = kwargs.get("attention_mask"), kwargs.get("cache") or kwargs.get("past_key_values")
        if mask is None or (isinstance(mask, Tensor) and mask.dim() == 2):
            kept = cache.get_seq_length() if cache is not None else 0  # the types of all tokens, else transformers errs
            return {"token_type_ids": torch.nn.functional.pad((ids < 0).long(), (kept, 0))}
        masks = mask if isinstance(mask, dict) else {"": mask}
        opened = {kind: one.clone() for kind, one in masks.items()}
        for row, own in enumerate(ids.tolist()):
            for place, _, count in self.images_in(own):
                later = torch.ones(count, count, dtype=torch.bool, device=ids.device).triu_(1)
                for one in opened.values():  # earlier places stay as they are: beyond a window they are hidden
                    first = one.shape[-1] - ids.shape[1] + place
                    block = one[row, :, place : place + count, first : first + count]
                    block.masked_fill_(later, one.dtype == torch.bool)
        return {"attention_mask": opened if isinstance(mask, dict) else opened[""]}

    def after(self, module: Any, args: object, kwargs: dict[str, Any], output: Any) -> Any:
        """Give a trained vision tower a gradient of 0 where a batch has no image; a hook of the same network.

        Ranks reduce gradients together, and one of them may have a batch without images.
        """
        if not torch.is_grad_enabled() or kwargs.get("pixel_values") is not None:
            return None
        of_text = {id(weight) for weight in module.get_decoder().parameters()}
        for weight in module.parameters():
            if weight.requires_grad and id(weight) not in of_text:
                output.last_hidden_state = output.last_hidden_state + 0 * weight.sum()
        return output

    def suppress(self, module: object, args: object, logits: Tensor) -> Tensor:
        """Keep placeholders out of the distribution; a hook of the head."""
        if self._is_raw:
            return logits
        return logits.index_fill(-1, torch.tensor(self.suppressed, device=logits.device), SUPPRESSED)


def why_not_by(model_type: str, route: ImageRoute) -> str:
    """Return the reason why an engine gets no images of a model that sees; empty if it does."""
    if not route:
        return NO_IMAGES
    if route == "vllm" and model_type not in SERVED:
        return f"vLLM servers get images of {', '.join(SERVED)}, not of {model_type}; set engine.kind=torch"
    return ""


def find_vision(source: str | Path, tokenizer: Tokenizer, route: ImageRoute = "embedded") -> tuple[Vision | None, str]:
    """Return the vision of a model's folder, or None and the reason why it has none.

    Args:
        route: engine that gets the images of prompts; empty: none does.

    Raises:
        CorruptDataError: the settings of its image processor cannot be read.
    """
    folder = Path(source)
    if not (folder / "config.json").is_file():
        return None, "its files are not on this machine"
    shape: Any = AutoConfig.from_pretrained(source)
    kind = shape.model_type
    if kind not in FAMILIES:
        sees = hasattr(shape, "vision_config")
        tested = ", ".join(FAMILIES)
        return None, f"{kind} is not among the families that see ({tested})" if sees else f"{kind} reads text alone"
    if reason := FAMILIES[kind].why_not(shape):
        return None, f"{kind} {reason}"
    if reason := why_not_by(kind, route):
        return None, reason
    if not any((folder / name).is_file() for name in _FILES[:2]):
        return None, f"its folder has no {PROCESSOR_FILE}"
    files = {name: (folder / name).read_text(encoding="utf-8") for name in _FILES if (folder / name).is_file()}
    if route == "vllm" and not all(f'"{name}"' in "".join(files.values()) for name in _NORMALISED):
        return None, (
            f"its {PROCESSOR_FILE} does not say {' and '.join(_NORMALISED)}, without which vLLM servers leave pixels "
            "as they are, from 0 to 255"
        )
    vision = Vision(shape, files, tokenizer, str(folder))
    reason = vision.why_not
    return (None, f"the image processor of {kind} {reason}") if reason else (vision, "")


def attach_vision(model: CausalLM, vision: Vision) -> None:
    """Attach a model's vision to its forward pass."""
    trunk: Any = trunk_of(model)
    trunk.register_forward_pre_hook(vision.before, with_kwargs=True)
    trunk.register_forward_hook(vision.after, with_kwargs=True)
    head: Any = model.get_output_embeddings()
    head.register_forward_hook(vision.suppress)


def vision_of(model: CausalLM) -> Vision | None:
    """Return the vision of a model; None if it has none."""
    trunk: Any = trunk_of(unwrapped(model))
    hooks = (getattr(hook, "__self__", None) for hook in trunk._forward_pre_hooks.values())
    return next((one for one in hooks if isinstance(one, Vision)), None)


def largest_logit(logits: Tensor) -> float:
    """Return the largest magnitude of logits, without those of placeholders."""
    return float(logits.float().masked_fill(logits <= SUPPRESSED, 0).abs().max())


def _processor(files: Mapping[str, str], source: str) -> Any:
    """Return the image processor that works without torchvision, with the settings of a model's files."""
    try:
        settings = json.loads(files[_FILES[0]] if _FILES[0] in files else files[_FILES[1]])
        settings = settings.get("image_processor", settings)
        name = str(settings.get("image_processor_type", "")).removesuffix("Fast").removesuffix("Pil")
        kind = getattr(transformers, f"{name}Pil", None)
        if kind is None:
            raise ValueError(f"image_processor_type {name!r} is unknown")
        return kind(**{key: value for key, value in settings.items() if key != "image_processor_type"})
    except Exception as error:
        raise CorruptDataError(f"the image processor in {source} cannot be read: {error}") from error


def _opened(png: bytes) -> Any:
    """Return an image as Pillow opens it.

    Raises:
        EnvError: it is no PNG, is broken, or has too many pixels.
    """
    from PIL import Image

    try:
        image: Any = Image.open(io.BytesIO(png), formats=["PNG"])
        width, height = image.size
        if width * height <= MAX_PIXELS:
            return image.convert("RGB")
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and others
        raise EnvError(
            f"an image of the environment is no PNG that can be read ({len(png)} bytes): {type(error).__name__}"
        ) from error
    raise EnvError(f"an image of the environment has {width} x {height} pixels, more than {MAX_PIXELS}: scale it down")


def _num_bytes(kept: tuple[Fields, int]) -> int:
    return sum(field.nbytes for field in kept[0].values())
