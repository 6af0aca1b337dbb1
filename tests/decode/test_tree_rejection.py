"""Trees under the rejection rule: why ratios do not give their acceptance, and refusals."""

from dataclasses import replace

import pytest
import torch
from branches import output_distribution
from shell import refused
from strategies import drawn_recording

from real.decode.verify import rejection_sample
from real.draft import Draft
from real.sampling import Rule
from simspec import TraceError, policies
from simspec.numerics.rng import DRAFT
from simspec.reports.trees import compare_trees
from simspec.tree.replay import check_trace, replay_tree

P = [0.5, 0.5, 0.0, 0.0]
NARROW, WIDE = [0.25, 0.75, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]
"""Drafters with the same q of token 0, so with the same ratio min(1, q / p) = 1 / 2."""


def chance(q, children: int) -> float:
    """P(token 0 is accepted as one of a node's children, given that it is emitted), enumerated."""
    rule, q = Rule("rejection"), torch.tensor(q, dtype=torch.float64)
    logits = torch.tensor([P] * (children + 1), dtype=torch.float64).log()

    def one(draws):
        left, token = q.clone(), [0]
        for child in range(children):
            if not float(left.sum()) > 0:
                break
            token.append(draws.sample(left, 0, child + 1, DRAFT))
            left[token[-1]] = 0
        draft = Draft(token, [-1] + [0] * (len(token) - 1), 1, 0, {0: q})
        verified = rejection_sample(rule, logits[: len(token)], draft, draws, 0, ())
        return verified.token[0], verified.accepted

    distribution = output_distribution(one)
    emitted = sum(odds for (token, _), odds in distribution.items() if token == 0)
    assert emitted == pytest.approx(P[0], abs=1e-12)
    return distribution.get((0, 1), 0.0) / emitted


def test_the_ratio_is_the_chance_of_a_single_child():
    for q in (NARROW, WIDE):
        assert chance(q, 1) == pytest.approx(0.5, abs=1e-12)


def test_equal_ratios_have_siblings_of_unequal_chance():
    """So no function of the recorded ratio replays a tree exactly."""
    assert chance(NARROW, 2) == pytest.approx(1, abs=1e-12)
    assert chance(WIDE, 2) == pytest.approx(5 / 6, abs=1e-12)


def test_trees_are_refused_with_the_reason(tmp_path):
    trace = drawn_recording(0)
    for text in ("static:2x1", "static:1x1", "cape"):
        with pytest.raises(TraceError, match="chance of a single child"):
            check_trace(trace, policies.parse(text))
    with pytest.raises(TraceError, match="of the rejection rule"):
        replay_tree(trace, policies.parse("static:2"))
    meta = replace(trace.meta, end_tokens=())
    replace(trace, meta=meta).save(tmp_path / "drawn.parquet")
    for command in (
        ("sweep", "drawn.parquet", "--cost", 0.1, "--policy", "static:2x1"),
        ("run", "drawn.parquet", "--policy", "static:2x1"),
    ):
        refused(tmp_path, *command, words="of the rejection rule")
    refused(tmp_path, "run", "drawn.parquet", "--policy", "beam:2", words="no policy of chains")


def test_tree_tables_hold_chains_alone_and_say_why():
    rows, notes = compare_trees({"drawn": drawn_recording(0)}, resamples=200)
    assert rows
    assert not any(row.policy.startswith(("optimal", "full", "dynamic", "cape")) for row in rows)
    left_out = " ".join(note for note in notes if "without" in note)
    for name in ("optimal_tree", ",full", ",medusa", "dynamic_tree", "cape"):
        assert name in left_out
    assert left_out.count("chance of a single child") == 1
