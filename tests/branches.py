"""All outcomes of code that makes accept draws and samples: it runs once for every combination."""

from itertools import accumulate

from torch import Tensor

from simspec.numerics.rng import ACCEPT


class Branches:
    """Replaces `real.sampling.AddressedDraws` by a script of answers; past its end it takes the
    first answer and notes the others.

    Every address (round, slot, role) has one uniform number, as in the real class. An answer
    fixes the part of [0, 1) that holds it; a repeated address answers out of that part. So code
    that uses a number twice has the distribution that it would have. `odds` is the probability
    of the answers, `again` counts repeated addresses. Answers of probability 0 are never given.
    """

    def __init__(self, script: list[int]):
        self.script, self.taken, self.open, self.odds, self.again = script, [], [], 1.0, 0
        self.part: dict[tuple, tuple[float, float]] = {}

    def _choose(self, address, odds: list[float]) -> int:
        low, high = self.part.get(address, (0.0, 1.0))
        self.again += address in self.part
        edges = [0.0, *accumulate(odds)]
        edges = [1.0 if edge == edges[-1] else edge for edge in edges]  # their sum, up to rounding
        parts = [(max(low, a), min(high, b)) for a, b in zip(edges, edges[1:])]
        able = [i for i, (a, b) in enumerate(parts) if b > a]
        place = len(self.taken)
        if place < len(self.script):
            choice = self.script[place]
        else:
            choice = able[0]
            self.open += [[*self.taken, other] for other in able[1:]]
        self.taken.append(choice)
        self.part[address] = parts[choice]
        self.odds *= (parts[choice][1] - parts[choice][0]) / (high - low)
        return choice

    def accept(self, odds: float, round: int, slot: int) -> bool:
        return self._choose((round, slot, ACCEPT), [odds, 1 - odds]) == 0

    def sample(self, p: Tensor, round: int, slot: int, role: int) -> int:
        return self._choose((round, slot, role), (p / p.sum()).tolist())


def outcomes(run):
    """(what `run(draws)` returns, its probability) for every combination of draws."""
    scripts = [[]]
    while scripts:
        draws = Branches(scripts.pop())
        value = run(draws)
        scripts += draws.open
        yield value, draws.odds


def output_distribution(run) -> dict:
    """{what `run(draws)` returns: its probability}, summed over all outcomes."""
    total: dict = {}
    for value, odds in outcomes(run):
        total[value] = total.get(value, 0.0) + odds
    return total
