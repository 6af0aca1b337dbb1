"""The recordings that tables of the papers need beside the bundled ones: small, and of one text."""

import numpy as np
import pytest
from ablation_data import record_along
from documents import ROOT
from record_for_papers import RECORDED

from real.pair import TINY, load_pair
from simspec import replay
from simspec.papers.recorded import Recordings
from simspec.policies.fixed import fixed
from simspec.trace.trace import load_trace

FOLDER = ROOT / "traces" / "papers"
FILES = sorted(FOLDER.glob("*.parquet"))
MOST_BYTES = 160_000


def bundled(trace):
    meta = trace.meta
    return load_trace(ROOT / "traces" / f"tiny-{meta.drafter}-{meta.rule}.parquet")


def test_they_are_small_and_complete():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES
    names = [f"{name}-{rule}" for name, (*_, rules) in RECORDED.items() for rule in rules]
    assert sorted(names) == [path.stem for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_goes_on_where_the_bundled_one_of_its_text_ends(path):
    trace = load_trace(path)
    shorter = bundled(trace)
    K = min(trace.K, shorter.K)
    for name in ("token", "offset", "budget", "sequence"):
        assert np.array_equal(getattr(trace, name), getattr(shorter, name))
    assert trace.meta.tasks == shorter.meta.tasks
    for name in ("run", "depth"):
        ours, theirs = (np.minimum(getattr(t, name), K) for t in (trace, shorter))
        assert np.array_equal(ours, theirs)
    assert replay(trace, fixed(K)) == replay(shorter, fixed(K))
    assert not np.array_equal(trace.run[1:], shorter.run[:-1])  # the control


@pytest.mark.parametrize("path", [p for p in FILES if "beam" in p.stem], ids=lambda path: path.stem)
def test_beams_are_as_wide_and_deep_as_the_papers(path):
    """4 or 8 wide and 5 deep: hypotheses of at most width x levels nodes, all in their tree."""
    trace = load_trace(path)
    width, levels = trace.meta.tree
    assert (width, levels) in ((4, 5), (8, 5))
    assert trace.beam[:, 1].max() <= width * levels
    assert (trace.beam[:, 0] <= np.minimum(trace.beam[:, 1], levels)).all()
    whole = (trace.order < 255).sum(axis=1)
    assert (trace.beam[:, 0] <= whole).all()


def test_deeper_recordings_are_priced_by_the_last_step():
    recordings = Recordings(ROOT / "traces", 12)
    (shallow,) = (r for r in recordings.of("self_skip") if r.rule == "coupled")
    (deep,) = (r for r in recordings.deep("self_skip", 10) if r.rule == "coupled")
    assert (shallow.trace.K, deep.trace.K) == (8, 10)
    assert deep.name == "papers/self_skip-k10-coupled"
    assert np.array_equal(deep.trace.token, shallow.trace.token)
    assert np.array_equal(deep.cost.draft[:9], shallow.cost.draft)
    assert np.diff(deep.cost.draft)[-3:] == pytest.approx(np.diff(shallow.cost.draft)[-1])
    assert np.array_equal(deep.cost.verify, shallow.cost.verify)


def test_a_recording_that_is_deep_enough_stays():
    recordings = Recordings(ROOT / "traces", 12)
    assert recordings.deep("model", 10) == recordings.of("model")
    assert recordings.deep("self_skip", 8) == recordings.of("self_skip")
    assert [r.trace.K for r in recordings.deep("medusa", 10)] == [4] * 4
    assert recordings.further("medusa", "k10") == []
    assert Recordings(None).further("glide", "beam4") == []


@pytest.mark.parametrize("name", ["self_skip-k10-greedy", "glide-beam4-coupled"])
def test_recorded_again_they_are_the_same(name):
    trace = load_trace(FOLDER / f"{name}.parquet")
    few = np.array([5, 77])
    pair = load_pair(TINY, trace.meta.drafter)
    again = record_along(
        pair.target.decoder, pair.drafter, bundled(trace).select(few), trace.K, tree=trace.meta.tree
    )
    stored = trace.select(few)
    for array in ("run", "depth", *(("order", "beam") if trace.meta.tree else ())):
        assert np.array_equal(getattr(again, array), getattr(stored, array)), array
