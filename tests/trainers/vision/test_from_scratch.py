"""A model from scratch that sees: its sizes, its run by the recipe, its folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from agentgym import make
from agentgym.errors import ConfigError, CorruptDataError, RunStoppedError, UsageError
from agentgym.media import FOLDER, MEDIA, has_media, spans_in
from agentgym.render.config import ChatConfig
from agentgym.report.packing import unpacked
from agentgym.report.run_folder import open_run_folder
from agentgym.report.traces import sample_traces
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.export import export_checkpoint
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.model import load_model
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.models.tiny import IMAGE, build_model, build_vision, train_tokenizer
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

SHORT = ("sft.num_demos=64", "num_steps=1", "groups_per_step=2", "group.group_size=4", "eval.num_episodes=4")
SEES: dict[str, Any] = {"picture_size": 64, "vision": "trained"}


def _config(*more: str) -> TrainConfig:
    return apply_overrides(load_recipe("see-tiny"), [*SHORT, "checkpoint_every=1", "sft.optimizer.lr=1e-2", *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("see") / "run"
    train(_config(), run_dir)
    return run_dir


def test_prompts_hold_a_vector_for_each_patch_of_the_picture(finished: Path) -> None:
    (record, *_) = read_records(record_path(finished, 0))
    segments = [segment for one in record.group.trajectories for segment in one.segments]
    spans = [span for segment in segments for span in spans_in(segment.token_ids)]
    assert {span.length for span in spans} == {16}
    assert {span.digest for span in spans} <= {file.stem for file in (finished / FOLDER).iterdir()}


def test_engine_and_trainer_agree(finished: Path) -> None:
    steps = [row for row in read_json_lines(finished / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(steps) == 1 and all((row["logprob_gap_max"] or 0) < 1e-5 for row in steps)


def test_the_saved_folder_is_one_of_llava_that_sees(finished: Path, tmp_path: Path) -> None:
    folder = finished / "model"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llava"
    AutoModelForImageTextToText.from_pretrained(folder)
    model, tokenizer = load_model(folder, say=lambda line: None)
    renderer = renderer_for(folder, tokenizer, ChatConfig())
    vision, prompt = vision_of(model), make("agentgym/VisualGrid-v0", picture=64).reset(seed=0)[0]
    assert vision is not None and vision.suppressed == (tokenizer.convert_tokens_to_ids(IMAGE),)
    assert has_media(renderer.prompt_ids(prompt, ()))
    exported = export_checkpoint(finished, tmp_path / "out", "rl-000001")
    assert exported.name == "rl-000001"
    for name in ("model.safetensors", "preprocessor_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_weights_depend_on_the_seed_alone_and_the_plan_counts_them() -> None:
    config = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=300, **SEES)
    tokenizer = train_tokenizer(["Click the square. click: 8; 24"] * 20, 300, has_images=True)
    one, same, other = (
        build_model(tokenizer, config, seed, build_vision(tokenizer, config)).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one if "vision_tower" in name)
    config = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=len(tokenizer), **SEES)
    _, counts = plan_model(config)
    # the tied head is the embedding
    assert counts.own == sum(tensor.numel() for name, tensor in one.items() if name != "lm_head.weight")


def test_white_is_zero_and_colours_are_not() -> None:
    config = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=300, **SEES)
    tokenizer = train_tokenizer(["Click the square."] * 5, 300, has_images=True)
    vision = build_vision(tokenizer, config)
    assert vision is not None
    renderer = renderer_for("", tokenizer, ChatConfig(), own_vision=vision)
    for blank in (True, False):
        env = make("agentgym/VisualGrid-v0", picture=64, blank=blank)
        (span,) = spans_in(renderer.prompt_ids(env.reset(seed=0)[0], ()))
        assert bool(vision._seen(span.digest)[0]["pixel_values"].any()) is not blank


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"picture_size": 64}, "set model.vision=trained"),
        ({**SEES, "picture_size": 60}, "no multiple of model.patch_size=16"),
        ({**SEES, "path": "smollm2"}, "model.picture_size is for models from scratch"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**settings)


def test_a_demonstration_without_room_tells_the_numbers(tmp_path: Path) -> None:
    """The reason was "None", as the oracle's agent ended the episode without one."""
    said = (
        r"no episode of 64 had room for a turn: the first prompt has \d+ tokens, the demonstrated action \d+, and the "
    )
    with pytest.raises(RunStoppedError, match=rf"{said}context holds 24; raise model\.max_context_tokens"):
        train(_config("model.max_context_tokens=24", "sampling.max_new_tokens=1"), tmp_path / "run")


def test_an_evaluation_says_nothing_of_a_frozen_tower(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said that the tower stays as it is, of a run that had trained it."""
    load_model(finished / "model")
    assert "stay as they are" not in capsys.readouterr().err


def test_where_another_process_samples_it_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vLLM servers get images of qwen2_vl, qwen2_5_vl, not of llava"):
        train(_config("engine.kind=vllm", 'engine.urls=["http://127.0.0.1:9"]'), tmp_path / "run")


def test_pictures_that_are_missing_or_changed_have_a_placeholder(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report and view failed; a replay or a resumed run must fail still, as it needs the pixels."""
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    path = record_path(run_dir, 0)
    (record, *_) = read_records(path)
    shown = [spans_in(one.segments[0].token_ids)[0].digest for one in record.group.trajectories]
    lost = run_dir / FOLDER / f"{shown[0]}.png"
    lost.unlink()
    monkeypatch.setattr(MEDIA, "_held", OrderedDict())
    monkeypatch.setattr(MEDIA, "_folders", [])
    command = [sys.executable, "-m", "agentgym", "view", str(run_dir), "--episodes", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"[{FOLDER}/{lost.name} is missing or was changed]" in done.stdout.replace("\n", "")
    page = (run_dir / "report.html").read_text()
    assert f"Pictures that are missing or were changed: 1, such as {FOLDER}/{lost.name}" in page
    traces = sample_traces(open_run_folder(run_dir), None)
    images = [image for block in traces["blocks"] for one in unpacked(block) for image in one["opening_images"]]  # type: ignore[attr-defined]
    assert {image["data"] for image in images if image["type"] == "missing"} == {f"{FOLDER}/{lost.name}"}
    assert any(image["type"] != "missing" for image in images)
    with pytest.raises(CorruptDataError, match=f"the image {shown[0]} of a prompt is missing"):
        read_records(path)
