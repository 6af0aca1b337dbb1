"""Bundled costs are fit to publish: with intervals, without warnings, and no pass handicapped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real.engines.measure import DRAWS
from real.measure.estimate import KEPT, faster_wider, faster_wider_warning
from simspec.cost.table import CostTable, load_cost

TRACES = Path(__file__).parents[2] / "traces"
ENGINES = TRACES / "smollm2" / "engines"
RELEASED = sorted(ENGINES.glob("*.cost.json"))
"""Costs of released engines: their plain pass is what their users get, fair or not."""
FILES = sorted(
    {*TRACES.glob("tiny-*.cost.json"), *TRACES.glob("smollm2/*/*.cost.json")} - {*RELEASED}
)


def identify(path):
    return str(path.relative_to(TRACES)).removesuffix(".cost.json")


TIMED = TRACES / "smollm2" / "h200" / "smollm2-prompt_lookup-greedy.cost.json"
"""Costs whose recording is greedy/prompt_lookup: the GPU's time was over before its own."""


def test_every_recording_has_its_costs():
    recordings = [
        *TRACES.glob("tiny-*.parquet"),
        *(path for path in TRACES.glob("smollm2/*/*.parquet") if path.parent != ENGINES),
    ]
    assert sorted([TIMED, *(path.with_suffix(".cost.json") for path in recordings)]) == FILES


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_no_bundled_cost_warns_or_lacks_its_replicates(path):
    cost = load_cost(path)
    assert cost.precision.warnings == ()
    assert len(cost.replicates) == KEPT
    assert cost.precision.blocks > 0
    assert cost.precision.disturbed <= cost.precision.blocks / 2


@pytest.mark.parametrize("path", RELEASED, ids=identify)
def test_costs_of_a_released_engine_warn_where_a_wider_pass_is_faster(path):
    """`tests/test_smollm2.py` holds that the page shows the warning."""
    cost = load_cost(path)
    sizes = cost.batch if isinstance(cost, CostTable) else (None,)
    for cell in (cost.at(size) if size else cost for size in sizes):
        warned = [text for text in cell.warnings if "speedups may exceed tokens a pass" in text]
        assert list(cell.warnings) == warned
        assert cell.precision.disturbed <= cell.precision.blocks / 2
        assert len(warned) == (faster_wider(cell) is not None)
        assert len(cell.replicates) == DRAWS


def test_some_released_engine_warns_and_some_does_not():
    assert {load_cost(path).warnings == () for path in RELEASED} == {True, False}


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_no_pass_is_slower_than_a_wider_one(path):
    cost = load_cost(path)
    assert faster_wider_warning(cost) == []
    rows = np.array(cost.precision.replicates["verify"])
    rows[:, 0] *= 1.5 * rows.mean() / rows[:, 0].mean()
    handicapped = {**cost.precision.replicates, "verify": rows.tolist()}
    control = replace(cost, precision=replace(cost.precision, replicates=handicapped))
    assert len(faster_wider_warning(control)) == 1


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_no_modeled_speedup_of_a_fixed_length_exceeds_its_tokens_a_round(path):
    cost = load_cost(path)
    rounds = cost.draft + cost.verify[: cost.K + 1] + cost.overhead
    assert (rounds >= 0.98 * cost.baseline).all()
