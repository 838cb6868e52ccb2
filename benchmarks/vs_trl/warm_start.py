"""The weights that all arms begin with: a small model and its tokenizer, after supervised fine-tuning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
from mazes import Setting
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from agentgym.env.env import Env
from agentgym.registry import make
from agentgym.render.chat import ChatRenderer
from agentgym.render.formats.json_calls import Hermes
from agentgym.rollout.plan import TaskSchedule
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.data.demos import collect_demos, collect_texts
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.model import save_model
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.models.tiny import build_model
from agentgym.trainers.phases.sft import sft_steps
from agentgym.trainers.sft.rows import sft_rows
from agentgym.types import Completion, FinishReason, Message, Segment, ToolCall, Trajectory, Turn

TEMPLATE = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
"""Chat template of Qwen3. TRL parses the calls only of templates that it knows by their text."""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
PRETRAINED = "smollm2"
PRETRAINED_LR = 1e-4
MODEL = ModelConfig(hidden_size=128, num_layers=2, head_dim=32, vocab_size=640, max_context_tokens=1024)
FAREWELL = "Done."


def train_tokenizer(make_env: Callable[[], Env], seed: int) -> Any:
    """Train byte-level BPE on the environment's texts, with the tokens and the template of Qwen3."""
    env = make_env()
    tasks = TaskSchedule(env.tasks("train"), seed).take(0, 100)
    texts, _ = collect_texts(make_env, [task for _, task in tasks], seed=seed)
    codec = Hermes()
    texts += [
        codec.format([ToolCall("move", {"direction": direction}, "0")], env.tools)
        for direction in ("north", "east", "south", "west")
    ] * 20
    texts += [*[FAREWELL] * 20, *([TEMPLATE, *(str(tool.as_function()) for tool in env.tools)] * 3)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = MODEL.vocab_size - len(TAGS)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    wrapped.chat_template = TEMPLATE
    return wrapped


def pretrained() -> tuple[Any, Any]:
    """Return SmolLM2-135M-Instruct and its tokenizer, with the template of Qwen3."""
    folder = local_model(PRETRAINED)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.pad_token = "<|endoftext|>"  # TRL pads with this token, so it must differ from the token that ends a turn
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer


def with_farewell(demo: Trajectory, renderer: ChatRenderer) -> Trajectory:
    """Return a demonstration; a successful one ends with a message without a call.

    TRL asks for messages until one has no call, so the model needs a message for the end. Our own
    rollouts end with the environment and never reach it.
    """
    if not demo.success:
        return demo
    *earlier, segment = demo.segments
    last = segment.turns[-1]
    said = renderer.action_ids(Message("assistant", FAREWELL), ())
    completion = Completion(
        token_ids=said, logprobs=(0.0,) * len(said), finish_reason=FinishReason.STOP, policy_versions=(0,) * len(said)
    )
    # TRL's training template keeps all of the past, so the suffix after the last call alone is that of the episode
    added = renderer.suffix_ids((Message("user", "?"), last.action), last.replies, (), renderer.turn_end_ids[0]) or ()
    turn = Turn(
        index=last.index + 1,
        prompt_ids=added,
        completion=completion,
        action=Message("assistant", FAREWELL),
    )
    return replace(demo, segments=(*earlier, Segment((*segment.turns, turn))))


async def _demos(setting: Setting, renderer: ChatRenderer, seed: int, num_demos: int) -> tuple[Trajectory, ...]:
    pool = EnvPool(lambda: make(setting.env_id, **setting.kwargs), 32)
    tasks = make(setting.env_id, **setting.kwargs).tasks("train")
    try:
        return await collect_demos(
            TaskSchedule(tasks, derive_seed(seed, "demo tasks")).take(0, num_demos),
            pool,
            renderer,
            noise=setting.noise,
            max_context_tokens=MODEL.max_context_tokens,
            max_new_tokens=setting.max_turn_tokens,
            seed=seed,
        )
    finally:
        await pool.close()


def warm_start(setting: Setting, folder: Path, seed: int, sft: SftConfig, *, is_pretrained: bool = False) -> None:
    """Train the model, a tiny one from nothing or SmolLM2, and save it to ``folder``."""
    if is_pretrained:
        model, tokenizer = pretrained()
        sft = replace(sft, batch_size=4, optimizer=replace(sft.optimizer, lr=PRETRAINED_LR))
    else:
        tokenizer = train_tokenizer(partial(make, setting.env_id, **setting.kwargs), seed)
        model = build_model(tokenizer, MODEL, derive_seed(seed, "model"))
    renderer = ChatRenderer(tokenizer)
    demos = asyncio.run(_demos(setting, renderer, seed, sft.num_demos or setting.num_demos))
    rows = sft_rows([with_farewell(demo, renderer) for demo in demos], sft, renderer)
    print(f"{setting.name}: {len(rows)} demonstrations of {sum(len(r.token_ids) for r in rows) / len(rows):.0f} tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=sft.optimizer.lr, betas=sft.optimizer.betas, weight_decay=0.01)
    metrics = list(sft_steps(model, optimizer, rows, sft, seed, 0))
    print(f"{len(metrics)} steps, loss of actions {metrics[-1]['action_loss']:.3f}", flush=True)
    save_model(model, tokenizer, folder)
