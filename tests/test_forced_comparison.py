"""Forced runs are compared with the recorded accepted lengths, whatever the replay's rounds."""

import numpy as np
import pytest

from real.audit.forced_decoding import ForcedComparison, compare_forced
from real.decode.loop import DecodeResult
from simspec import policies, replay, synthetic

TRACE = synthetic.iid(0.6, 3, 30, 4)


def ran(rounds):
    """Results with the rounds of a replay."""
    results = []
    for s in range(TRACE.sequences):
        part, token = rounds.select([s]), TRACE.token[TRACE.offset[s] : TRACE.offset[s + 1]]
        results.append(
            DecodeResult(
                token=token,
                position=part.row - TRACE.offset[s],
                computed=part.computed,
                drafted=part.drafted,
                accepted=part.accepted,
                seconds=np.zeros((len(part), 4)),
                gap=np.full(len(part), np.inf),
            )
        )
    return results


def test_rounds_are_equal_where_the_recording_says_so():
    rounds, other = (replay(TRACE, policies.parse(text)) for text in ("fixed:3", "fixed:1"))
    compared = compare_forced(TRACE, other, ran(rounds))
    assert compared.equal == compared.rounds == len(rounds)
    assert compared.draft_flips == ()
    assert compared.replayed < compared.rounds
    assert compare_forced(TRACE, rounds, ran(rounds)).replayed == len(rounds)


@pytest.mark.parametrize("equal, sound", [(97, True), (96, False)])
def test_three_rounds_of_a_hundred_may_differ(equal, sound):
    assert ForcedComparison(100, equal, 0, 200, (), ()).sound == sound
