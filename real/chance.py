"""Chance: the coins and draws of the rejection rule, each at its own address."""

import torch
from torch import Tensor

from simspec.rng import ACCEPT, uniform


class Chance:
    """Draws addressed by (seed, sequence, round, slot, role): not by text position, where a policy could see what it discarded.

    `slot` of a coin is the row that it judges, of a draw the row that the drawn token follows.
    """

    def __init__(self, seed: int, sequence: int):
        self.seed, self.sequence = seed, sequence

    def flip(self, odds: float, round: int, slot: int) -> bool:
        """True with probability `odds`."""
        return uniform(self.seed, self.sequence, round, slot, ACCEPT) < odds

    def draw(self, p: Tensor, round: int, slot: int, role: int) -> int:
        """A token drawn from the distribution `p [vocab]` (its sum need not be 1)."""
        return _at(p, uniform(self.seed, self.sequence, round, slot, role))


def _at(p: Tensor, u: float) -> int:
    """The token at which the running sum of `p` first exceeds the share `u` of it; never one of probability 0."""
    total = p.cumsum(-1)
    found = int(torch.searchsorted(total, u * total[-1], right=True))
    return min(found, int(p.nonzero()[-1]))
