"""The papers' tables, prices and cards: figures by hand, and controls."""

from dataclasses import replace

import numpy as np
import pytest
from documents import ROOT

from simspec import CostModel, load_trace, replay
from simspec.cost.table import load_cost
from simspec.numerics.stats import Estimate
from simspec.papers import CLAIMS, TABLES, Recordings, eesd, s2d
from simspec.papers.claims import evidence
from simspec.papers.recorded import (
    H200,
    PRICES,
    Recorded,
    crossed,
    exit_cost,
    layer_and_head,
    read_card,
)
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts
from simspec.trace.exits import cascade
from simspec.trace.synthetic import iid

TRACES = ROOT / "traces"
S, ROWS = 60, 120


def recorded(alpha):
    """A recording of prompts whose tokens are all accepted as often."""
    made, random = iid(alpha, S, ROWS, 8), np.random.default_rng(0)
    token = random.integers(0, 5000, S * ROWS).astype(np.int32)
    trace = replace(made, token=token, meta=replace(made.meta, rule="coupled"))
    return Recorded("planted", "eagle", "tiny", trace, CostModel.from_ratio(0.1, 8), draws=2)


def bundled(drafter, name):
    (found,) = (r for r in Recordings(TRACES).of(drafter) if r.name == name)
    return found


FLAT = 0.1


@pytest.mark.parametrize("text", ["[]", "{}", '{"evaluation": 3}', "{"])
def test_what_is_no_card_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json") as error:
        read_card(tmp_path / "a.json")
    assert "\n" not in str(error.value)


def test_cards_that_claims_compare_differ_in_one_setting_and_learned_as_much():
    compared = {
        ("early_exit-n1-x1", "early_exit-n1-x0"): "layers",
        ("early_exit-n1-x1", "early_exit-n1-x2"): "layers",
        ("early_exit-n1-x1", "early_exit-n2-x1"): "depth",
        ("early_exit-n1-x1", "early_exit-n3-x1"): "depth",
        ("early_exit-n1-x1", "early_exit-text"): "blend",
        ("glide-layer9", "glide-blind"): "cross",
        ("glide-layer9", "glide-layer0"): "reads",
        ("glide-layer5", "glide-layer0"): "reads",
        ("eagle-feature", "eagle-token"): "inputs",
        ("eagle-shifted", "eagle-unshifted"): "inputs",
    }
    for names, setting in compared.items():
        both = Recordings(TRACES).cards(*names)
        assert len(both) == 2  # two training seeds
        for one, other in both:
            a, b = (card.data["asked"] | card.data["asked"]["settings"] for card in (one, other))
            differ = {key for key in a if a[key] != b[key]}
            assert differ - {"settings"} == {setting}
            assert one.data["tokens"] == other.data["tokens"]
            assert np.array_equal(one.sums[:, 1], other.sums[:, 1])


def costs():
    draft, verify = np.array([0, 0.3, 0.6, 0.9]), np.array([1.0, 1.2, 1.4, 1.6])
    return CostModel(draft, verify, np.zeros(1), 0.01, 1.0, "exit")


def test_an_exit_costs_its_layers_and_a_head():
    layer, head = layer_and_head(costs())
    assert 10 * layer + head == pytest.approx(1.0)
    assert 2 * layer + head == pytest.approx(0.3)
    whole = exit_cost(costs(), 10, 0)
    assert whole.draft == pytest.approx(np.arange(4.0))
    assert whole.verify == pytest.approx(np.ones(4))  # all rows have been passed
    same = exit_cost(costs(), 1, 1)
    assert same.draft == pytest.approx(costs().draft)
    assert same.verify == pytest.approx(costs().verify)
    assert layer_and_head(CostModel.from_ratio(0.1, 5)) == (pytest.approx(0.05), pytest.approx(0))


@pytest.mark.parametrize("ours", [recorded(0.6), bundled("model", "tiny-model-greedy")])
def test_seconds_of_a_policy_are_those_of_its_rounds(ours):
    """A slow twin: every prompt, round by round, at flat and at measured prices."""
    for c in (None, FLAT):
        priced = ours.at(c)
        rounds = replay(ours.trace, fixed(3), cost=priced.cost)
        each_round = priced.cost.seconds(rounds)
        expected = [
            sum(each_round[r] for r in range(*span))
            for span in zip(rounds.offset, rounds.offset[1:])
        ]
        assert priced.seconds(fixed(3))[:, 0] == pytest.approx(expected)
        flat = sum(1 + 0.1 * k for k in rounds.computed.tolist())
        assert (sum(expected) == pytest.approx(flat)) == (c is not None or ours.name == "planted")


def test_settings_are_chosen_on_the_other_prompts():
    trace = recorded(0.5).trace
    seconds = np.ones((2, S))
    seconds[0, ::2] = 3.0  # the second is best on the even prompts
    seconds[1, 1::2] = 2.0
    chosen, setting = crossed(seconds, trace)
    assert set(setting[::2]) == {0}
    assert set(setting[1::2]) == {1}
    assert chosen[0] == 3.0
    assert chosen[1] == 2.0


def test_hm_is_its_definition():
    ours = recorded(0.6)
    rounds = ours.rounds(fixed(3))
    accepted, drafted = rounds.accepted.sum(), rounds.computed.sum()
    v, r = accepted / drafted, accepted / ours.trace.rows
    assert eesd.harmonic_mean(ours, fixed(3)).value == pytest.approx(100 * 2 * v * r / (v + r))


def test_siblings_that_are_never_right_cost_their_rows_alone():
    """The control of claim 10: a chain is no tree, so an effect below 0 can be found."""
    ours = bundled("glide", "tiny-glide-coupled")
    rank = np.where(ours.trace.rank > 0, 255, 0).astype(np.uint8)
    single = replace(ours, trace=replace(ours.trace, rank=rank), _kept={})
    at = single.at(FLAT)
    assert eesd.best_tree(at) == pytest.approx(at.seconds(fixed(1)))  # a row more is free
    dear = replace(at.cost, verify=at.cost.verify + 0.1 * np.arange(len(at.cost.verify)))
    assert eesd.tree_over_chain(replace(at, cost=dear)).interval.high < 0


def test_beams_are_recorded_along_the_outputs_that_their_costs_price():
    (ours,) = (r for r in Recordings(TRACES).searched("eagle") if r.trace.meta.rule == "greedy")
    other = bundled("eagle", "smollm2/greedy/eagle")
    assert (ours.name, ours.pair, ours.measured) == ("smollm2/beams/eagle", other.pair, True)
    assert np.array_equal(ours.trace.token, other.trace.token)
    assert np.array_equal(ours.trace.run, np.minimum(other.trace.run, ours.trace.K))
    assert ours.cost.to_dict() == other.cost.to_dict()


def test_repetitive_outputs_are_shown_and_do_not_count():
    ours = recorded(0.5)
    loop = replace(
        ours,
        trace=replace(
            ours.trace, token=np.tile(np.arange(4), len(ours.trace.token) // 4).astype(np.int32)
        ),
    )
    assert loop.repetitive
    assert not ours.repetitive
    found = Recordings(None, given=(ours, loop))
    assert found.of("eagle") == [ours, loop]
    assert found.counted("eagle") == [ours]


def test_a_folder_of_a_further_pair_is_read_as_one(tmp_path):
    """Without measured costs it has flat prices; a model of its own is not the H200's head."""
    folder = tmp_path / "coder" / "coupled"
    folder.mkdir(parents=True)
    for drafter, alpha in (("model", 0.8), ("prompt_lookup", 0.3)):
        recorded(alpha).trace.save(folder / f"{drafter}.parquet")
    (ours,) = Recordings(tmp_path).counted("model")
    assert (ours.name, ours.target, ours.pair) == ("coder/coupled/model", "coder", "coder/coupled")
    assert [ours.has_price(price) for price in PRICES] == [False, False, True, True]
    assert not Recordings(tmp_path).counted("eagle")
    table = TABLES["eesd-5"](Recordings(tmp_path))
    assert set(table["recording"]) == {"coder/coupled/model", "coder/coupled/prompt_lookup"}
    assert table["all"].isna().all()  # no price is made up
    table = TABLES["eesd-verdicts"](Recordings(tmp_path))
    assert set(table["pair"]) == {"coder/coupled"}
    assert set(table["price"]) == {"flat, c = 0.05", "flat, c = 0.10"}


def test_h200_prices_a_step_with_its_draft():
    ours = bundled("eagle", "tiny-eagle-coupled")
    assert ours.has_price(H200)
    assert not bundled("model", "tiny-model-coupled").has_price(H200)
    at = ours.at(H200)
    steps = load_cost("simspec/published/h200-vllm-0.26.cost.json").at(1)
    rounds = replay(ours.trace, fixed(3))
    assert at.seconds(fixed(3))[:, 0].sum() == pytest.approx(steps.verify[rounds.drafted].sum())


MODELS = {"7b": (32, 4096, 32, 11008), "70b": (80, 8192, 8, 28672)}
"""Llama 2: layers, width, heads of keys of 128, width of the MLP."""


def weights(model, layers=None, head=True):
    count, width, kv, hidden = MODELS[model]
    layer = 2 * width * width + 2 * width * 128 * kv + 3 * width * hidden
    return layer * (count if layers is None else layers) + head * width * 32000


@pytest.mark.parametrize("size, model", [("small", "7b"), ("large", "70b")])
@pytest.mark.parametrize("thresholds", [(1.0, 1.0), (0.0, 0.0), (0.6, 0.6)])
def test_sorted_drafts_cost_the_weights_that_passes_read(size, model, thresholds):
    """A slow twin, one drafted token at a time."""
    own, single = s2d.on_target(Recordings(TRACES), size)
    derived, exits = cascade(own.trace, own.drafts, thresholds)
    rounds = replay(derived, fixed(3), cost=CostModel.from_ratio(0.0, own.trace.K))
    seconds = np.zeros(own.trace.sequences)
    for s in range(own.trace.sequences):
        for r in range(rounds.offset[s], rounds.offset[s + 1]):
            seconds[s] += 1
            for slot in range(rounds.computed[r]):
                exit = int(exits[rounds.row[r], slot])
                opened = sum(value < 1 for value in thresholds[: exit + 1]) + (exit == 2)
                layers = weights("7b", (6, 9, 12)[exit], False)
                seconds[s] += (layers + opened * weights("7b", 0)) / weights(model)
    assert own.run(thresholds, 3)[0] == pytest.approx(seconds, rel=1e-12)
    of_single, counts = own.last_exit(single)
    alone = replay(single, fixed(2), cost=CostModel.from_ratio(0.0, single.K))
    step = weights("7b", 12) / weights(model)
    assert counts[1].sum() == len(alone.computed)
    assert of_single[1].sum() == pytest.approx(len(alone.computed) + step * alone.computed.sum())


def test_cascades_beat_a_single_exit_where_it_drafts_worse():
    """18a and 18c; the cascade's own last exit alone is the last exit."""
    own, single = s2d.on_target(Recordings(TRACES), "small")
    worse = replace(single, run=np.zeros_like(single.run))
    assert s2d._excess(own, worse, "x", "y").interval.low > 0
    derived, _ = cascade(own.trace, own.drafts, s2d.alone(3, 2))
    for ours, theirs in zip(own.last_exit(derived), own.all_lengths([s2d.alone(3, 2)])):
        assert ours == pytest.approx(theirs)
    assert s2d.cascades(3)[0] == (0.05, 0.05)
    assert s2d.cascades(3)[-1] == (0.95, 0.95)
    assert [s2d.alone(3, e) for e in range(3)] == [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]


def cell(table, column, **names):
    """The cell of the row with these names."""
    rows = table
    for name, value in names.items():
        rows = rows[rows[name] == value]
    (found,) = rows[column]
    return found


def test_tables_hold_what_a_replay_gives():
    found = Recordings(TRACES, draws=1)
    table = TABLES["eesd-5"](found)
    assert table.attrs["names"] == 2
    ours = next(r for r in found.deep("self_skip", 10) if r.name == "papers/self_skip-k10-coupled")
    seconds = ours.at(None).seconds(beta_ts(K=10))[:, 0].sum()
    shown = cell(table, "all", recording=ours.name, method="+ Beta-TS")
    assert shown.value == pytest.approx(ours.trace.rows * ours.cost.baseline / seconds)
    lengths = table[table["method"].str.contains(" = ")]
    assert len(lengths) == 33  # every drafter, at ten tokens or as many as it has
    assert set(lengths["method"].str.rpartition(" ")[2]) == {"10", "8", "4"}


def test_the_chain_and_the_tree_differ_by_what_the_tree_adds():
    table = TABLES["eagle-1"](Recordings(TRACES))
    assert len(table) == 5
    for _, row in table.iterrows():
        added = row["tau, tree"].value - row["tau, chain"].value
        assert row["tree adds"].value == pytest.approx(added)
        assert row["tau, chain"].low <= row["tau, chain"].value <= row["tau, chain"].high


def test_s2d_shows_the_speed_of_the_setting_that_the_other_prompts_choose():
    table = TABLES["s2d-2"](Recordings(TRACES))
    assert list(table["method"]) == list(s2d.PRINTED)
    own, _ = s2d.on_target(Recordings(TRACES), "large")
    best = min(own.run((0.0, 0.0), k)[0].sum() for k in range(1, own.trace.K + 1))
    shown = cell(table, "large", method="SoFT L6 + SD")
    assert shown.value == pytest.approx(own.trace.rows / best, rel=0.02)


def test_tables_have_rows_or_say_that_nothing_is_there(tmp_path):
    """In a folder without recordings: no error, and no figure."""
    empty = Recordings(tmp_path)
    for name, table in TABLES.items():
        if name not in ("claims",):
            found = table(empty)
            assert found.attrs["title"]
            assert not any(isinstance(cell, Estimate) for cell in found.to_numpy().ravel()), name
    assert not len(TABLES["claims"](empty))


def test_every_claim_has_an_effect_on_the_bundled_recordings():
    some = CLAIMS["glide"][:3]
    found = evidence(some, Recordings(TRACES))
    assert set(found["claim"]) == {claim.number for claim in some}
    assert all(isinstance(value, Estimate) for value in found["estimate"])


FOLDER = TRACES / "papers"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.parquet")), ids=lambda path: path.stem)
def test_further_recordings_go_on_where_the_bundled_one_of_their_text_ends(path):
    trace = load_trace(path)
    shorter = load_trace(TRACES / f"tiny-{trace.meta.drafter}-{trace.meta.rule}.parquet")
    K = min(trace.K, shorter.K)
    for name in ("token", "offset", "budget", "sequence"):
        assert np.array_equal(getattr(trace, name), getattr(shorter, name))
    assert trace.meta.tasks == shorter.meta.tasks
    for name in ("run", "depth"):
        ours, theirs = (np.minimum(getattr(t, name), K) for t in (trace, shorter))
        assert np.array_equal(ours, theirs)
