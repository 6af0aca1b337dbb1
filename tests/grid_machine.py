"""Latency grids measured on a simulated machine, where every capture takes known seconds."""

import torch

from real.measure import grid_timer, time_grid
from real.measure.device_limits import DeviceSpeeds, Quantiles
from real.measure.latency_grid import GridAxes, GridSettings
from real.measure.time_grid import measure_grid
from real.model.random_models import read_shape
from simspec.cost.shapes import ModelShape

TINY = read_shape("2x16x2x24")
SHARED = ModelShape("shared", 2, 16, 4, 2, 4, 24, 30)
SPEEDS = DeviceSpeeds(Quantiles(1e9, 9e8, 1.1e9), Quantiles(1e10, 9e9, 1.1e10))
DRAFTERS = ("early_exit:1", "eagle", "medusa", "model:1x8x1x24")


class Machine:
    """Captures the n-th pass as one that takes seconds[n][turn]; the turn before is very long."""

    def __init__(self, seconds):
        self.seconds, self.time, self.ran, self.functions = seconds, 0.0, [], []

    def capture(self, function, device, pool=None):
        n, turns = (
            len(self.functions),
            iter([1e6, *self.seconds[len(self.functions) % len(self.seconds)]]),
        )
        self.functions.append(function)

        def replay():
            self.ran.append(n)
            self.time += next(turns)

        return replay

    def now(self):
        return self.time


def simulate(monkeypatch):
    """A machine in place of captures and of the device's limits."""
    machine = Machine([[0.5 * (n + 1), 0.25 * (n + 1), 4.0 * (n + 1)] for n in range(100)])
    monkeypatch.setattr(grid_timer, "capture", machine.capture)
    monkeypatch.setattr(time_grid, "device_speeds", lambda *_, **__: SPEEDS)
    return machine


def on_cpu(repeats=3, **changes):
    """Settings of float32 models on the CPU."""
    return GridSettings(torch.float32, "cpu", repeats, **changes)


def small(machine=None, widths=(1, 2, 4), batches=(1, 3), contexts=(0, 8), **changes):
    job = {name: changes.pop(name) for name in ("measured", "save", "progress") if name in changes}
    settings = on_cpu(**{"repeats": 3} | changes)
    timer = machine.now if machine else None
    return measure_grid(TINY, GridAxes(widths, batches, contexts), settings, timer=timer, **job)
