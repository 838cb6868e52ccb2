"""Training on rows with images: order, layouts, gradients, adapters, whole runs, ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from testkit import TESTKIT
from testkit.killed_runs import start
from testkit.ranks import forked
from testkit.seeing import FAMILIES, image_part, picture, said, seeing_folder, shown
from transformers import AutoModelForImageTextToText

from agentgym.errors import ConfigError, EpisodesFailedError, UsageError
from agentgym.media import FOLDER, digest_of, has_media, spans_in
from agentgym.render.config import ChatConfig
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides, save_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.plan import RowOutline
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.weighted_row import WeightedRow
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.head import head_of, trunk_of
from agentgym.trainers.models.head_logprobs import head_logprobs
from agentgym.trainers.models.model import add_lora, frozen_copy, load_model, save_model, train_vision
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

ENV = f"{TESTKIT / 'seeing.py'}:Pictures-v0"
KILL_WITHIN_S = 900


def _loaded(folder: Path) -> tuple[Any, Any]:
    model, tokenizer = load_model(folder, say=lambda line: None)
    return model, renderer_for(folder, tokenizer, ChatConfig())


def _row(renderer: Any, *parts: str | bytes, trajectory: int = 0) -> Row:
    prompt, sampled = renderer.prompt_ids([shown(*parts)], ()), said(renderer, "words").token_ids
    is_sampled = [False] * len(prompt) + [True] * len(sampled)
    columns = {name: [1.0] * len(is_sampled) for name in ("advantage", "logprob_rollout")}
    columns["turn_index"] = [0] * len(is_sampled)
    return Row.of((*prompt, *sampled), is_sampled, columns, trajectory=trajectory)


def _logprobs(model: Any, rows: list[Row], **settings: Any) -> list[torch.Tensor]:
    """Return the log-probabilities of each row's sampled tokens, in the order of the rows."""
    made: dict[int, torch.Tensor] = {}
    for batch in build_batches(rows, **settings):
        logprobs, _ = head_logprobs(head_of(model), batch.states(trunk_of(model)), batch.target, 1.0)
        made |= dict(zip(batch.rows, batch.split(logprobs), strict=True))
    return [made[at] for at in range(len(rows))]


@pytest.mark.parametrize("layout", ["rows", "prefix"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_equal_single_rows_with_their_own_images(
    family: str, layout: Any, folder_of: Callable[[str], Path]
) -> None:
    model, renderer = _loaded(folder_of(family))
    rows = [
        _row(renderer, "a ", picture(1, 112, 56), " and ", picture(2)),
        _row(renderer, "words alone, and many more of them than elsewhere"),
        _row(renderer, "a ", picture(3, 56, 84)),
    ]
    alone = [_logprobs(model, [row])[0] for row in rows]
    for made, expected in zip(_logprobs(model, rows, layout=layout), alone, strict=True):
        torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", ["rows", "prefix"])
@pytest.mark.parametrize("family", FAMILIES)
def test_merging_trap_two_screenshots_differ_in_logprobs_and_gradients(
    family: str, layout: Any, folder_of: Callable[[str], Path]
) -> None:
    model, renderer = _loaded(folder_of(family))
    text = "a long common beginning, which is shared, " * 2
    rows = [_row(renderer, text, picture(square=n), " what?", trajectory=n) for n in (0, 1)]
    assert len(rows[0].token_ids) == len(rows[1].token_ids)
    one, other = map(RowOutline.of, rows)
    place = spans_in(rows[0].token_ids)[0].start
    assert one.num_shared(other) == place and one.has_media and one.sketched() != other.sketched()
    made = _logprobs(model, rows, layout=layout)
    assert (made[0] - made[1]).abs().max() > 1e-4
    weight = model.get_input_embeddings().weight
    gradients = [torch.autograd.grad(one.sum(), weight, retain_graph=True)[0] for one in made]
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3
    alone = [torch.autograd.grad(_logprobs(model, [row])[0].sum(), weight)[0] for row in rows]
    for together, expected in zip(gradients, alone, strict=True):
        torch.testing.assert_close(together, expected, atol=1e-4, rtol=1e-4)


def test_the_packed_layout_is_refused_by_name(folder_of: Callable[[str], Path]) -> None:
    _, renderer = _loaded(folder_of("qwen2_5_vl"))
    with pytest.raises(ConfigError, match=r"loss\.layout=packed takes no images"):
        build_batches([_row(renderer, picture(1))], layout="packed")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_is_frozen_unless_it_is_trained(family: str, folder_of: Callable[[str], Path]) -> None:
    model, renderer = _loaded(folder_of(family))
    row = _row(renderer, "a ", picture(1))
    assert not any(weight.requires_grad for name, weight in model.named_parameters() if "vis" in name)
    train_vision(model)
    model.zero_grad()
    _logprobs(model, [row])[0].sum().backward()  # type: ignore[no-untyped-call]
    without = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert all("post_layernorm" in name or ".head." in name for name in without), without  # SigLIP's, which LLaVA skips
    tower = [weight.grad for name, weight in model.named_parameters() if "vis" in name and weight.grad is not None]
    assert max(float(gradient.abs().max()) for gradient in tower) > 1e-4


def test_a_batch_without_images_gives_a_trained_tower_a_gradient_of_zero(folder_of: Callable[[str], Path]) -> None:
    model, renderer = _loaded(folder_of("qwen2_5_vl"))
    expected = _logprobs(model, [_row(renderer, "words")])[0]
    train_vision(model)
    made = _logprobs(model, [_row(renderer, "words")])[0]
    assert torch.equal(made, expected)
    made.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None for weight in model.parameters())
    assert all(not weight.grad.any() for name, weight in model.named_parameters() if "visual" in name)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_under_the_language_model_alone(family: str, folder_of: Callable[[str], Path]) -> None:
    model, renderer = _loaded(folder_of(family))
    adapted: Any = add_lora(model, LoraSettings(rank=2), seed=0)
    names = [name for name, _ in adapted.named_parameters() if "lora_" in name]
    assert len(names) == 2 * 2 * 7 and all(".language_model." in name or ".text_model." in name for name in names)
    assert vision_of(adapted) is not None
    made = _logprobs(adapted, [_row(renderer, picture(1))])[0]
    made.sum().backward()  # type: ignore[no-untyped-call]
    assert {name for name, weight in adapted.named_parameters() if weight.grad is not None} == set(names)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_trains_tower_and_text_and_the_saved_folder_is_read_again(
    family: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    model, tokenizer = load_model(folder_of(family), say=lambda line: None)
    renderer = renderer_for(folder_of(family), tokenizer, ChatConfig())
    row, start = _row(renderer, "a ", picture(1, 84, 56)), {name: one.clone() for name, one in model.named_parameters()}
    train_vision(model)
    before = _logprobs(model, [row])[0]
    before.sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.grad is not None:
                weight.add_(weight.grad / weight.grad.norm().clamp(min=1e-6), alpha=1e-3)
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, start[name])}
    assert any("vis" in name for name in changed) and any("layers.0.self_attn.q_proj" in name for name in changed)
    after = _logprobs(model, [row])[0].detach()
    assert after.sum() > before.sum()
    save_model(model, tokenizer, tmp_path / "saved")
    again, renderer = _loaded(tmp_path / "saved")
    torch.testing.assert_close(_logprobs(again, [row])[0], after, atol=1e-6, rtol=0)
    assert AutoModelForImageTextToText.from_pretrained(tmp_path / "saved").config.model_type == family


def test_copies_of_a_model_see(folder_of: Callable[[str], Path]) -> None:
    model, renderer = _loaded(folder_of("qwen2_5_vl"))
    row = _row(renderer, picture(1))
    reference = frozen_copy(model)
    assert vision_of(reference) is vision_of(model)
    torch.testing.assert_close(_logprobs(reference, [row])[0], _logprobs(model, [row])[0], atol=0, rtol=0)


def test_pixels_are_never_a_target() -> None:
    row = WeightedRow((1, -5, -5, 2), (1, 1, 1, 1), (False, False, False, True))
    assert row.positions.tolist() == [0, 3]


@pytest.mark.parametrize("more", [{"path": "adapters"}, {"quantize": "nf4"}])
def test_a_tower_beside_adapters_of_files_or_of_four_bits_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"trains a tower in floating point, from its own weights"):
        ModelConfig(vision="trained", lora=LoraSettings(rank=2, **more))


# ------------------------------------------------------------------------------------------------------- whole runs


def _settings(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        f"env.id={ENV}",
        f"model.path={folder}",
        "model.max_context_tokens=256",
        "sft.num_demos=0",
        "num_steps=3",
        "groups_per_step=2",
        "group.group_size=4",
        "sampling.max_new_tokens=8",
        "eval.num_episodes=2",
        "checkpoint_every=1",
        "loss.tokens_per_microbatch=600",
        *more,
    )


def _config(folder: Path, *more: str) -> TrainConfig:
    return apply_overrides(load_recipe("tiny"), _settings(folder, *more))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of a finished run of two families, whose models lie beside them."""
    made = {}
    for family in ("qwen2_5_vl", "llava"):
        root = tmp_path_factory.mktemp(family)
        folder = seeing_folder(family, root / "start")
        train(_config(folder, "model.vision=trained"), root / "run")
        made[family] = root / "run"
    return made


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
def test_a_run_trains_what_was_sampled_with_its_images(family: str, finished: dict[str, Path]) -> None:
    run_dir = finished[family]
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["logprob_gap_max"] < 1e-5 for row in rows if row["trained_tokens"])
    assert any(row["trained_tokens"] for row in rows)
    (record, *_) = read_records(record_path(run_dir, 0))
    segments = [segment for one in record.group.trajectories for segment in one.segments]
    assert all(len(spans_in(segment.token_ids)) == 2 for segment in segments), "the first image, and that of turn 1"
    digests = {span.digest for one in segments for span in spans_in(one.token_ids)}
    files = {file.stem for file in (run_dir / FOLDER).iterdir()}
    assert digests <= files and all(digest_of((run_dir / FOLDER / f"{one}.png").read_bytes()) == one for one in files)
    assert not any(has_media(turn.completion.token_ids) for one in record.group.trajectories for turn in one.turns)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
def test_a_saved_model_is_read_again_with_its_image_processor(family: str, finished: dict[str, Path]) -> None:
    folder, begun = finished[family] / "model", finished[family].parent / "start"
    own: Any = AutoModelForImageTextToText.from_pretrained(folder)
    assert (folder / "preprocessor_config.json").read_text() == (begun / "preprocessor_config.json").read_text()
    old, new = load_file(begun / "model.safetensors"), load_file(folder / "model.safetensors")
    assert old.keys() == new.keys(), "every tensor"
    assert any(not torch.equal(old[name], new[name]) for name in old if "vis" in name), "the tower was trained"
    model, renderer = _loaded(folder)
    assert vision_of(model) is not None and own.dtype == torch.float32
    assert has_media(renderer.prompt_ids([shown(picture(1))], ()))


@pytest.mark.slow
def test_a_killed_run_ends_in_the_same_weights(finished: dict[str, Path], tmp_path: Path, warm_python: str) -> None:
    for family, whole in finished.items():
        run_dir = tmp_path / family
        run_dir.mkdir()
        settings = _config(whole.parent / "start", "model.vision=trained")
        save_config(settings, run_dir / "config.json")
        process, deadline = start(warm_python, run_dir), time.monotonic() + KILL_WITHIN_S
        while not any((row["phase"], row["step"]) == ("rl", 1) for row in read_json_lines(run_dir / "metrics.jsonl")):
            assert process.is_running() and time.monotonic() < deadline, "the run ended before it could be killed"
            time.sleep(0.005)
        process.kill()
        train(settings, run_dir, resume=True)
        file = Path("model") / "model.safetensors"
        assert (run_dir / file).read_bytes() == (whole / file).read_bytes()


WITH_TOWER = ("model.vision=trained", "model.lora.rank=2", 'loss.regularisers=[{"kind": "kl", "coef": 0.1}]')


@pytest.fixture(scope="module")
def with_adapters(finished: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run of adapters with a trained tower."""
    run_dir = tmp_path_factory.mktemp("adapters") / "run"
    train(_config(finished["qwen2_5_vl"].parent / "start", *WITH_TOWER), run_dir)
    return run_dir


def test_adapters_and_a_trained_tower_are_saved_as_one_model(with_adapters: Path, finished: dict[str, Path]) -> None:
    rows = [row for row in read_json_lines(with_adapters / "metrics.jsonl") if row["phase"] == "rl"]
    assert any(row["trained_tokens"] for row in rows)
    assert all(row["logprob_gap_max"] < 1e-5 for row in rows if row["trained_tokens"])
    old = load_file(finished["qwen2_5_vl"].parent / "start" / "model.safetensors")
    new = load_file(with_adapters / "model" / "model.safetensors")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert any("visual.blocks" in name for name in changed) and any("visual.merger" in name for name in changed)
    assert any("q_proj" in name for name in changed), "merged adapters"
    assert not any("embed_tokens" in name or "layernorm" in name for name in changed), "frozen below adapters"
    assert vision_of(_loaded(with_adapters / "model")[0]) is not None


@pytest.mark.slow
def test_a_killed_run_of_adapters_with_a_tower_ends_in_the_same_weights(
    with_adapters: Path, finished: dict[str, Path], tmp_path: Path, warm_python: str
) -> None:
    settings = _config(finished["qwen2_5_vl"].parent / "start", *WITH_TOWER)
    save_config(settings, tmp_path / "config.json")
    process, deadline = start(warm_python, tmp_path), time.monotonic() + KILL_WITHIN_S
    while not any((row["phase"], row["step"]) == ("rl", 1) for row in read_json_lines(tmp_path / "metrics.jsonl")):
        assert process.is_running() and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    train(settings, tmp_path, resume=True)
    file = Path("model") / "model.safetensors"
    assert (tmp_path / file).read_bytes() == (with_adapters / file).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
def test_two_ranks_make_the_run_of_one(
    family: str, finished: dict[str, Path], tmp_path: Path, warm_python: str
) -> None:
    settings = _settings(finished[family].parent / "start", "model.vision=trained")
    command = ("-m", "agentgym", "train", "tiny", *settings, "--run-dir", str(tmp_path / "two"), "--json")
    json.loads(forked(warm_python, 2, *command))
    one = load_file(finished[family] / "model" / "model.safetensors")
    two = load_file(tmp_path / "two" / "model" / "model.safetensors")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=2e-5, rtol=1e-3, msg=name)


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["loss.layout=packed"], "loss.layout=packed does not suit"),
        (
            ["engine.kind=vllm", 'engine.urls=["http://127.0.0.1:9"]'],
            "vLLM servers get images of qwen2_vl, qwen2_5_vl, not of llava",
        ),
        (["model.path="], "it was made without a vision tower"),
    ],
)
def test_what_cannot_see_is_refused_before_the_run(
    settings: list[str], message: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train(_config(folder_of("llava"), *settings), tmp_path / "run")


def test_a_broken_image_is_a_failure_and_no_reward(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    broken = f"env.kwargs.png={image_part(picture(1)[:50]).png_base64}"
    with pytest.raises(EpisodesFailedError, match="is no PNG that can be read"):
        train(_config(folder_of("llava"), broken), tmp_path / "run")
