"""The tokenizer of a run that builds its own model, trained on texts of the environments."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.errors import RunStoppedError
from agentgym.progress import VisibleConsole, progress_bars
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.demos import collect_texts
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.models.tiny import read_tokenizer, train_tokenizer
from agentgym.trainers.run.env import RunEnv
from agentgym.trainers.run.folder import TOKENIZER_NAME
from agentgym.trainers.types import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def own_tokenizer(
    config: TrainConfig,
    envs: Sequence[RunEnv],
    run_dir: Path,
    ranks: Ranks,
    announce: Callable[[Callable[[str], None]], None],
) -> PreTrainedTokenizerFast:
    """Return the tokenizer that the run began with, or train a new one, which is equal on all ranks.

    Args:
        announce: called with a function that prints, before the first episode.

    Raises:
        RunStoppedError: the ranks' tokenizers differ.
    """
    folder = run_dir / TOKENIZER_NAME
    tokenizer = read_tokenizer(folder) if folder.is_dir() else _trained(config, envs, ranks, announce)
    seen = ranks.gathered(tokenizer.backend_tokenizer.to_str())
    if len(set(seen)) > 1:
        raise RunStoppedError("the environment failed at some ranks only, so that their tokenizers differ; try again")
    return tokenizer


def keep_tokenizer(tokenizer: Tokenizer, run_dir: Path) -> None:
    """Save a tokenizer that was trained for this run, if there is none yet.

    A resumed run must not train it again: if an episode failed the first time and succeeds now, the texts differ.
    """
    folder = run_dir / TOKENIZER_NAME
    if not folder.is_dir():
        part = folder.with_name(f"{TOKENIZER_NAME}.partial")
        tokenizer.save_pretrained(part)
        os.replace(part, folder)


def _trained(
    config: TrainConfig, envs: Sequence[RunEnv], ranks: Ranks, announce: Callable[[Callable[[str], None]], None]
) -> PreTrainedTokenizerFast:
    """Train a tokenizer. That takes some seconds per megabyte of text."""
    model = config.model
    texts: list[str] = []
    words: list[str] = []
    with progress_bars(VisibleConsole(stderr=True, quiet=not ranks.is_main), transient=True) as bars:
        say = partial(bars.console.print, highlight=False, markup=False, soft_wrap=True)
        announce(say)
        for env in envs:
            tasks = list(env.train_tasks[: model.num_text_episodes])
            said, named = collect_texts(
                env.make_env,
                tasks,
                seed=config.seed,
                track=partial(bars.track, description=" ".join(filter(None, ["texts of episodes", env.name]))),
                limits=env.config.group.limits,
                reference=env.config.env.id,
                say=say,
                on_service=partial(setattr, env, "service"),
            )
            texts += [*said, *(env.config.context.phrases * model.num_text_episodes)]
            words += named
        megabytes = sum(map(len, texts)) / 1e6
        bars.add_task(f"tokenizer of {megabytes:.1f} MB", total=None)  # the library reports nothing on the way
        has_images = model.picture_size > 0
        return train_tokenizer(texts, model.vocab_size, sorted({*words}), model.splits, has_images=has_images)
