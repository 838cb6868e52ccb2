"""POAD's advantages compared with the authors' buffer, before whitening."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
from released import Case, Release, gap, load

from agentgym.credit.estimators.gae import poad
from agentgym.credit.table import TurnTable

RELEASE = Release("morning9393/ADRL", "5ec1aa5")
FILE = "mappo/utils/language_buffer.py"
PAD = -1
METHODS = ("get_last_token_position", "batch_process_tppo")


def advantages(folder: Path, rng: np.random.Generator) -> float:
    """Draw one episode per thread, of one to five actions of one to four tokens; it ends with the buffer."""
    num_turns, num_threads, longest = int(rng.integers(1, 6)), int(rng.integers(1, 4)), 4
    num_tokens = rng.integers(1, longest + 1, (num_turns, num_threads))
    rewards = np.where(rng.random((num_turns, num_threads)) < 0.5, 0.0, rng.normal(0, 1, (num_turns, num_threads)))
    gamma, lam = float(rng.choice([0.9, 0.95, 1.0])), float(rng.choice([0.5, 0.95, 1.0]))
    shape = 1, num_turns, num_threads, 1, longest
    tokens = np.full(shape, PAD)
    for turn, thread in np.ndindex(num_tokens.shape):
        tokens[0, turn, thread, 0, : num_tokens[turn, thread]] = 1
    masks = np.ones((1, num_turns + 1, num_threads, 1))
    masks[:, -1] = 0  # the episode is over
    methods = load(folder / FILE, *(f"LanguageBuffer.{name}" for name in METHODS), namespace={"np": np})
    buffer = SimpleNamespace(
        get_last_token_position=lambda action: methods["get_last_token_position"](buffer, action),
        algo="POAD", gamma=gamma, gae_lambda=lam, pad_token_id=PAD, cur_batch_index=0, cur_num_batch=0, max_batch=1,
        n_rollout_threads=num_threads, episode_length=num_turns, action_tokens=tokens, masks=masks,
        rewards=rewards[None, :, :, None],
        tppo_values=rng.normal(0, 1, (1, num_turns + 1, *shape[2:])),
        tppo_returns=np.zeros(shape), tppo_advantages=np.zeros(shape),
    )  # fmt: skip
    methods["batch_process_tppo"](buffer, rng.normal(0, 1, (num_threads, 1)))

    def sampled(padded: np.ndarray) -> np.ndarray:
        """Return the values of real tokens, thread by thread."""
        by_thread = padded[0, :num_turns, :, 0].transpose(1, 0, 2)
        return by_thread[tokens[0, :, :, 0].transpose(1, 0, 2) != PAD]

    table = TurnTable.from_lists(rewards=rewards.T.tolist(), group_of_trajectory=list(range(num_threads)))
    table = table.with_columns(num_tokens=num_tokens.T.reshape(-1), token_value=sampled(buffer.tppo_values))
    credited = poad(table, gamma_action=gamma, lam=lam, whitened=False)
    assert credited.token_advantage is not None and credited.token_return is not None
    return max(
        gap(credited.token_advantage, sampled(buffer.tppo_advantages)),
        gap(credited.token_return, sampled(buffer.tppo_returns)),
    )


CASES = [Case(component="poad", release=RELEASE, file=FILE, largest_gap=advantages)]
