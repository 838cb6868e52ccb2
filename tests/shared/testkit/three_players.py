"""A game of three players."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym import GameEnv, Task, register


@dataclass(frozen=True)
class Pile:
    """Matches on a table."""

    left: int
    player: int = 0

    def actions(self) -> tuple[str, ...]:
        """Return the numbers of matches that can be taken."""
        return tuple(str(n) for n in (1, 2, 3) if n <= self.left)

    def after(self, action: str) -> Pile:
        """Return the pile after a move."""
        return Pile(self.left - int(action), (self.player + 1) % 3)

    def returns(self) -> tuple[float, ...]:
        """Return 1 for the player who took the last match, and -0.5 for the others."""
        winner = (self.player - 1) % 3
        return tuple(1.0 if player == winner else -0.5 for player in range(3))

    def view(self, player: int) -> str:
        """Return the number of matches."""
        return f"{self.left} matches are left."


class Nim(GameEnv):
    """Take one to three matches; who takes the last one wins."""

    players = ("ann", "bob", "cy")
    rules = "Take 1, 2 or 3 matches. Who takes the last one wins."

    def deal(self, task: Task) -> Pile:
        """Draw the number of matches."""
        return Pile(int(self.np_random.integers(6, 20)))


register("Nim-v0", Nim)
