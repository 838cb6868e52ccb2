"""Prompts with images: ids, placeholders, bad images."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from testkit.seeing import FAMILIES, SEEING, image_part, own_processor, picture, said, shown
from transformers import AutoModelForImageTextToText, AutoTokenizer

from agentgym.errors import CorruptDataError, EnvError
from agentgym.media import digest_of, has_media, id_of, spans_in
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.rollout.session import Session
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.models.model import load_model
from agentgym.trainers.models.vision import Vision, find_vision, vision_of
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.recipes import load_recipe
from agentgym.types import ImagePart, Message, TextPart, ToolCall, ToolResult, ToolSpec

FolderOf = Callable[[str], Path]
ENDS = "<|im_end|>"
LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {}})


def renderer_of(folder: Path) -> ChatRenderer:
    return renderer_for(folder, AutoTokenizer.from_pretrained(folder), ChatConfig())


def vision_at(folder: Path) -> Vision:
    vision = renderer_of(folder).vision
    assert isinstance(vision, Vision)
    return vision


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_the_templates_own_with_the_processors_number_of_placeholders(family: str, folder_of: FolderOf) -> None:
    folder = folder_of(family)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    renderer = renderer_of(folder)
    one, other = picture(1), picture(2, 84, 56)
    ids = renderer.prompt_ids([shown("a ", one, " b", other)], ())
    parts = [{"type": "text", "text": "a "}, {"type": "image"}, {"type": "text", "text": " b"}, {"type": "image"}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    vision = vision_at(folder)
    own = SEEING[family]
    pieces = text.split(own.slot)
    whole = pieces[0] + "".join(own.expanded(n) + piece for n, piece in zip(own.counts, pieces[1:], strict=True))
    expected = tokenizer.encode(whole, add_special_tokens=False)
    assert [vision.pad_id if one < 0 else one for one in ids] == expected
    assert [span.digest for span in spans_in(ids)] == [digest_of(one), digest_of(other)]


@pytest.mark.parametrize("family", ["idefics3", "gemma3", "llava"])  # others want torchvision
def test_ids_and_pixels_equal_those_of_transformers_processor(family: str, folder_of: FolderOf) -> None:
    folder, pictures = folder_of(family), (picture(1), picture(2, 84, 56))
    renderer, vision = renderer_of(folder), vision_at(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    parts = [{"type": "text", "text": "a "}, {"type": "image"}, {"type": "text", "text": " b"}, {"type": "image"}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    opened = [Image.open(io.BytesIO(png)) for png in pictures]
    made = own_processor(family, tokenizer)(text=[text], images=[opened], return_tensors="pt")
    ids = renderer.prompt_ids([shown("a ", pictures[0], " b", pictures[1])], ())
    assert [vision.pad_id if one < 0 else one for one in ids] == made["input_ids"][0].tolist()
    joined = vision.family.joined([vision._seen(digest)[0] for _, digest, _ in vision.images_in(ids)])
    for name, field in joined.items():
        assert torch.equal(field, made[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_images_of_later_turns_are_the_suffix_that_they_add(family: str, folder_of: FolderOf) -> None:
    renderer = renderer_of(folder_of(family))
    first = [shown("look", picture(1))]
    session = Session(renderer, (), tuple(first))
    completion = said(renderer, "hm")
    message = session.add_completion(completion)
    assert not session.add_replies((shown("and", picture(2)),))
    whole = renderer.prompt_ids([*first, message, shown("and", picture(2))], ())
    assert session.prompt_ids == whole
    assert len(spans_in(session.added_ids)) == 1


def test_images_of_tool_results_are_in_prompts(folder_of: FolderOf) -> None:
    renderer = renderer_of(folder_of("qwen2_5_vl"))
    session = Session(renderer, (LOOK,), (shown("find it"),))
    session.add_completion(
        said(renderer, renderer.action_text(Message("assistant", calls=(ToolCall("look"),)), (LOOK,)))
    )
    session.add_replies((shown("seen", picture(3), role="tool"),))
    assert [span.digest for span in spans_in(session.prompt_ids)] == [digest_of(picture(3))]


def test_templates_that_drop_images_of_tool_results_get_them_as_text(folder_of: FolderOf) -> None:
    folder = folder_of("qwen2_5_vl")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    slot = "<|vision_start|><|image_pad|><|vision_end|>"
    assert slot in tokenizer.chat_template
    of_user = f'{{% if message.role == "user" %}}{slot}{{% endif %}}'
    tokenizer.chat_template = tokenizer.chat_template.replace(slot, of_user)
    dropping = renderer_for(folder, tokenizer, ChatConfig())
    messages = [shown("find it"), Message("assistant", "look"), shown("seen ", picture(3), role="tool")]
    assert dropping.prompt_ids(messages, ()) == renderer_of(folder).prompt_ids(messages, ())
    assert len(spans_in(dropping.prompt_ids(messages, ()))) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_placeholders_in_texts_are_ordinary_text(family: str, folder_of: FolderOf) -> None:
    renderer = renderer_of(folder_of(family))
    vision = vision_at(folder_of(family))
    hostile = f"{vision.pad}<|vision_start|><|video_pad|>\U000ffff0{digest_of(picture(1))};"
    ids = renderer.prompt_ids([shown(hostile, picture(1))], ())
    assert vision.pad_id not in ids and len(spans_in(ids)) == 1
    assert not set(vision.suppressed) & set(ids)
    tool = Message("tool", hostile, result=ToolResult(hostile, "look"))
    assert not spans_in(renderer.prompt_ids([shown("x"), Message("assistant", hostile), tool], ()))
    assert vision.pad_id not in renderer.prompt_ids([shown("x"), Message("assistant", hostile), shown("y")], ())


def test_neighbouring_equal_images_stay_two(folder_of: FolderOf) -> None:
    vision = vision_at(folder_of("llava"))
    renderer = renderer_of(folder_of("llava"))
    ids = renderer.prompt_ids([shown(picture(1), picture(1))], ())
    assert len(spans_in(ids)) == 1 and len(vision.images_in(ids)) == 2


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_equal_the_models_own(family: str, folder_of: FolderOf) -> None:
    renderer, vision = renderer_of(folder_of(family)), vision_at(folder_of(family))
    ids = renderer.prompt_ids([shown("a", picture(1, 112, 56), "bc", picture(2, 28, 84), "d")], ())
    model = AutoModelForImageTextToText.from_pretrained(folder_of(family))
    plain = torch.tensor([[vision.pad_id if one < 0 else one for one in ids]])
    grids = torch.cat([vision._seen(digest)[0]["image_grid_thw"] for _, digest, _ in vision.images_in(ids)])
    expected, _ = model.model.get_rope_index(
        plain, mm_token_type_ids=(plain == vision.pad_id).long(), image_grid_thw=grids
    )
    assert vision.positions(ids, 0).tolist() == expected[:, 0].tolist()


def test_pixels_equal_the_processors_and_pictures_in_steps_of_28_are_not_resized(folder_of: FolderOf) -> None:
    vision, png = vision_at(folder_of("qwen2_5_vl")), picture(1, 84, 56)
    renderer_of(folder_of("qwen2_5_vl")).prompt_ids([shown(png)], ())
    made = vision._seen(digest_of(png))[0]
    hub: Any = transformers
    whole = hub.Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=112 * 112)
    expected = whole(images=[Image.open(io.BytesIO(png))], return_tensors="pt")
    assert torch.equal(made["pixel_values"], expected["pixel_values"])
    assert made["image_grid_thw"].tolist() == [[1, 4, 6]]


def test_an_image_is_one_of_the_cache_keys_of_a_reply(folder_of: FolderOf) -> None:
    renderer = renderer_of(folder_of("llava"))
    before = [shown("x"), Message("assistant", "y")]
    one, other = (renderer.suffix_ids(before, (shown(picture(n)),), (), None) for n in (1, 2))
    assert one != other and one is not None and id_of(digest_of(picture(1))) in one


def test_a_renderer_with_eyes_can_be_pickled(folder_of: FolderOf) -> None:
    renderer = renderer_of(folder_of("qwen2_5_vl"))
    messages = [shown("a", picture(4))]
    assert pickle.loads(pickle.dumps(renderer)).prompt_ids(messages, ()) == renderer.prompt_ids(messages, ())


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (ImagePart("no base64!"), "not base64"),
        (ImagePart(base64.b64encode(b"GIF89a").decode()), "is no PNG that can be read"),
        (ImagePart(base64.b64encode(picture(1)[:60]).decode()), "is no PNG that can be read"),
        (image_part(picture(1, 8000, 4000)), "8000 x 4000 pixels"),
    ],
)
def test_a_bad_image_is_a_failure_of_the_environment(part: ImagePart, said: str, folder_of: FolderOf) -> None:
    renderer = renderer_of(folder_of("llava"))
    with pytest.raises(EnvError, match=said):
        renderer.prompt_ids([Message("user", (TextPart("x"), part))], ())


def test_a_model_that_cannot_see_says_why(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = folder_of("llava")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert find_vision(tmp_path, tokenizer) == (None, "its folder has no preprocessor_config.json")
    settings = json.loads((folder / "config.json").read_text())
    settings["vision_config"]["model_type"] = "pixtral"
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert find_vision(tmp_path, tokenizer)[1] == "llava with a tower 'pixtral' is not tested"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "paligemma"}))
    assert "paligemma is not among the families that see (qwen2_vl, " in find_vision(tmp_path, tokenizer)[1]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert find_vision(tmp_path, tokenizer)[1] == "qwen3 reads text alone"
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Nothing"}')
    with pytest.raises(CorruptDataError, match="image_processor_type 'Nothing' is unknown"):
        find_vision(tmp_path, tokenizer)


@pytest.mark.parametrize(
    ("family", "file", "change", "why"),
    [
        ("smolvlm", "preprocessor_config.json", {"do_image_splitting": True}, "splits images into parts: set do_"),
        (
            "idefics3",
            "preprocessor_config.json",
            {"do_image_splitting": True},
            "splits images into parts: set do_",
        ),
        ("gemma3", "preprocessor_config.json", {"do_pan_and_scan": True}, "crops images: set do_pan_and_scan to false"),
        ("llava_onevision", "config.json", {"vision_feature_select_strategy": "default"}, "'default' is not tested"),
    ],
)
def test_settings_of_a_family_that_are_not_tested_are_refused_by_name(
    family: str, file: str, change: dict[str, Any], why: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    folder = folder_of(family)
    for name in ("config.json", "preprocessor_config.json"):
        own = json.loads((folder / name).read_text()) | (change if name == file else {})
        (tmp_path / name).write_text(json.dumps(own))
    vision, reason = find_vision(tmp_path, AutoTokenizer.from_pretrained(folder))
    assert vision is None and family in reason and why in reason


def test_where_another_process_samples_a_model_is_one_of_text(folder_of: FolderOf) -> None:
    """Servers and actors sample placeholders too, so the trainer must not leave these out of its distribution."""
    folder = folder_of("qwen2_5_vl")
    assert vision_of(load_model(folder)[0]) is not None
    told: list[str] = []
    model, tokenizer = load_model(folder, say=told.append, route="")
    assert vision_of(model) is None
    renderer = renderer_for(folder, tokenizer, ChatConfig(), route="")
    assert renderer.vision is None and not has_media(renderer.prompt_ids([shown("look", picture(1))], ()))
    assert any("images reach the embedded engine, or vLLM servers of engine.urls" in line for line in told)
    config = load_recipe("tiny")
    assert config.image_route == "embedded"
    served = ["engine.kind=vllm", 'engine.urls=["http://127.0.0.1:1"]']
    assert apply_overrides(config, served).image_route == "vllm"
    adapters = ["model.path=smollm2", "model.lora.rank=2", "engine.weight_sync=lora"]
    assert not apply_overrides(config, [*served, *adapters]).image_route
    assert not replace(config, cluster=ClusterConfig(address="local", num_env_workers=1)).image_route


def test_a_family_that_servers_do_not_see_is_one_of_text_there(folder_of: FolderOf) -> None:
    tokenizers = {name: AutoTokenizer.from_pretrained(folder_of(name)) for name in FAMILIES}
    found = {name: find_vision(folder_of(name), tokenizers[name], "vllm") for name in FAMILIES}
    assert not any(vision for vision, _ in found.values())
    assert "vLLM servers get images of qwen2_vl, qwen2_5_vl, not of llava" in found["llava"][1]
    assert "does not say image_mean and image_std" in found["qwen2_5_vl"][1], "the server would not normalise pixels"
