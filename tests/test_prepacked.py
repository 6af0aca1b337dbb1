"""Tuned layers: the same products in the fastest way, which is chosen by timing every way."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toy_lm import toy_pair, toy_target

from real.decode.engine import attach_engine, make_passes, tune_models
from real.draft import Drafter
from real.model import prepacked
from real.model.draft_vocabulary import DraftVocabularyHead
from real.model.prepacked import (
    PACKED,
    PLAIN,
    TIMED_ROWS,
    TunedLinear,
    Way,
    Ways,
    choose_ways,
    multiplies_bfloat16,
    tune,
    ways_of,
)

DTYPES = [torch.float32, *[torch.bfloat16] * multiplies_bfloat16("cpu")]
BOTH = PLAIN, PACKED


def layer(dtype=torch.float32, bias=True, ways=None):
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias).to(dtype)
    return plain, TunedLinear(plain, ways or Ways(BOTH))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_products_equal_those_of_the_plain_layout_in_every_way(dtype, bias):
    plain, tuned = layer(dtype, bias)
    assert tuned.weight is plain.weight
    for rows in (1, 3, 4, 9, 65):
        for shape in ((rows, 48), (1, rows, 48), (rows, 1, 48)):
            x = torch.randn(shape, dtype=dtype)
            for way in [Way(layout, wide) for layout in BOTH for wide in (rows, rows + 5)]:
                with torch.inference_mode():
                    torch.testing.assert_close(
                        tuned.multiply(x, rows, way),
                        plain(x),
                        rtol=2e-2 if dtype is torch.bfloat16 else 1e-5,
                        atol=1e-2 if dtype is torch.bfloat16 else 1e-6,
                    )


class Clock:
    """Time that products take by a table: seconds(layout, rows)."""

    def __init__(self, monkeypatch, seconds):
        self.time, self.seen = 0.0, []

        def product(linear, x, layout):
            self.time += seconds(layout, x[..., 0].numel())
            self.seen.append((layout, x[..., 0].numel()))
            return torch.zeros(*x.shape[:-1], linear.out_features)

        monkeypatch.setattr(TunedLinear, "_product", product)

    def now(self):
        return self.time


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(1, 9), min_size=2 * len(TIMED_ROWS), max_size=2 * len(TIMED_ROWS)),
    st.sampled_from([(PLAIN,), BOTH]),
)
def test_no_pass_is_slower_than_a_wider_one_by_more_than_the_gain(values, layouts):
    """Whatever the library's times: the chosen way costs no more than any way of as many rows."""
    keys = [(layout, n) for layout in BOTH for n in TIMED_ROWS]
    table = dict(zip(keys, values))
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock(patched, lambda layout, rows: table[layout, rows])
        _, tuned = layer(ways=Ways(layouts))
        choose_ways([tuned], clock.now)
    chosen = {n: table[w.layout, w.rows] for n, w in tuned.ways.table.items() if n in TIMED_ROWS}
    for n in TIMED_ROWS:
        best = min(table[layout, m] for layout in layouts for m in TIMED_ROWS if m >= n)
        assert chosen[n] <= best / (1 - prepacked.GAIN) + 1e-9
        narrow = min(table[layout, n] for layout in layouts)
        assert chosen[n] <= narrow / (1 - prepacked.GAIN) + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_noise_below_the_gain_does_not_move_the_choice(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    clock = Clock(
        monkeypatch,
        lambda layout, rows: (4 + rows / 100 + (layout == PACKED) / 50) * rng.uniform(1, 1.03),
    )
    _, tuned = layer()
    choose_ways([tuned], clock.now)
    assert ways_of([tuned])["80x48"] in ("1-48: plain", "1-48: packed")


def test_a_handicapped_single_row_is_padded_and_the_choice_is_told(monkeypatch):
    def seconds(layout, rows):
        return {1: 9.0, 2: 9.5}.get(rows, 4.0 + rows / 100) + (layout == PACKED)

    clock = Clock(monkeypatch, seconds)
    _, tuned = layer()
    choose_ways([tuned], clock.now)
    assert tuned.ways.of(1) == tuned.ways.of(2) == Way(PLAIN, 3)
    assert tuned.ways.of(3) == Way(PLAIN, 3)
    assert tuned.ways.of(40) == Way(PLAIN, 40)
    assert ways_of([tuned]) == {"80x48": "1-2: plain as 3, 3-48: plain"}
    clock.seen.clear()
    tuned(torch.zeros(1, 1, 48))
    assert clock.seen == [(PLAIN, 3)]


def test_a_model_is_tuned_once_and_computes_the_same():
    decoder = copy.deepcopy(toy_target(0)).float()
    token = torch.arange(12)[None] % decoder.config.vocab
    with torch.inference_mode():
        before = decoder(token)
        tune(decoder)
        layers = [m for m in decoder.modules() if isinstance(m, nn.Linear)]
        ways = dict(ways_of([decoder]))
        tune(decoder)
        after = decoder(token)
    assert all(type(m) is TunedLinear for m in layers)
    assert [m for m in decoder.modules() if isinstance(m, nn.Linear)] == layers
    assert ways
    assert ways_of([decoder]) == ways
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_models_of_a_process_share_their_ways(monkeypatch):
    monkeypatch.setattr(prepacked, "CHOSEN", {})
    timed = []
    monkeypatch.setattr(prepacked, "choose_ways", lambda layers, timer: timed.append(len(layers)))
    first, second = (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 6)) for _ in range(2))
    tune(first)
    for ways in prepacked.CHOSEN.values():
        ways.table[1] = Way(PACKED, 1)
    tune(second)
    assert timed == [2]
    assert [m.ways for m in first] == [m.ways for m in second]
    assert first[0].ways is not first[1].ways


def test_draft_vocabularies_are_tuned_too():
    head = DraftVocabularyHead(nn.Linear(16, 40, bias=False), torch.arange(0, 40, 2))
    x = torch.randn(3, 16)
    with torch.inference_mode():
        before = head(x)
        tune(head)
        torch.testing.assert_close(head(x), before, rtol=1e-4, atol=1e-5)
    assert isinstance(head.product, TunedLinear)


def test_engines_tune_targets_and_drafters():
    target, drafter = toy_pair("model")
    assert tune_models(target.decoder, drafter) == {}  # float64 stays as it is
    decoder = copy.deepcopy(target.decoder).float()
    assert {text.split(": ")[1][:5] for text in tune_models(decoder, Drafter()).values()} == {PLAIN}
    packed = copy.deepcopy(target.decoder).float()
    attach_engine(make_passes("prepacked", 4, 40), packed, Drafter())
    assert all(m.ways.layouts == BOTH for m in packed.modules() if isinstance(m, TunedLinear))


def test_other_devices_and_types_are_refused():
    decoder = copy.deepcopy(toy_target(0)).double()
    with pytest.raises(ValueError, match="prepacked: the target is float64 on cpu; expected"):
        attach_engine(make_passes("prepacked", 4, 40), decoder, Drafter())


def test_a_processor_that_emulates_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(prepacked, "multiplies_bfloat16", lambda device: False)
    decoder = copy.deepcopy(toy_target(0)).to(torch.bfloat16)
    with pytest.raises(ValueError, match="prepacked: this processor only emulates bfloat16; use"):
        prepacked.check_prepackable(decoder)
    prepacked.check_prepackable(decoder.float())
