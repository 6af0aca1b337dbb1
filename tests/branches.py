"""All outcomes of code that asks for coins and draws: the same code runs once for every way they
can fall."""

from itertools import accumulate

from torch import Tensor

from simspec.rng import ACCEPT


class Branches:
    """Stands in for `real.sampling.AddressedDraws` and answers as its script says; past its end
    it takes the first answer and notes the others.

    Behind every address (round, slot, role) stands one uniform number, as in the real one: an
    answer says in which part of [0, 1) it lies, and an address that is asked again answers
    out of that part. So code that uses a number twice has the law that it would have. `odds`
    is the chance of the answers given, `again` counts addresses asked more than once. Answers
    of chance 0 are never given.
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
    """(what `run(draws)` returns, its chance) for every way in which all coins and draws can
    fall."""
    scripts = [[]]
    while scripts:
        draws = Branches(scripts.pop())
        value = run(draws)
        scripts += draws.open
        yield value, draws.odds


def output_distribution(run) -> dict:
    """{what `run(draws)` returns: its chance}, summed over all outcomes."""
    total: dict = {}
    for value, odds in outcomes(run):
        total[value] = total.get(value, 0.0) + odds
    return total
