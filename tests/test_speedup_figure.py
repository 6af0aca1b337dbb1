"""The figure of modeled speedups: a point with its interval for every policy."""

import pytest

from real.bench.figures import draw_speedups
from simspec.numerics.stats import Estimate


@pytest.mark.parametrize("low, high", [(0.9, 1.2), (1.0 + 1e-15, 1.0), (1.0, 1.0 - 1e-15)])
def test_ends_of_intervals_may_lie_beyond_the_value_by_rounding(tmp_path, low, high):
    intervals = {"recording": {"fixed:0": Estimate(1.0, low, high, 0.95, 5)}}
    path = tmp_path / "figure.png"
    for ends in ((low, high), (None, None)):
        draw_speedups(intervals, {"recording": ("fixed:0", 1.01, *ends)}, path)
        assert path.read_bytes().startswith(b"\x89PNG")
