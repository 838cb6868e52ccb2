"""Work on items that lie on different ranks: all plan the same batches, and each receives the items of its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agentgym.trainers.distributed.ranks import Ranks

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Numbered:
    """Numbers of items that each rank made, counted over the ranks in order.

    Example:
        >>> numbers = Numbered.of(Ranks(), [4, 1])
        >>> numbers.sizes, list(numbers.of_rank(0))
        ([4, 1], [0, 1])
    """

    sizes: list[int]
    """The sizes of all items."""
    firsts: list[int]
    """The number of each rank's first item, and of one past the last."""

    @classmethod
    def of(cls, ranks: Ranks, own: Sequence[int]) -> Numbered:
        """Collect the sizes of all ranks' items. All ranks must call this.

        Args:
            own: the sizes of this rank's items.
        """
        every = ranks.gathered(list(own))
        firsts = [sum(map(len, every[:rank])) for rank in range(len(every) + 1)]
        return cls([size for sizes in every for size in sizes], firsts)

    def of_rank(self, rank: int) -> range:
        """Return the numbers of a rank's items."""
        return range(self.firsts[rank], self.firsts[rank + 1])


def dealt(ranks: Ranks, held: Mapping[int, Item], batches: Sequence[Sequence[int]]) -> list[list[Item]]:
    """Return the items of each batch of this rank's share (:meth:`Ranks.share`). All ranks must call this.

    Args:
        held: the items that this rank has, by number.
        batches: numbers of the items of every batch, equal on all ranks.

    Example:
        >>> dealt(Ranks(), {0: "a", 1: "b", 2: "c"}, [[2, 0], [1]])
        [['c', 'a'], ['b']]
    """
    shares = [[batches[index] for index, _ in ranks.share(len(batches), of=rank)] for rank in range(ranks.count)]
    wanted = [sorted({number for batch in share for number in batch}) for share in shares]
    here = ranks.fetched(held, wanted)
    return [[here[number] for number in batch] for batch in shares[ranks.rank]]
