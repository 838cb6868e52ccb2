"""A tiny Qwen2.5-VL on a real vLLM server, on a CPU in float32: its log-probabilities are those of the trainer."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from testkit import TESTKIT
from testkit.seeing import SEEING, _tokenizer, picture, said, shown

from agentgym.engine import SamplingParams
from agentgym.errors import EngineError, UsageError
from agentgym.media import has_media
from agentgym.ports import free_port
from agentgym.render.config import ChatConfig
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmProcess, find_vllm
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.models.head import head_of, trunk_of
from agentgym.trainers.models.model import load_model, train_vision
from agentgym.trainers.models.vocabulary import renderer_for
from agentgym.trainers.placement.servers import servers
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Completion

_hub: Any = transformers
PYTHON = os.environ.get("AGENTGYM_VLLM_PYTHON", "")
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not PYTHON, reason="needs vLLM's environment: make test-vllm")]

MAX_GAP = 1e-4
CONTEXT = 256
PATIENT = ("engine.request_timeout_s=240", "engine.update_timeout_s=240", "engine.health_timeout_s=60")


@dataclass
class Seen:
    """A server of a tiny model, and the model's folder."""

    folder: Path
    process: VllmProcess

    def config(self, *more: str) -> Any:
        served = ("engine.kind=vllm", f'engine.urls=["{self.process.url}"]', *PATIENT)
        own = (f"model.path={self.folder}", f"model.max_context_tokens={CONTEXT}", "model.vision=trained")
        return apply_overrides(load_recipe("tiny"), [*own, *served, *more])


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    root = tmp_path_factory.mktemp("seeing")
    folder = _folder(root / "model")
    options = ServeOptions(
        model=str(folder), port=free_port(), num_threads=1, cache_gib=1 / 16, max_context_tokens=CONTEXT
    )
    process = VllmProcess(find_vllm(PYTHON), options, root / "server.log")
    try:
        process.wait_until_ready(600.0)
        yield Seen(folder, process)
    finally:
        process.stop()


def _folder(folder: Path) -> Path:
    """Write a model whose heads are as large as vLLM's attention on CPUs needs."""
    tokenizer = _tokenizer(SEEING["qwen2_5_vl"])
    ids = {
        name: tokenizer.convert_tokens_to_ids(f"<|{text}|>")
        for name, text in {
            "image_token_id": "image_pad",
            "video_token_id": "video_pad",
            "vision_start_token_id": "vision_start",
            "vision_end_token_id": "vision_end",
        }.items()
    }
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
    }
    tower = {
        "depth": 2,
        "hidden_size": 64,
        "out_hidden_size": 128,
        "intermediate_size": 128,
        "num_heads": 4,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
    shape = _hub.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **ids)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _hub.Qwen2_5_VLForConditionalGeneration(shape)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" not in name:
                    weight.normal_(std=0.08)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    scale = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "do_rescale": True, "do_normalize": True}
    pixels = {**SEEING["qwen2_5_vl"].pixels, **scale, "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    video = {"video_processor_type": "Qwen2VLVideoProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    return folder


@torch.no_grad()
def _gap(model: Any, prompt: tuple[int, ...], completion: Completion) -> float:
    """Return the largest difference between the server's and the trainer's log-probabilities."""
    given = list(completion.token_ids)
    states = trunk_of(model)(input_ids=torch.tensor([[*prompt, *given]]), use_cache=False).last_hidden_state
    logits = head_of(model)(states)[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)[range(len(given)), given]
    return float((expected - torch.tensor(completion.logprobs)).abs().max())


def test_logprobs_of_pictures_over_turns_and_new_weights_are_the_trainers(seen: Seen, tmp_path: Path) -> None:
    model, tokenizer = load_model(seen.folder, say=lambda line: None)
    train_vision(model)
    renderer = renderer_for(seen.folder, tokenizer, ChatConfig(), route="vllm")
    sampling = SamplingParams(max_new_tokens=8, temperature=1.0, seed=3)
    first = renderer.prompt_ids([shown("look ", picture(1, 112, 56), " and ", picture(2))], ())
    turn = said(renderer, "words").token_ids
    later = renderer.prompt_ids([shown("look ", picture(3, 56, 84), " now ", picture(3, 56, 84))], ())
    other = renderer.prompt_ids([shown("look ", picture(7, 112, 56), " and ", picture(2))], ())
    prompts = [first, (*first, *turn, *later), other, renderer.prompt_ids([shown("text alone")], ())]
    assert len(first) == len(other) and has_media(first)

    async def play() -> None:
        engine: Any = servers(seen.config(), model, tmp_path)
        assert isinstance(engine, VllmEngine)
        try:
            await engine.connect()
            answers = []
            for version in range(2):
                await engine.update_weights(version)
                made = [await engine.generate(ids, sampling) for ids in prompts]
                gaps = [_gap(model, ids, one) for ids, one in zip(prompts, made, strict=True)]
                print("gaps", version, gaps)
                assert max(gaps) < MAX_GAP, (version, gaps)
                assert all(not set(one.token_ids) & set(engine._banned) for one in made)
                answers.append(made)
                with torch.no_grad():  # of the tower alone: what vLLM made of a picture before is of no use any more
                    for name, weight in model.named_parameters():
                        if "visual" in name:
                            weight.mul_(1.3)
            assert answers[0][0].logprobs != answers[1][0].logprobs
            assert answers[0][3].logprobs == answers[1][3].logprobs, "text does not depend on the tower"
            with pytest.raises(EngineError, match="do not score tokens after images"):
                await engine.score(first, turn)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(play(), 500))


def test_a_run_trains_on_what_a_server_saw(seen: Seen, tmp_path: Path) -> None:
    own = ("sft.num_demos=0", "num_steps=2", "groups_per_step=2", "group.group_size=4", "sampling.max_new_tokens=8")
    env = f"env.id={TESTKIT / 'seeing.py'}:Pictures-v0"
    train(seen.config(env, *own, "eval.num_episodes=2"), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == 2 and any(row["trained_tokens"] for row in rows)
    assert all(row["logprob_gap_max"] < MAX_GAP for row in rows if row["trained_tokens"])


def test_adapters_on_servers_get_no_images(seen: Seen, tmp_path: Path) -> None:
    more = ("model.vision=frozen", "model.lora.rank=2", "engine.weight_sync=lora")
    env = f"env.id={TESTKIT / 'seeing.py'}:Pictures-v0"
    with pytest.raises(UsageError, match=r"vLLM servers of engine\.urls without adapters"):
        train(seen.config(env, *more), tmp_path / "run")
