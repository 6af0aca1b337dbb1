"""How far a sum over the rounds of synthetic texts may stray: its exact mean on texts of finite length, and a Chernoff bound."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_GRID = np.array([0.6, 0.75, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3, 1.6])


@dataclass(frozen=True, eq=False)
class Law:
    """What decides the rounds of one text of `rows` tokens: who accepts, and a policy that draws fresh coins.

    | field  | dtype, shape       | meaning                                                                            |
    | ------ | ------------------ | ----------------------------------------------------------------------------------- |
    | accept | float64[R, K, Z]   | chance that the draft token at depth j + 1 from row t is accepted, given those before; |
    |        |                    | z is the hidden state at its own position t + j. R = rows, or 1 if all rows are alike   |
    | move   | float64[Z, Z]      | the hidden state's transitions from one text position to the next                    |
    | start  | float64[Z]         | its law at position 0                                                               |
    | go     | float64[K]         | chance that a draft of j tokens goes on to j + 1, j = 0 .. K - 1                      |
    | rows   | int                | tokens of a text; a draft is capped at rows left - 1, no end tokens                   |
    """

    accept: np.ndarray
    move: np.ndarray
    start: np.ndarray
    go: np.ndarray
    rows: int

    @property
    def K(self) -> int:
        return len(self.go)

    def rounds(self, row: int) -> np.ndarray:
        """P[k, a, z, z']: a round from this row in state z drafts k, has a accepted and leaves z' to the next row."""
        return _rounds_of(
            self, min(self.K, self.rows - row - 1), row if len(self.accept) > 1 else 0
        )


@lru_cache(maxsize=512)  # laws hash by identity
def _rounds_of(law, cap, row):
    accept, move, Z = law.accept[row], law.move, len(law.start)
    chance, reached = np.zeros((cap + 1, cap + 1, Z, Z)), np.eye(Z)
    drafts = np.cumprod([1.0, *law.go[:cap]])
    exactly = drafts - np.append(drafts[1:], 0.0)  # P(k = j): all that reach the cap stop there
    for a in range(cap + 1):
        chance[a, a] = exactly[a] * (reached @ move)
        if a < cap:
            missed = (reached * (1 - accept[a])) @ move
            chance[a + 1 :, a] = exactly[a + 1 :, None, None] * missed
            reached = (reached * accept[a]) @ move
    return chance


def moments(law: Law, reward: np.ndarray) -> tuple[float, float]:
    """Mean and variance of the sum of reward[cap, k, a] over the rounds of one text, exact, by recursion from its end.

    reward float64[K + 1, K + 1, K + 1]: cap = min(K, rows left - 1), k drafted, a accepted.
    """
    Z = len(law.start)
    ahead = np.zeros(
        (law.rows + 1, Z, 2)
    )  # mean and second moment of what is still to come, by rows left
    for left, cap, (by_a, gain, square) in _steps(law, lambda row: _weighed(law, reward, row)):
        # After a accepted, left - 1 - a tokens remain: a = 0 .. cap counts down from left - 1.
        later = ahead[left - 1 - cap : left][::-1].reshape(-1, 2)
        ahead[left] = by_a @ later
        ahead[left, :, 0] += gain.sum(axis=1)
        ahead[left, :, 1] += square + 2 * gain @ later[:, 0]
    mean, second = law.start @ ahead[-1]
    return float(mean), max(float(second - mean * mean), 0.0)


def _weighed(law, reward, row):
    chance = law.rounds(row)  # [k, a, z, z']
    cap, Z = len(chance) - 1, len(law.start)
    weight = reward[cap, : cap + 1, : cap + 1, None, None]
    first = chance * weight
    by_a, gain = (part.sum(axis=0).transpose(1, 0, 2).reshape(Z, -1) for part in (chance, first))
    return by_a, gain, (first * weight).sum(axis=(0, 1, 3))


def _steps(law, make):
    # (rows left, cap, make(row)) from the text's end; where all rows are alike, make runs once per cap.
    known = {}
    for left in range(1, law.rows + 1):
        cap = min(law.K, left - 1)
        key = cap if len(law.accept) == 1 else left
        if key not in known:
            known[key] = make(law.rows - left)
        yield left, cap, known[key]


def interval(law: Law, reward: np.ndarray, texts: int, risk: float) -> tuple[float, float, float]:
    """(mean, low, high) of the sum over this many independent texts: it leaves [low, high] with chance risk at most.

    Chernoff: for any h > 0, P(sum >= x) <= exp(n log M(h) - h x), M the moment generating function of one text's sum, here
    exact, by recursion; low and high are where the least bound over a grid of h is risk / 2. No normal approximation.
    """
    mean, variance = moments(law, reward)
    total = texts * mean
    if variance <= 1e-14 * max(1.0, mean * mean):  # rounding of a sum that cannot vary
        return total, total, total
    reach, longest = math.log(2 / risk), law.rows * float(np.abs(reward).max())
    # Any h gives a valid bound: the grid lies about the normal law's best one, within what exp can hold.
    h = np.minimum(_GRID * math.sqrt(2 * reach / (texts * variance)), 300 / longest)
    bend = texts * (_log_mgf(law, reward, np.concatenate((h, -h))) - np.concatenate((h, -h)) * mean)
    away = (bend + reach) / np.concatenate((h, h))
    return total, total - float(away[len(h) :].min()), total + float(away[: len(h)].min())


def _log_mgf(law, reward, h):
    Z = len(law.start)
    future = np.ones((law.rows + 1, len(h), Z))

    def tilted(row):
        chance = law.rounds(row)
        cap = len(chance) - 1
        tilt = np.exp(h[:, None, None] * reward[cap, : cap + 1, : cap + 1])
        return np.einsum("hka,kazy->hzay", tilt, chance).reshape(len(h), Z, -1)

    for left, cap, weight in _steps(law, tilted):
        later = future[left - 1 - cap : left][::-1].transpose(1, 0, 2).reshape(len(h), -1, 1)
        future[left] = (weight @ later)[:, :, 0]
    return np.log(future[-1] @ law.start)
