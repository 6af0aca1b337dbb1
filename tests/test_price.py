"""What costs of a sitting say about it: warnings of the machine and of cells that stayed wide."""

from types import SimpleNamespace

import pytest
from test_medians import skewed
from toy_lm import toy_pair

from real.measure import MeasureSettings
from real.measure.price import Entry, LoopPrices
from real.measure.sitting import Sitting
from real.sampling import Rule


@pytest.mark.parametrize("paces, busy", [([1.0, 1.0, 1.0, 3.0], True), ([1.0] * 4, False)])
def test_costs_carry_the_warnings_of_their_own_cells(paces, busy):
    prices = object.__new__(LoopPrices)
    prices.settings = MeasureSettings(context=(24,))
    prices.samples = dict(zip(("greedy target", "model-greedy"), skewed()))
    prices.pace = SimpleNamespace(seconds=paces, share=0.75)
    wide = {"model-greedy fixed 1": 0.5} if busy else {}
    sitting = Sitting(1, 4.0, 2.0 if busy else 4.0, wide | {"eagle-greedy fixed 1": 0.5})
    entry = Entry(*toy_pair("model"), Rule(), 2)
    warnings = prices.cost(entry, 24, sitting).precision.warnings
    if not busy:
        assert warnings == ()
        return
    machine, cells = warnings
    assert "2.40 times the 10th, of which the fast 75% count" in machine
    assert "this process ran 50% of the time" in machine
    assert cells.startswith("1 cells are wider than +-2%: model-greedy fixed 1 +-50.0%")
