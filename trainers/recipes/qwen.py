"""Recipes for instruction-tuned Qwen models on the four benchmarks, after settings that papers report.

The constants of credit are checked against the papers. Groups, lengths, steps and the number of updates are meant to be
theirs and have not been checked against their scripts; none of the recipes has been run.

Each comes in two ways. ``ENV-MODEL`` trains adapters on one GPU; ``ENV-MODEL-fsdp`` trains all weights, cut up over the
processes that torchrun starts. What differs from the papers in each is said where it is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from agentgym.credit.compose import CreditConfig
from agentgym.credit.estimators.gigpo import GigpoOptions
from agentgym.engine import SamplingParams
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, LoraSettings, ModelConfig, TrainConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import KlOptions

MODELS: Final[Mapping[str, str]] = {
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3-4b": "Qwen/Qwen3-4B",
}
WITHOUT_REFERENCE: Final = ("qwen2.5-7b",)
"""Adapters of these are trained without a KL term: its reference is a second model in float32, too much for 80 GB."""
NUM_ENVS: Final[Mapping[str, int]] = {"qwen2.5-1.5b": 128, "qwen2.5-7b": 64, "qwen3-4b": 32}
"""Episodes at a time whose keys and values fit beside the rest: a token of Qwen3-4B has five times those of 1.5B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """How an environment is trained on."""

    env: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    credit: CreditConfig
    context: ContextConfig
    max_prompt_tokens: int
    groups_per_step: int = 16
    group_size: int = 8
    max_new_tokens: int = 512
    kl_coef: float = 0.01
    num_updates: int = 8
    num_steps: int = 150


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "alfworld": Benchmark(
        env="agentgym/ALFWorld-v0",
        kwargs={"max_turns": 50},
        credit=CreditConfig(estimator="gigpo", invalid_penalty=0.1),
        context=ContextConfig(policy="window", num_turns=2),
        max_prompt_tokens=2048,
    ),
    "webshop": Benchmark(
        env="agentgym/WebShop-v0",
        kwargs={"max_turns": 15},
        credit=CreditConfig(estimator="gigpo", invalid_penalty=0.1),
        context=ContextConfig(policy="window", num_turns=2),
        max_prompt_tokens=4096,
    ),
    "searchqa": Benchmark(
        env="agentgym/SearchQA-v0",
        kwargs={"max_turns": 4},
        credit=CreditConfig(
            estimator="gigpo",
            invalid_penalty=0.01,
            options=GigpoOptions(anchors="similarity", similarity_threshold=0.9),
        ),
        context=ContextConfig(policy="full"),
        max_prompt_tokens=4096,
        groups_per_step=256,
        group_size=5,
        kl_coef=0.001,
        num_steps=200,
    ),
    "code": Benchmark(
        env="agentgym/Code-v0",
        kwargs={"max_turns": 8},
        credit=CreditConfig(estimator="gigpo", invalid_penalty=0.1),
        context=ContextConfig(policy="full"),
        max_prompt_tokens=4096,
        max_new_tokens=1024,
    ),
}
"""ALFWorld, WebShop and search are those of "Group-in-Group Policy Optimization for LLM Agent Training" (GiGPO): its
appendix on training details and the scripts released with it (16 groups of 8, search 256 of 5; 50, 15 and 4 turns; two
past turns in a prompt of 2048, 4096 and 4096 tokens; answers of 512; gamma 0.95; KL 0.01, search 0.001; penalty for an
invalid action 0.1, search 0.01; likeness of search states 0.9; 150 steps; learning rate 1e-6).

Code has no such paper: it takes this library's default recipe (GiGPO, KL 0.01, penalty 0.1) with the whole history.

What differs: optimizer steps per batch are 8 here, whole groups each, where the scripts cut batches by rows (256 in
ALFWorld, 64 in WebShop); search shows the whole history, which fits, instead of the last four turns; ratios are clipped
to [0.8, 1.28] as everywhere here; tools are called by the model's own format instead of tags."""


def fine_tune(benchmark: str, model: str, *, all_weights: bool) -> TrainConfig:
    """A model on a benchmark.

    Args:
        benchmark: a key of :data:`BENCHMARKS`.
        model: a key of :data:`MODELS`.
        all_weights: train all weights, on the ranks that torchrun starts; else adapters of rank 32 on one GPU, at ten
            times the learning rate, which is about what adapters need ("LoRA Without Regret", Schulman et al., 2025).
            Several ranks cannot have the papers' KL term yet.

    Example:
        >>> fine_tune("alfworld", "qwen2.5-1.5b", all_weights=False).optimizer.lr
        1e-05
    """
    setting = BENCHMARKS[benchmark]
    has_reference = not all_weights and model not in WITHOUT_REFERENCE
    return TrainConfig(
        recipe=f"{benchmark}-{model}" + ("-fsdp" if all_weights else ""),
        env=EnvConfig(id=setting.env, kwargs=setting.kwargs),
        model=ModelConfig(
            path=MODELS[model],
            max_context_tokens=setting.max_prompt_tokens + setting.max_new_tokens,
            lora=LoraSettings() if all_weights else LoraSettings(rank=32, alpha=32),
        ),
        num_steps=setting.num_steps,
        groups_per_step=setting.groups_per_step,
        group=GroupConfig(group_size=setting.group_size, num_envs=NUM_ENVS[model]),
        sampling=SamplingParams(max_new_tokens=setting.max_new_tokens),
        context=setting.context,
        credit=setting.credit,
        loss=LossConfig(
            num_updates=setting.num_updates,
            recompute_activations=True,
            regularisers=(KlOptions(coef=setting.kl_coef),) if has_reference else (),
        ),
        optimizer=OptimizerConfig(lr=1e-6 if all_weights else 1e-5, weight_decay=0.01, eps=1e-8),
        eval=EvalConfig(num_episodes=128, temperature=0.4),
        checkpoint_every=10,
    )


QWEN_RECIPES: Final[dict[str, Callable[[], TrainConfig]]] = {
    f"{benchmark}-{model}{suffix}": partial(fine_tune, benchmark, model, all_weights=bool(suffix))
    for benchmark in BENCHMARKS
    for model in MODELS
    for suffix in ("", "-fsdp")
}
