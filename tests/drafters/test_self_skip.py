"""Self-speculative drafts leave out sub-layers of the target; the search for which."""

import copy
import itertools
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_catch_up import _begin
from toy_lm import END, RULES, toy_decoder, toy_prompts
from toy_skips import DECODER, LAYERS, SKIPS, SOME, pair
from toy_training import asked, drafter_data

from real.drafters.self_skip import SkipConfig
from real.model.passes import BranchCache
from real.model.target import Target
from real.record import Settings
from real.record.recorder import record_sequence
from real.record.sequences import target_sequence
from real.train import skip_search as skips
from real.train.evaluation import card_lines
from real.train.skip_search import SkipPrice, measured_price, search_skips
from simspec.numerics.formulas import expected_speedup, optimal_k


def draft(drafter, count):
    steps = [drafter.next() for _ in range(count)]
    assert [s.parent for s in steps] == list(range(count))
    return (
        [s.token for s in steps],
        torch.stack([s.logits for s in steps]),
        torch.stack([s.hidden for s in steps]),
    )


def muted(decoder, skipped):
    """A decoder whose skipped sub-layers add nothing: the same function, by another way."""
    silenced = copy.deepcopy(decoder)
    for i in skipped.attention:
        silenced.layers[i].output.weight.zero_()
    for i in skipped.mlp:
        silenced.layers[i].down.weight.zero_()
    return silenced


@settings(deadline=None, max_examples=40)
@given(SKIPS, st.integers(0, 99))
def test_drafts_skip_sublayers_on_the_full_cache(skipped, seed):
    text = toy_prompts(1, seed)[0] + [5, 9, 11]
    target, drafter = pair(skipped)
    _begin(drafter, target, text)
    tokens, logits, hidden = draft(drafter, 5)
    other = Target(DECODER, capacity=64)
    other.prefill(text[:-1])
    other.decoder = muted(DECODER, skipped)
    for token, wanted, state in zip([text[-1], *tokens], logits, hidden):
        output = other.verify([token], [-1])
        other.commit([0])
        torch.testing.assert_close(output.logits[0], wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(output.hidden[0], state, rtol=0, atol=1e-12)


def test_control_cache_of_skipped_passes_differs():
    text = toy_prompts(1, 3)[0] + [5, 9, 11]
    target, drafter = pair(SOME)
    _begin(drafter, target, text)
    other = Target(muted(DECODER, SOME))
    other.prefill(text[:-1])
    assert (other.verify([text[-1]], [-1]).logits[0] - draft(drafter, 1)[1][0]).abs().max() > 1e-3


def test_no_skips_draft_the_targets_sequence():
    target, drafter = pair(SkipConfig())
    for rule in RULES.values():
        assert_own(target, drafter, Settings(6, 24, rule, END, ()))


def assert_own(target, drafter, how):
    for i, prompt in enumerate(toy_prompts(6)):
        rows = record_sequence(target, drafter, how, prompt, i)
        left = len(rows.token) - np.arange(len(rows.token))
        assert (rows.run == np.minimum(np.minimum(left, how.K), rows.depth)).all()
        assert (rows.rank == 0).all()


ALL = tuple(range(LAYERS))


@lru_cache
def own_texts(decoder=DECODER, count=8, budget=16):
    how = Settings(6, budget, RULES["greedy"], END)
    return [
        (p, target_sequence(Target(decoder), how, p, i)[0].tolist())
        for i, p in enumerate(toy_prompts(count))
    ]


def first_slots(skipped):
    """Per position of every sequence: whether the drafter's first token is the target's."""
    target, drafter = pair(skipped)
    how = Settings(1, 16, RULES["greedy"], END, ())
    rows = [
        record_sequence(target, drafter, how, prompt, i, stepwise=True)
        for i, (prompt, _) in enumerate(own_texts())
    ]
    return np.concatenate([r.run for r in rows])


@settings(deadline=None, max_examples=10)
@given(SKIPS)
def test_acceptance_equals_the_drafters_first_slots(skipped):
    assert (
        skips.acceptance(DECODER, skipped, skips.prepared(DECODER, own_texts()))
        == first_slots(skipped).mean()
    )


class Shifted(BranchCache):
    """Branches that also see their own row as the full pass left it."""

    def __init__(self, sequence, rows, prefix):
        super().__init__(sequence, rows, prefix)
        self.visible = (torch.arange(rows) <= prefix[:, None])[:, None]


def test_control_visible_own_full_row_changes_acceptance(monkeypatch):
    settings = [SkipConfig((i,), (j,)) for i in range(LAYERS) for j in range(LAYERS)]
    ready = skips.prepared(DECODER, own_texts())
    right = [skips.acceptance(DECODER, s, ready) for s in settings]
    monkeypatch.setattr("real.drafters.self_skip.BranchCache", Shifted)
    wrong = [skips.acceptance(DECODER, s, ready) for s in settings]
    assert sum(a != b for a, b in zip(wrong, right)) > 4


@given(st.floats(0, 1), st.floats(0, 2), st.integers(1, 32))
def test_best_length_follows_formula_1(alpha, c, K):
    k, speedup = SkipPrice(0.0, 0.0, 0.0, (1.0,) * (K + 1)).best_length(alpha, c)
    assert 1 <= k <= K
    every = expected_speedup(alpha, np.arange(1, K + 1), c)
    assert speedup == pytest.approx(expected_speedup(alpha, k, c), rel=1e-12)
    assert speedup == pytest.approx(every.max(), rel=1e-12)
    assert speedup <= 1 + 1e-12 or optimal_k(alpha, c, K) == k


class WeightPrice(SkipPrice):
    """A draft step costs the share of the weights that it reads: few settings have one cost."""

    def step(self, decoder, skipped):
        return weight_share(decoder, skipped)


def weight_share(decoder, skipped):
    layers = decoder.layers
    attention = [sum(p.numel() for m in (x.query, x.key, x.value, x.output) for p in m.parameters())
                 for x in layers]  # fmt: skip
    mlp = [sum(m.weight.numel() for m in (x.gate, x.up, x.down)) for x in layers]
    whole = sum(attention) + sum(mlp) + decoder.head.weight.numel()
    left_out = sum(attention[i] for i in skipped.attention) + sum(mlp[i] for i in skipped.mlp)
    return (whole - left_out) / whole


SMALL = toy_decoder(1, layers=3, spread=0.5)


def test_search_finds_the_enumerated_optimum():
    texts = own_texts(SMALL)
    subsets = [s for n in range(4) for s in itertools.combinations(range(3), n)]
    every = [SkipConfig(a, m) for a in subsets for m in subsets]
    price = WeightPrice(0.0, 0.0, 0.0, (1.0,) * 9)
    scores = {
        s: price.best_length(
            skips.acceptance(SMALL, s, skips.prepared(SMALL, texts)), weight_share(SMALL, s)
        )[1]
        for s in every
    }
    ranked = sorted(scores.values(), reverse=True)
    assert ranked[0] > 1.05
    assert ranked[0] > ranked[8]
    for seed in range(3):
        trials = skips.find(SMALL, texts, price, 60, seed)
        assert skips.best_trial(trials).speedup >= ranked[2]
        assert all(t.speedup == scores[t.skips] for t in trials)
        assert trials[0].skips == SkipConfig()
        assert trials[0].speedup == 1


DEAR = SkipPrice(0.3, 0.05, 0.05, (1.0, 1.5, 2.0, 2.5))


def test_dear_verification_shortens_drafts_and_lowers_the_promise():
    free = SkipPrice(0.3, 0.05, 0.05, (1.0,) * 4)
    assert free.step(DECODER, SOME) == DEAR.step(DECODER, SOME) == pytest.approx(0.3 + 5 * 0.05)
    assert free.best_length(0.9, 0.1) == (3, pytest.approx(expected_speedup(0.9, 3, 0.1)))
    assert DEAR.best_length(0.9, 0.1) == (2, pytest.approx((1 + 0.9 + 0.81) / 2.2))
    assert DEAR.best_length(0.5, 0.1)[0] == 1
    assert DEAR.best_length(0.5, 0.1)[1] < 1, "plain decoding is faster"


def test_search_takes_the_setting_that_its_price_favours():
    texts, every = own_texts(SMALL), []
    price = SkipPrice(0.4, 0.01, 0.19, (1.0, 1.1, 1.2, 1.3))
    trials = skips.find(SMALL, texts, price, 40, 1)
    for trial in trials:
        c = price.step(SMALL, trial.skips)
        every.append(price.best_length(trial.acceptance, c)[1])
        assert trial.cost == pytest.approx(c)
    found = skips.best_trial(trials)
    assert found.speedup == pytest.approx(max(every))
    assert 1 <= found.k <= 3
    even = SkipPrice(0.0, 1 / 6, 1 / 6, (1.0,) * 4)
    blind = skips.best_trial(skips.find(SMALL, texts, even, 40, 1))
    c = price.step(SMALL, blind.skips)
    assert found.speedup >= price.best_length(blind.acceptance, c)[1]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=9),
    st.integers(1, 3),
)
def test_replay_equals_rounds_by_hand(rows, k):
    spent, tokens = 0.0, 0
    for row in rows:
        left = list(row)
        while left:
            drafted = min(k, len(left) - 1)
            spent += 0.2 * drafted + DEAR.verify[drafted]
            left = left[min(left[0], drafted) + 1 :]
        tokens += len(row)
    found = DEAR.replay([np.array(row) for row in rows], k, 0.2)
    assert found["value"] == pytest.approx(tokens / spent, abs=1e-4)
    assert (found["low"] is None) is (len(rows) < 8)


def test_measured_price_is_of_the_target_itself():
    price = measured_price(DECODER, 3, context=8, repeats=3)
    assert price.verify[0] == 1
    assert len(price.verify) == 4
    assert min(price.fixed, price.attention, price.mlp) >= 0
    whole, none = price.step(DECODER, SkipConfig()), price.step(DECODER, SkipConfig(ALL, ALL))
    assert none == price.fixed <= whole


def test_card_holds_the_promise_beside_its_replay(tmp_path):
    data, few = drafter_data(), {"trials": 6, "texts": 4}
    card = search_skips(asked("self_skip", tmp_path, few), data)
    found = card["search"]
    assert card["asked"]["price"] == "measured"
    assert set(found["price"]) == {"fixed", "attention", "mlp", "verify"}
    assert card["replay"]["k"] == found["k"]
    line = next(line for line in card_lines(card) if "promised" in line)
    assert f"speedup {found['score']:.2f} promised by the search at K = {found['k']}" in line
    assert "both priced by measured seconds" in line
    assert search_skips(asked("self_skip", tmp_path, few), data) == card
    for odd in ({"trials": 0}, {"rate": 1}, {"seed": True}, {"texts": "many"}, {"price": "layers"}):
        with pytest.raises(ValueError, match="self_skip cannot be searched with"):
            search_skips(asked("self_skip", tmp_path, odd), data)


@pytest.mark.parametrize(
    "texts, trials", [([], 3), ([([], [4])], 3), ([([4], [5]), ([4], [])], 3), ([([4], [5])], 0)]
)
def test_empty_search_is_refused(texts, trials):
    with pytest.raises(ValueError, match="expected"):
        skips.find(SMALL, texts, DEAR, trials)
