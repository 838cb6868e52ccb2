"""Small models and fake servers for the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from testkit.fake_openai import FakeOpenAI, Play
from transformers import Qwen3Config, Qwen3ForCausalLM


@pytest.fixture
def small_model() -> Any:
    """A Qwen3-shaped model of a few thousand random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config)


@pytest.fixture
def serve() -> Iterator[Callable[[Play], FakeOpenAI]]:
    """A function that starts a fake server of an OpenAI-compatible endpoint; all end with the test."""
    servers: list[FakeOpenAI] = []

    def start(play: Play) -> FakeOpenAI:
        servers.append(FakeOpenAI(play))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
