"""``agentgym play``: play an episode by hand, or watch a policy."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from agentgym.cli.env_args import EnvArgument, KwargsArgument, parse_pairs
from agentgym.cli.output import JsonFlag, output
from agentgym.env.actions import gold_action
from agentgym.registry import id_of, make


def play(
    env: EnvArgument,
    kwargs: KwargsArgument = None,
    policy: Annotated[Literal["human", "oracle", "random"], typer.Option(help="The player.")] = "human",
    seed: Annotated[int, typer.Option(help="Chooses the task and seeds the random policy.")] = 0,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    as_json: JsonFlag = False,
) -> None:
    """Play one episode in the terminal; type `help` for the commands."""
    import numpy as np

    from agentgym.check.policies import random_action
    from agentgym.cli.terminal import Game, play_by_hand, watch
    from agentgym.rollout.seeds import derive_seed

    with output(as_json) as out:
        arguments = parse_pairs(kwargs or ())
        made = make(id_of(env, arguments), **arguments)
        game = Game(made, out.status if as_json else out.console, seed=seed, split=split)
        try:
            game.begin()
            if policy == "human":
                play_by_hand(game)
            elif policy == "oracle":
                watch(game, lambda observation: gold_action(made))
            else:
                # A derived seed: with the environment's own seed, the policy would draw the same numbers as the
                # environment.
                rng = np.random.default_rng(derive_seed(seed, "random policy"))
                watch(game, lambda observation: random_action(made, observation, rng))
        finally:
            made.close()
        out.result(game.result())
