"""A machine whose clock only layers advance, so that every figure is known."""

from functools import lru_cache

import toy_lm

from real.model.decoder import DecoderLayer

LAUNCH, ROW = 1.0, 1 / 64
"""Seconds of a layer, and of a row in it; exact in binary."""


TARGET, SHARED = 4, 2
"""Layers of the toy target, and those before its exit."""


# Toys that are taught here see layers that may not compute: other tests must not get them.
HERE = {name: lru_cache(getattr(toy_lm, name).__wrapped__) for name in ("toy_texts", "part_of")}


class Machine:
    """A clock that advances only while a layer passes rows.

    Layers take `slowness()` times as long as they should. Where they do not, all plain steps are
    alike, and one measures the machine's pace. computes: where only the clock is read, `stand_in`
    is as good as layers that compute.
    """

    def __init__(self, monkeypatch, slowness=None, computes=True):
        self.time, self.slowness = 0.0, slowness or (lambda: 1.0)
        self.computes = computes
        for name, cached in HERE.items():
            monkeypatch.setattr(toy_lm, name, cached)
        for name in ("attend", "mlp"):
            monkeypatch.setattr(DecoderLayer, name, self._counted(getattr(DecoderLayer, name)))
        monkeypatch.setattr("real.decode.verify.perf_counter", self.now)

    def _counted(self, half):
        def counted(layer, x, *rest, **options):
            self.time += self.slowness() * (LAUNCH + ROW * x.shape[0] * x.shape[1]) / 2
            return half(layer, x, *rest, **options) if self.computes else stand_in(x, *rest)

        return counted

    def now(self) -> float:
        return self.time


def stand_in(x, rotation=None, *rest):
    """Half a layer in a few operations: rows that depend on their token, position and depth.

    So drafters agree with the target often, not always, as those of real layers do.
    """
    return x if rotation is None else x + 2 * x.roll(1, -1) + rotation[0][..., :1]


def layers(count, rows):
    return count * (LAUNCH + ROW * rows)
