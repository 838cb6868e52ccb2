"""The models that a run begins with: the policy and its tokenizer, and the teacher of distillation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from agentgym.errors import ConfigError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.rank_limits import Roles
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.fit import can_be_packed, can_be_split
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import shard_from_first
from agentgym.trainers.models.allocator import reuse_freed_memory
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.model import add_lora, load_model, load_tokenizer, never_trained, train_vision
from agentgym.trainers.models.model_shapes import check_positions
from agentgym.trainers.models.precision import skip_adapter_casts, use_fused_attention
from agentgym.trainers.models.quantized import is_quantized
from agentgym.trainers.models.rehearsal import prepare_saving
from agentgym.trainers.models.tiny import build_model, build_vision
from agentgym.trainers.models.vocabulary import check_ids
from agentgym.trainers.placement.experts import check_experts
from agentgym.trainers.run.env import RunEnv
from agentgym.trainers.run.tokenizer import own_tokenizer
from agentgym.trainers.types import CausalLM, Tokenizer


def policy_tokenizer(
    config: TrainConfig,
    envs: Sequence[RunEnv],
    run_dir: Path,
    announce: Callable[[Callable[[str], None]], None],
    ranks: Ranks,
) -> Tokenizer:
    """Return the policy's tokenizer, which is trained on the environments' texts if the model is built here.

    Args:
        announce: called with a function that prints, before the first episode.
    """
    path = config.model.path
    return load_tokenizer(path) if path else own_tokenizer(config, envs, run_dir, ranks, announce)


def load_policy(
    config: TrainConfig, renderer: ChatRenderer, tokenizer: Tokenizer, *, ranks: Ranks, roles: Roles
) -> CausalLM | None:
    """Return the policy, with adapters where it has any; None on a rank that receives its shards from the first one.

    Args:
        renderer: the renderer of its prompts, whose token ids the model must know.

    Raises:
        ConfigError: the model does not suit the configuration, or could not be saved after training.
        CorruptDataError: the model has no rows for tokens of its prompts.
    """
    settings = config.model
    if settings.path and not roles.loads(is_main=ranks.is_main) and settings.lora.quantize == "none":
        return None
    if settings.path:
        model, _ = load_model(settings.path, settings.lora.quantize, tokenizer, route=config.image_route)
        check_positions(model.config.to_dict(), settings.max_context_tokens)
    else:
        vision = build_vision(tokenizer, settings, config.image_route)
        model = build_model(tokenizer, settings, derive_seed(config.seed, "model"), vision)
    check_ids(model, tokenizer, renderer)
    # for shards the first rank sends them from the machine's memory, tensor by tensor
    made = _prepared(model, config, ranks, on_host=roles.gather or roles.lend)
    prepare_saving(made, tokenizer, renderer.turn_end_ids)
    return made


def _prepared(model: CausalLM, config: TrainConfig, ranks: Ranks, *, on_host: bool) -> CausalLM:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        reuse_freed_memory()
    check_experts(model, config, ranks.count, device)
    model = add_lora(model, config.model.lora, derive_seed(config.seed, "lora"))
    if config.model.vision == "trained":
        train_vision(model)  # after peft, which freezes everything below adapters
    if not on_host:
        model.to(device)
    use_fused_attention(model)
    if ranks.count == 1 and not is_quantized(model):  # else it is not autocast that gives them
        skip_adapter_casts(model, config.loss.precision)
    check_model(model)
    if ranks.context is not None and not can_be_split(model):
        raise ConfigError(
            f"ranks.context_size={ranks.context.size} needs full causal attention in every layer, by torch's "
            f"kernels, and {model.config.model_type} has another: set ranks.context_size=1"
        )
    if config.loss.layout == "packed" and not can_be_packed(model):
        raise ConfigError(
            f"loss.layout=packed does not suit {config.model.path or 'this model'}: use loss.layout=prefix"
        )
    return model


def load_teacher(config: TrainConfig, renderer: ChatRenderer, tokenizer: Tokenizer, ranks: Ranks) -> CausalLM | None:
    """Load the teacher of distillation, sharded as the policy is; None if the loss has no teacher.

    Raises:
        CorruptDataError: the teacher has no rows for tokens of the prompts.
        UsageError: the teacher's tokenizer differs from the policy's, so their probabilities cannot be compared.
    """
    source = config.loss.teacher
    if not source:
        return None
    teacher, its_tokenizer = load_model(source, route=config.image_route) if ranks.is_main else (None, tokenizer)
    if its_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise UsageError(
            f"the teacher {source} has another tokenizer ({len(its_tokenizer)} tokens) than the policy "
            f"({len(tokenizer)} tokens), and distillation compares probabilities of the same tokens: choose a "
            "teacher of the same model family"
        )
    if teacher is not None:
        check_ids(teacher, tokenizer, renderer)
        teacher.to("cuda" if torch.cuda.is_available() else "cpu")
        use_fused_attention(teacher)
        if ranks.count == 1:
            return never_trained(teacher)
    return never_trained(shard_from_first(teacher, ranks, config.loss.precision))
