"""All outcomes of code that asks for coins and draws: the same code runs once for every way they can fall."""

from torch import Tensor


class Branches:
    """Stands in for `real.chance.Chance` and answers as its script says; past its end it takes the first answer and notes the others.

    `odds` is the chance of the answers given. Answers of chance 0 are never given.
    """

    def __init__(self, script: list[int]):
        self.script, self.taken, self.open, self.odds = script, [], [], 1.0

    def _choose(self, odds: list[float]) -> int:
        able = [i for i, each in enumerate(odds) if each > 0]
        at = len(self.taken)
        if at < len(self.script):
            choice = self.script[at]
        else:
            choice = able[0]
            self.open += [[*self.taken, other] for other in able[1:]]
        self.taken.append(choice)
        self.odds *= odds[choice]
        return choice

    def flip(self, odds: float, round: int, slot: int) -> bool:
        return bool(self._choose([1 - odds, odds]))

    def draw(self, p: Tensor, round: int, slot: int, role: int) -> int:
        return self._choose((p / p.sum()).tolist())


def outcomes(run):
    """(what `run(chance)` returns, its chance) for every way in which all coins and draws can fall."""
    scripts = [[]]
    while scripts:
        chance = Branches(scripts.pop())
        found = run(chance)
        scripts += chance.open
        yield found, chance.odds


def law(run) -> dict:
    """{what `run(chance)` returns: its chance}, summed over all outcomes."""
    found: dict = {}
    for value, odds in outcomes(run):
        found[value] = found.get(value, 0.0) + odds
    return found
