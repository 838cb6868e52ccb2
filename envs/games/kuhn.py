"""``agentgym/KuhnPoker-v0``: the simplest poker game, whose equilibria are known.

Source: H. W. Kuhn, "A Simplified Two-Person Poker" (Contributions to the Theory of Games I, 1950).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np

from agentgym.env.game_env import GameEnv, GameState, Opponent, random_opponent
from agentgym.types import Task

CARDS = ("jack", "queen", "king")
PASS, BET = "pass", "bet"
GAME_VALUE = -1 / 18
"""Mean return of the first player at an equilibrium, in chips per game."""

ENDS: tuple[tuple[str, ...], ...] = ((PASS, PASS), (BET, PASS), (BET, BET), (PASS, BET, PASS), (PASS, BET, BET))


@dataclass(frozen=True, slots=True)
class KuhnState:
    """Each player's card, 0 to 2, and the actions so far."""

    cards: tuple[int, int]
    history: tuple[str, ...] = ()

    @property
    def player(self) -> int:
        """Player to move."""
        return len(self.history) % 2

    def actions(self) -> tuple[str, ...]:
        """Return the legal actions; empty at the end."""
        return () if self.history in ENDS else (PASS, BET)

    def after(self, action: str) -> KuhnState:
        """Return the state after an action."""
        return KuhnState(self.cards, (*self.history, action))

    def returns(self) -> tuple[float, float]:
        """Return the chips won: an ante of 1 each, and 1 more from a player who bet or called.

        Example:
            >>> KuhnState((2, 1), ("pass", "bet", "bet")).returns()
            (2.0, -2.0)
        """
        if self.history[-2:] == (BET, PASS):  # the player who passed loses the ante
            first = 1.0 if len(self.history) == 2 else -1.0
        else:
            stake = 2.0 if self.history[-1] == BET else 1.0
            first = stake if self.cards[0] > self.cards[1] else -stake
        return (first, -first)

    def view(self, player: int) -> str:
        """Return the player's card and all actions, which is a complete memory of the player's observations."""
        said = f"Your card: {CARDS[self.cards[player]]}. So far: {' '.join(self.history) or 'nothing'}."
        if self.actions():
            return f"{said} {PASS} or {BET}?"
        shown = f" The other card: {CARDS[self.cards[1 - player]]}." if self._is_showdown else ""
        return f"{said}{shown} You get {self.returns()[player]:+.0f}."

    @property
    def _is_showdown(self) -> bool:
        return self.history[-2:] != (BET, PASS)


DEALS = tuple(KuhnState(cards) for cards in permutations(range(len(CARDS)), 2))
"""The six deals, all equally likely."""

CHOICES: tuple[tuple[str, ...], ...] = ((), (PASS,), (BET,), (PASS, BET))
"""Histories at which a player chooses."""

INFORMATION_SETS = {
    KuhnState(deal.cards, history).view(len(history) % 2): KuhnState(deal.cards, history)
    for history in CHOICES
    for deal in DEALS
}
"""The twelve information states in which a player chooses, each with an example position."""


def equilibrium(alpha: float = 1 / 3) -> Policy:
    """Return an equilibrium in which the first player bluffs with the jack with probability ``alpha``, 0 to 1/3.

    Source: Kuhn (1950). The second player's strategy is the same in all equilibria.

    Example:
        >>> policy = equilibrium(0.2)
        >>> round(policy[KuhnState((2, 0)).view(0)]["bet"], 4)
        0.6
    """
    bets: dict[tuple[str, ...], tuple[float, float, float]] = {
        (): (alpha, 0.0, 3 * alpha),
        (PASS, BET): (0.0, alpha + 1 / 3, 1.0),
        (PASS,): (1 / 3, 0.0, 1.0),
        (BET,): (0.0, 1 / 3, 1.0),
    }
    chances = {known: bets[state.history][state.cards[state.player]] for known, state in INFORMATION_SETS.items()}
    return {known: {PASS: 1.0 - bet, BET: bet} for known, bet in chances.items()}


_EQUILIBRIUM = equilibrium()


def equilibrium_opponent(state: KuhnState, rng: np.random.Generator) -> str:
    """Return a move of an equilibrium, which no policy beats in the long run."""
    return BET if rng.random() < _EQUILIBRIUM[state.view(state.player)][BET] else PASS


class KuhnPokerEnv(GameEnv):
    """Kuhn poker: three cards, one bet, two players; chips won are the reward.

    Both players ante one chip and get a card. A player passes or bets one chip. A player who passes after a bet folds;
    otherwise the higher card wins. At an equilibrium the first player loses 1/18 of a chip per game. There is no
    oracle, since equilibria are mixed and no policy wins every deal.

    Args:
        opponent: ``equilibrium``, ``random``, or ``self``.
        seat: the agent's seat, 0 (moves first) or 1; None draws one per episode.
        explain: include the rules in the first message to a player.
        max_errors: impossible moves that a player may make before it forfeits two chips, the largest possible loss.

    Example:
        >>> env = KuhnPokerEnv(opponent="self", explain=False)
        >>> env.reset(seed=0)[0][0].text
        'Your card: king. So far: nothing. pass or bet?'
    """

    rules: ClassVar[str] = (
        "Kuhn poker: jack, queen and king, one card each; both antes are 1 chip. Say pass, or bet 1 chip more. To pass "
        "after a bet is to fold, to bet after a bet is to call; otherwise the higher card wins the pot."
    )
    forfeit_cost: ClassVar[float] = 2.0
    opponents: ClassVar[Mapping[str, Opponent]] = {"equilibrium": equilibrium_opponent, "random": random_opponent}

    def __init__(
        self,
        *,
        opponent: str = "equilibrium",
        seat: int | None = None,
        explain: bool = True,
        max_errors: int = 1,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(opponent=opponent, seat=seat, explain=explain, max_errors=max_errors, render_mode=render_mode)

    def deal(self, task: Task) -> KuhnState:
        return DEALS[int(self.np_random.integers(len(DEALS)))]


# Exact exploitability of policies in a two-player zero-sum game, computed by a walk of the whole game tree


Policy = Mapping[str, Mapping[str, float]]
"""Probabilities of moves by the information state of the player to move
(:meth:`~agentgym.env.game_env.GameState.view`)."""

_Node = tuple[GameState, float]
"""A position and its reach probability from chance and the other player."""


def expected_return(deals: Sequence[GameState], policy: Policy) -> float:
    """Return the first player's mean return if both players follow a policy.

    Args:
        deals: the first positions, all equally likely.

    Example:
        >>> from agentgym.envs.games.kuhn import DEALS, equilibrium
        >>> round(expected_return(DEALS, equilibrium()) * 18, 6)
        -1.0
    """
    return sum(_value(deal, policy) for deal in deals) / len(deals)


def best_response_return(deals: Sequence[GameState], policy: Policy, player: int) -> float:
    """Return the largest mean return of a player against a policy of the other player.

    The responder knows its views, which must contain everything it has seen (perfect recall).
    """
    return _best([(deal, 1.0 / len(deals)) for deal in deals], policy, player)


def exploitability(deals: Sequence[GameState], policy: Policy) -> float:
    """Return half of the total gain of both players from best responses; 0 if and only if the policy is an equilibrium.

    Source: NashConv and exploitability as in "OpenSpiel: A Framework for Reinforcement Learning in Games"
    (Lanctot et al., 2019).

    Example:
        >>> from agentgym.envs.games.kuhn import DEALS, INFORMATION_SETS
        >>> uniform = {known: {"pass": 0.5, "bet": 0.5} for known in INFORMATION_SETS}
        >>> round(exploitability(DEALS, uniform), 6)
        0.458333
    """
    return sum(best_response_return(deals, policy, player) for player in (0, 1)) / 2


def _value(state: GameState, policy: Policy) -> float:
    if not state.actions():
        return state.returns()[0]
    chances = policy[state.view(state.player)]
    return sum(chances[action] * _value(state.after(action), policy) for action in state.actions())


def _best(nodes: Sequence[_Node], policy: Policy, player: int) -> float:
    """Return the best response's return over positions that the responder cannot distinguish."""
    total, by_view = _until_next_choice(nodes, policy, player)
    for known in by_view.values():
        actions = known[0][0].actions()
        total += max(
            _best([(state.after(action), reach) for state, reach in known], policy, player) for action in actions
        )
    return total


def _until_next_choice(nodes: Sequence[_Node], policy: Policy, player: int) -> tuple[float, Mapping[str, list[_Node]]]:
    """Return the value of games that end before the responder's next choice, and its choices by information state."""
    total = 0.0
    by_view: dict[str, list[_Node]] = {}
    left = list(nodes)
    while left:
        state, reach = left.pop()
        if not state.actions():
            total += reach * state.returns()[player]
        elif state.player == player:
            by_view.setdefault(state.view(player), []).append((state, reach))
        else:
            chances = policy[state.view(state.player)]
            left += [(state.after(action), reach * chances[action]) for action in state.actions()]
    return total, by_view
