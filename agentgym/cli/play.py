"""``agentgym play``: play an episode by hand, or watch a policy."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgym.cli.env_args import EnvArgument, KwargsArgument, parse_pairs
from agentgym.cli.output import JsonFlag, output
from agentgym.errors import UsageError
from agentgym.registry import id_of, make


def play(
    env: EnvArgument,
    kwargs: KwargsArgument = None,
    policy: Annotated[str, typer.Option(help="The player: human, oracle, random, idle, or file.py:NAME.")] = "human",
    seed: Annotated[int, typer.Option(help="Chooses the task and seeds the random policy.")] = 0,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    as_json: JsonFlag = False,
) -> None:
    """Play one episode in the terminal; type `help` for the commands."""
    import numpy as np

    from agentgym.cli.terminal import Game, play_by_hand, watch
    from agentgym.evals.policies import choose_by, is_scripted
    from agentgym.rollout.seeds import derive_seed

    with output(as_json) as out:
        if policy != "human" and not is_scripted(policy):
            raise UsageError(
                f"unknown policy {policy!r} of play; it takes human, oracle, random, idle or file.py:NAME. "
                "Models play in agentgym eval"
            )
        choose = None if policy == "human" else choose_by(policy)
        arguments = parse_pairs(kwargs or ())
        made = make(id_of(env, arguments), **arguments)
        game = Game(made, out.status if as_json else out.console, seed=seed, split=split)
        try:
            game.begin()
            if choose is None:
                play_by_hand(game)
            else:
                # A derived seed: with the environment's own seed, the policy would draw the same numbers as the
                # environment.
                rng = np.random.default_rng(derive_seed(seed, "random policy"))
                watch(game, lambda observation: choose(made, observation, rng))
        finally:
            made.close()
        out.result(game.result())
