"""tools/papers.py: recordings along another's outputs are those that a recorder would make."""

import numpy as np
import papers
import pytest
from toy_lm import TOYS, toy_recording, toy_sorted

from real.train.evaluation import summary
from simspec import replay
from simspec.papers import Recordings
from simspec.policies.fixed import fixed
from simspec.trace.exits import cascade

pytestmark = pytest.mark.usefixtures("bare_axes")


@pytest.mark.parametrize(
    "name, rule", [(name, ("greedy", "coupled")[i % 2]) for i, name in enumerate(TOYS)]
)
def test_a_drafter_is_recorded_along_a_recording_as_it_was(name, rule):
    trace, target, drafter = toy_recording(name, rule)
    trace = trace.select(range(0, trace.sequences, 2))
    again = papers.along(target.decoder, drafter, trace, trace.K)
    assert again.run.tolist() == trace.run.tolist()
    assert again.depth.tolist() == trace.depth.tolist()
    assert again.run[1:].tolist() != trace.run[:-1].tolist()  # the control
    assert replay(again, fixed(3)) == replay(trace, fixed(3))
    lengths = papers.lengths_of(again, trace.K)
    assert np.concatenate(lengths.accepted).tolist() == trace.run.tolist()
    assert all((a <= b).all() for a, b in zip(lengths.accepted, lengths.offered))


def test_exits_along_a_recording_give_it_at_all_thresholds():
    trace, target, drafter = toy_recording("sorted", "coupled")
    kept = papers.along(target.decoder, drafter, trace, 4).select(np.arange(0, 10, 3))
    exits = papers.exits_along(target.decoder, drafter, trace, kept)
    own, _ = cascade(kept, exits, drafter.cascade.threshold)
    assert own.run.tolist() == kept.run.tolist()
    other = toy_sorted(0, (0.2, 0.9))
    again = papers.along(target.decoder, other, trace, 4).select(np.arange(0, 10, 3))
    derived, _ = cascade(kept, exits, (0.2, 0.9))
    assert derived.run.tolist() == again.run.tolist()
    assert derived.run.tolist() != kept.run.tolist()


def test_a_card_holds_the_lengths_of_shorter_drafts():
    trace, target, drafter = toy_recording("eagle", "coupled")
    deep, short = (papers.along(target.decoder, drafter, trace, K) for K in (6, 4))
    found = papers.recorded(deep, "toy", 4)
    lengths = papers.lengths_of(short, 4)
    assert {key: found[key] for key in summary(lengths)} == summary(lengths)
    assert found["by_sequence"] == lengths.by_sequence()


def test_every_card_that_tables_read_is_named():
    cards = {path.stem for path in (Recordings().folder / "ablations").glob("*.json")}
    assert cards == set(papers.ABLATIONS)
    written = [name for name, (*_, share) in papers.ABLATIONS.items() if share]
    assert len(papers.commands(["x.txt"], "models")) == len(written)
