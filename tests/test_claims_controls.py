"""Claims: controls of equal numbers, what does not count, and the papers' acceptance."""

import math
from dataclasses import replace

import numpy as np
import pytest
from documents import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec import CostModel, synthetic
from simspec.numerics.formulas import expected_committed
from simspec.papers.claim import HELD, UNDECIDED, Claim, Inputs, verdicts_on
from simspec.papers.evidence import excess, observe
from simspec.papers.printed import EESD as EESD_TABLE
from simspec.papers.printed import table_rows
from simspec.papers.recorded import MEASURED, PRICES, Recorded, Recordings
from simspec.papers.s2d import cascades
from simspec.papers.thompson import EESD_ACCEPTANCE, SYNTHETIC, VANILLA_ACCEPTANCE, raised
from simspec.papers.trees import BLIND, beam_search, one_size, sizes_by_confidence, tree_attention
from simspec.policies.fixed import fixed
from simspec.policies.trees import cape
from simspec.reports.cascades import default_thresholds
from simspec.reports.transport import iid_rate
from simspec.reports.tree_rows import NODES, ROUNDS, SECONDS, prompt_figures
from simspec.tree.policy import TreePolicy
from simspec.tree.tree import chain_tree

TRACES = ROOT / "traces"


def recorded(trace, drafter, c=0.1):
    return Recorded(f"control-{drafter}", drafter, "none", trace, CostModel.from_ratio(c, trace.K))


def verdict_of(test, *recordings, price=MEASURED):
    inputs = Inputs(Recordings(None, given=recordings))
    claim = Claim(1, "Something holds.", "EESD", "Table 1", test, (price,))
    return verdicts_on([claim], inputs)[0].verdict


def bundled(drafter, prompts=None):
    (found,) = (r for r in Recordings(TRACES, prompts).of(drafter) if r.name.endswith("coupled"))
    return found


def test_beams_count_only_where_the_search_sees_what_decides():
    coupled = bundled("eagle", 12)
    greedy = replace(
        coupled, trace=replace(coupled.trace, meta=replace(coupled.trace.meta, rule="greedy"))
    )
    for ours, reason in ((coupled, BLIND), (greedy, "")):
        (found,) = beam_search(Inputs(Recordings(None, given=(ours,))), PRICES[2])
        assert found.source.excluded == reason


@settings(max_examples=4, deadline=None)
@given(st.sampled_from(PRICES), st.integers(1, 4), st.floats(0.0, 1.0))
def test_one_size_submits_as_many_nodes_as_capes_sizes(price, size, share):
    """Chosen on the other half of the prompts, so equal but for the draw of prompts."""
    ours = bundled("glide")
    cost = price.of(ours.cost)
    figures = prompt_figures(ours.trace, cape("section", 5), cost)
    theirs, mean = one_size(ours.trace, cost, figures)
    nodes = [x[:, NODES].sum() / x[:, ROUNDS].sum() for x in (figures, theirs)]
    assert nodes[1] == pytest.approx(nodes[0], rel=0.01)
    assert 1 < mean < 7
    # the known truth: against two sizes in a known mixture, that mixture is found
    small, large = (prompt_figures(ours.trace, cape(k, 5), cost) for k in (size, size + 1))
    mixed = small + share * (large - small)
    theirs, mean = one_size(ours.trace, cost, mixed)
    assert mean == pytest.approx(size + share)
    np.testing.assert_allclose(theirs, mixed, rtol=1e-9, atol=1e-9)


def test_sizes_of_a_confidence_that_tells_nothing_do_not_win():
    """Confidences of other rows. The control: sets of 4, fewer nodes than CAPE's, lose to it."""
    ours, flat = bundled("glide"), PRICES[2]
    other = np.random.default_rng(0).permutation(ours.trace.rows)
    blind = replace(ours, trace=replace(ours.trace, feature=ours.trace.feature[other]), _kept={})
    assert verdict_of(sizes_by_confidence, ours, price=flat) == HELD
    assert verdict_of(sizes_by_confidence, blind, price=flat) == UNDECIDED

    def of_four(inputs, price):
        four, by_confidence = (
            prompt_figures(blind.trace, policy, price.of(blind.cost))[:, SECONDS]
            for policy in (cape(4, 5), cape("section", 5))
        )
        return [observe("x", blind.source, "", np.stack((four, by_confidence), -1), excess)]

    assert verdict_of(of_four, blind, price=flat) == HELD


def test_a_tree_without_siblings_is_a_chain():
    """The control: as a tree it drafts beyond the output's end, and would lose to itself."""
    ours, flat = bundled("glide"), PRICES[2]
    rank = np.where(ours.trace.rank > 0, 255, 0).astype(np.uint8)
    single = replace(ours, trace=replace(ours.trace, rank=rank), _kept={})
    (found,) = tree_attention(Inputs(Recordings(None, given=(single,))), flat)
    assert found.interval.value == pytest.approx(0.0, abs=1e-12)
    cost, tree = flat.of(single.cost), TreePolicy("one branch", "static", tree=chain_tree(2))
    seconds = [
        prompt_figures(single.trace, policy, cost)[:, SECONDS].sum() for policy in (fixed(2), tree)
    ]
    assert seconds[0] < seconds[1]


@settings(max_examples=10, deadline=None)
@given(st.floats(0.1, 0.6), st.floats(0.65, 0.95), st.integers(1, 8))
def test_raised_iid_acceptance_is_iid_at_the_new_rate(alpha, acceptance, K):
    """Committed tokens of a fixed length are (1 - a^{K+1}) / (1 - a), within 5 errors."""
    ours = recorded(synthetic.iid(alpha, 40, 250, K, seed=K), "model")
    new = raised(ours, acceptance)
    assert (new.trace.run >= ours.trace.run).all()
    assert new.excluded == SYNTHETIC
    first = (new.trace.run > 0).mean()
    assert abs(first - acceptance) < 5 * math.sqrt(acceptance * (1 - acceptance) / new.trace.rows)
    rounds = new.rounds(fixed(K))
    full = rounds.computed == K  # rounds that the end cuts are shorter
    expected = expected_committed(acceptance, K) - 1
    spread = rounds.accepted[full].std() / math.sqrt(full.sum())
    assert abs(rounds.accepted[full].mean() - expected) < 5 * spread + 1e-9
    # the control: the recording itself
    assert abs(ours.rounds(fixed(K)).accepted.mean() - expected) > 5 * spread


def test_a_recording_is_not_raised_below_its_own_acceptance():
    ours = recorded(synthetic.iid(0.9, 16, 60, 4, seed=3), "model")
    with pytest.raises(ValueError, match="acceptance is 0.9., expected at most 0.5"):
        raised(ours, 0.5)


def test_the_papers_acceptance_is_what_its_tables_imply():
    """a = r_d / (1 - r_d) accepted and k = a / v_d drafted tokens a round, printed.

    A policy that goes on with probability s = 1 - 1 / k accepts alpha / (1 - alpha s) tokens.
    """
    implied = {"Beta-TS": [], "Cali-TS": [], "vanilla": []}
    for _, _, method, _, v_d, r_d, *_ in table_rows(EESD_TABLE):
        if method in implied:
            a = float(r_d) / (1 - float(r_d))
            stay = 1 - float(v_d) / a
            alpha = a / (1 + stay * a)
            if method == "vanilla":
                alpha = float(iid_rate(a + 1, 10))
            implied[method].append(alpha)
    for method in ("Beta-TS", "Cali-TS"):
        assert EESD_ACCEPTANCE[0] <= np.median(implied[method]) <= EESD_ACCEPTANCE[1]
    assert np.median(implied["vanilla"]) == pytest.approx(VANILLA_ACCEPTANCE[0], abs=0.02)


def test_cascades_choose_from_low_thresholds_and_from_high_ones():
    """S2D's Figure 3 has thresholds on both sides of 0.5."""
    assert default_thresholds(3)[:3] == [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]
    assert [a for a, b in cascades(3) if a == b] == pytest.approx(np.arange(1, 20) / 20)
    assert len(cascades(3)) == 19
