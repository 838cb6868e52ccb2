"""Construction of the engine that a run's configuration names, over the run's model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agentgym.engine import Engine
from agentgym.errors import ConfigError, blamed
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.component import ENGINES
from agentgym.trainers.engines.facts import engine_dtype
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.torch.weights import Present
from agentgym.trainers.models.model_shapes import check_positions
from agentgym.trainers.models.processor import multiplies_bfloat16
from agentgym.trainers.planning.step_sizes import pace_note
from agentgym.trainers.types import CausalLM, Tokenizer

_MIN_BFLOAT16_PARAMETERS = 50_000_000
"""Parameters from which on a model is suggested bfloat16: 135 million took 0.7 of the time, 0.8 million took longer."""


def build_engine(config: TrainConfig, model: CausalLM, run_dir: Path, num_episodes: int | None = None) -> Engine:
    """Create the engine that ``engine.kind`` names, which samples from ``model``. vLLM servers are not contacted yet.

    Args:
        num_episodes: the most that this rank plays at the same time; None: ``group.num_envs``.

    Raises:
        ConfigError: the engine does not support the configuration, or a user's function failed or did not return one.
    """
    component = ENGINES[config.engine.kind]
    num_episodes = num_episodes or config.group.num_envs
    values = {"config": config, "model": model, "run_dir": run_dir, "num_episodes": num_episodes}
    what = f"engine.kind={config.engine.kind}"
    with blamed(what) if component.is_own else nullcontext():
        made: Engine = component.call(**component.arguments(values, config.engine.own_options))
        # by hasattr, since isinstance overlooks attributes of a __getattr__ from Python 3.12 on; reading them may fail
        missing = [name for name in vars(Engine) if not name.startswith("_") and not hasattr(made, name)]
    if missing:
        raise ConfigError(
            f"{what} made a {type(made).__name__}, which lacks {', '.join(missing)} of agentgym.engine.Engine"
        )
    return made


def torch_engine(config: TrainConfig, model: CausalLM, num_episodes: int | None = None) -> TorchEngine:
    """Create the embedded engine over ``model``.

    Args:
        num_episodes: the most that it samples for at the same time; None: ``group.num_envs``.
    """
    return TorchEngine(model, **_options(config, model, num_episodes))


def borrowing_engine(config: TrainConfig, model: CausalLM, present: Present, num_episodes: int) -> TorchEngine:
    """Create the embedded engine over a model whose parts have their weights only in the context of ``present``."""
    return TorchEngine(model, **_options(config, model, num_episodes), present=present)


def _options(config: TrainConfig, model: CausalLM, num_episodes: int | None) -> dict[str, Any]:
    engine = config.engine
    num_episodes = num_episodes or config.group.num_envs
    return {
        # sessions of a dead worker's episodes stay until others need their slots
        "num_slots": num_episodes * (2 if config.cluster.plays and engine.batch_invariant else 1),
        "max_context_tokens": config.model.max_context_tokens,
        "dtype": engine_dtype(engine, model.device),
        "batch_invariant": engine.batch_invariant,
        "fixed_decode": None if engine.decode == "auto" else engine.decode == "fixed",
        "compile_layers": None if engine.compile == "auto" else engine.compile,
        "forward": engine.forward,
    }


def note_of(engine: object, model: CausalLM) -> str:
    """Return a note about an engine that samples more slowly than it should; empty for others.

    Args:
        engine: the engine.
        model: the model that it samples from.
    """
    if not isinstance(engine, TorchEngine):
        return ""
    if engine.compile_error:
        return (
            f"note: the engine's layers cannot be compiled here, so it samples more slowly ({engine.compile_error}); "
            "engine.compile=false does not try"
        )
    if engine.forward_kind == "own":
        return ""
    slow = {"batched": "in batches", "row by row": "one row at a time, which is slow"}[engine.forward_kind]
    return f"note: the embedded engine samples from {model.config.model_type} by transformers' own forward, {slow}"


def precision_note(config: TrainConfig, model: CausalLM) -> str:
    """Return a note that a run would be faster in bfloat16 on this processor; empty if not, or if a choice is made."""
    is_open = config.engine.dtype == "auto" and config.loss.precision == "auto"
    if not is_open or model.device.type != "cpu" or not config.engine.traits.is_embedded or not multiplies_bfloat16():
        return ""
    if sum(parameter.numel() for parameter in model.parameters()) < _MIN_BFLOAT16_PARAMETERS:
        return ""
    return (
        "note: this processor has instructions for bfloat16; a model of this size takes about 0.7 of the time with "
        "engine.dtype=bfloat16 loss.precision=bfloat16"
    )


def engine_notes(engine: Engine, config: TrainConfig, model: CausalLM, tokenizer: Tokenizer) -> list[str]:
    """Return notes on an engine that samples more slowly than it could, on the pace of steps, and on a long context.

    Args:
        model: the trained model; the one that is sampled from may have no weights yet.
    """
    num_parameters, on_gpu = sum(parameter.numel() for parameter in model.parameters()), model.device.type == "cuda"
    pace = pace_note(config, num_parameters, on_gpu=on_gpu, chat_template=tokenizer.chat_template or "")
    long = check_positions(model.config.to_dict(), config.model.max_context_tokens)
    return [note for note in (note_of(engine, model), precision_note(config, model), pace, long) if note]
