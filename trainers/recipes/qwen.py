"""Recipes for instruction-tuned Qwen models on four benchmarks, after the scripts released with GiGPO.

Each has two variants. ``ENV-MODEL`` trains adapters on one GPU; ``ENV-MODEL-fsdp`` trains all weights, sharded over the
processes that torchrun starts. ``docs/recipes.md`` compares them with the scripts. We have run none of them to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from agentgym.credit.compose import CreditConfig
from agentgym.credit.estimators.gigpo import GigpoOptions
from agentgym.engine import SamplingParams
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, LoraSettings, ModelConfig, TrainConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import EntropyOptions, KlOptions

MODELS: Final[Mapping[str, str]] = {
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3-4b": "Qwen/Qwen3-4B",
}
NUM_ENVS: Final[Mapping[str, int]] = {"qwen2.5-1.5b": 128, "qwen2.5-7b": 64, "qwen3-4b": 32}
"""Concurrent episodes whose keys and values fit into memory; a token of Qwen3-4B has five times those of 1.5B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Settings for training on an environment."""

    env: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    credit: CreditConfig
    context: ContextConfig
    max_prompt_tokens: int
    groups_per_step: int = 16
    group_size: int = 8
    max_new_tokens: int = 512
    kl_coef: float = 0.01
    entropy_coef: float = 0.001
    rows_per_update: int
    num_steps: int = 150
    warmup_steps: int = 0


ADAMW: Final = OptimizerConfig(lr=1e-6, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
"""verl's optimizer settings."""
BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "alfworld": Benchmark(
        env="agentgym/ALFWorld-v0",
        kwargs={"max_turns": 50},
        credit=CreditConfig(estimator="gigpo", invalid_penalty=0.1),
        context=ContextConfig(policy="window", num_turns=2),
        max_prompt_tokens=2048,
        rows_per_update=256,
    ),
    "webshop": Benchmark(
        env="agentgym/WebShop-v0",
        kwargs={"max_turns": 15},
        credit=CreditConfig(estimator="gigpo", norm="mean_norm", invalid_penalty=0.1),
        context=ContextConfig(policy="window", num_turns=2),
        max_prompt_tokens=4096,
        rows_per_update=64,
    ),
    "searchqa": Benchmark(
        env="agentgym/SearchQA-v0",
        kwargs={"max_turns": 4},
        credit=CreditConfig(
            estimator="gigpo",
            invalid_penalty=0.01,
            options=GigpoOptions(anchors="similarity", similarity_threshold=0.9),
        ),
        context=ContextConfig(policy="window", num_turns=4),
        max_prompt_tokens=4096,
        groups_per_step=256,
        group_size=5,
        kl_coef=0.001,
        entropy_coef=0.0,
        rows_per_update=512,
        num_steps=662,
        warmup_steps=66,
    ),
    "code": Benchmark(
        env="agentgym/Code-v0",
        kwargs={"max_turns": 8},
        credit=CreditConfig(estimator="gigpo", invalid_penalty=0.1),
        context=ContextConfig(policy="full"),
        max_prompt_tokens=4096,
        max_new_tokens=1024,
        rows_per_update=64,
    ),
}
"""ALFWorld, WebShop and search are those of the scripts for "Group-in-Group Policy Optimization for LLM Agent Training"
(GiGPO) in verl-agent, ``examples/gigpo_trainer``. Search trains for one epoch of Search-R1's 169,615 questions. Code
has no such script: it takes ALFWorld's settings with the whole history and answers of 1,024 tokens."""


def fine_tune(benchmark: str, model: str, *, all_weights: bool) -> TrainConfig:
    """Fine-tune a model on a benchmark, with the settings of published runs.

    Args:
        benchmark: a key of :data:`BENCHMARKS`.
        model: a key of :data:`MODELS`.
        all_weights: train all weights, on the ranks that torchrun starts, with a KL term; else adapters of rank 64 on
            one GPU without one. Qwen3 is trained without thinking and, as in its script, without a KL term.

    Example:
        >>> fine_tune("alfworld", "qwen2.5-1.5b", all_weights=False).optimizer.lr
        3e-06
    """
    setting, is_qwen3 = BENCHMARKS[benchmark], model.startswith("qwen3")
    kl = (KlOptions(coef=setting.kl_coef),) if all_weights and not is_qwen3 else ()
    entropy = (EntropyOptions(coef=setting.entropy_coef),) if setting.entropy_coef else ()
    return TrainConfig(
        recipe=f"{benchmark}-{model}" + ("-fsdp" if all_weights else ""),
        env=EnvConfig(id=setting.env, kwargs=setting.kwargs),
        model=ModelConfig(
            path=MODELS[model],
            max_context_tokens=setting.max_prompt_tokens + setting.max_new_tokens,
            template_args={"enable_thinking": False} if is_qwen3 else {},
            lora=LoraSettings() if all_weights else LoraSettings(rank=64, alpha=64),
        ),
        num_steps=setting.num_steps,
        groups_per_step=setting.groups_per_step,
        group=GroupConfig(group_size=setting.group_size, num_envs=NUM_ENVS[model]),
        sampling=SamplingParams(max_new_tokens=setting.max_new_tokens),
        context=setting.context,
        credit=setting.credit,
        loss=LossConfig(
            clip_low=0.2,
            clip_high=0.2,
            dual_clip=3.0,
            minibatch="rows",
            rows_per_update=setting.rows_per_update,
            recompute_activations=True,
            regularisers=(*kl, *entropy),
        ),
        optimizer=replace(ADAMW, lr=1e-6 if all_weights else 3e-6, warmup_steps=setting.warmup_steps),
        eval=EvalConfig(num_episodes=128, temperature=0.4),
        checkpoint_every=10,
    )


QWEN_RECIPES: Final[dict[str, Callable[[], TrainConfig]]] = {
    f"{benchmark}-{model}{suffix}": partial(fine_tune, benchmark, model, all_weights=bool(suffix))
    for benchmark in BENCHMARKS
    for model in MODELS
    for suffix in ("", "-fsdp")
}
