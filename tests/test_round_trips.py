"""What `simspec export` writes and `simspec import` reads comes back, as far as the format goes.

Spec-Bench's answers are the one format that both have: rounds, without their draft lengths.
"""

import numpy as np
import pytest

from simspec import CostModel, policies, replay, synthetic
from simspec.exports import spec_bench
from simspec.imports.formats import read_import
from simspec.imports.options import ImportOptions


def exported(folder, trace, k):
    cost = CostModel.from_ratio(0.25, trace.K)
    answers = spec_bench.replayed_answers(trace, policies.fixed(k), cost)
    path = folder / "answers.jsonl"
    path.write_text(spec_bench.answers_text(answers), encoding="utf-8")
    return path, replay(trace, policies.fixed(k), 0, cost)


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("acceptance", [0.3, 0.9])
def test_rounds_of_exported_answers_are_imported(tmp_path, k, acceptance):
    trace = synthetic.iid(acceptance, 7, 30, 5, k)
    path, rounds = exported(tmp_path, trace, k)
    found = read_import("spec-bench", path, ImportOptions(drafted=k))
    assert found.accepted.tolist() == rounds.accepted.tolist()
    assert found.offset.tolist() == rounds.offset.tolist()
    assert len(found.ids) == trace.sequences
    assert (found.drafted == k).all()  # stated by the user: the format holds no draft length
    assert (np.minimum(rounds.drafted, found.drafted) == rounds.drafted).all()


def test_another_recording_is_noticed(tmp_path):
    """Control."""
    path, _ = exported(tmp_path, synthetic.iid(0.6, 7, 30, 5, 1), 3)
    other = replay(synthetic.iid(0.6, 7, 30, 5, 2), policies.fixed(3))
    found = read_import("spec-bench", path, ImportOptions(drafted=3))
    assert found.accepted.tolist() != other.accepted.tolist()
