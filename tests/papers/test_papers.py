"""The papers' claims and tables: planted effects are found, controls are not, figures by hand."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from documents import ROOT

from simspec import CostModel, load_trace, replay
from simspec.cost.table import load_cost
from simspec.numerics.stats import Estimate
from simspec.papers import CLAIMS, TABLES, Recordings, eagle, eesd, glide, s2d
from simspec.papers.claims import HELD, NOT_HELD, Claim, each, evidence, longer, verdict_of
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
from simspec.reports.trees import SECONDS, prompt_figures
from simspec.trace.exits import cascade
from simspec.trace.trace import Trace, TraceMeta
from simspec.tree.tree import TreePolicy, chain_tree

TRACES = ROOT / "traces"
S, ROWS = 60, 120


def recorded(alpha, tasks=None, theta=None, confidence=None, target="tiny", K=8, seed=0):
    """Acceptance [S], [S, ROWS] or [S, ROWS, K], and features of the same shapes."""
    random = np.random.default_rng(seed)
    shape = (S, ROWS, K)

    def full(values):
        values = np.asarray(values, np.float64)
        values = values.reshape(*values.shape, *([1] * (3 - values.ndim)))
        return np.broadcast_to(values, shape).reshape(S * ROWS, K)

    right = random.random((S * ROWS, K)) < full(alpha)
    left = np.tile(np.arange(ROWS, 0, -1), S)
    run = np.minimum(np.logical_and.accumulate(right, axis=1).sum(axis=1), left)
    given = {"confidence": confidence, "entropy": confidence, "theta": theta}
    codes = {name: np.rint(255 * full(x)) for name, x in given.items() if x is not None}
    grids = {"confidence": "confidence", "entropy": "entropy", "theta": "identity"}
    meta = TraceMeta(
        rule="coupled", target="none", drafter="planted", K=K, seed=seed,
        features=tuple((name, grids[name]) for name in codes),
        predictors={"theta": "0" * 64} if "theta" in codes else {},
        tasks=tuple(tasks) if tasks is not None else ("task",) * S,
        ids=tuple(map(str, range(S))),
    )  # fmt: skip
    trace = Trace(
        offset=np.arange(S + 1) * ROWS, budget=np.full(S, ROWS),
        token=random.integers(0, 5000, S * ROWS).astype(np.int32),
        depth=np.full(S * ROWS, K, np.uint8), run=run.astype(np.uint8),
        feature=np.stack(list(codes.values()), -1).astype(np.uint8) if codes else None, meta=meta,
    )  # fmt: skip
    return Recorded("planted", "eagle", target, trace, CostModel.from_ratio(0.1, K), draws=2)


def bundled(drafter, name):
    (found,) = (r for r in Recordings(TRACES).of(drafter) if r.name == name)
    return found


def mixed(low, high):
    return np.where(np.arange(S) % 4 < 2, low, high)  # both halves of `crossed` see both


GLIDE = "tiny-glide-coupled"
FLAT = 0.1


def with_rank(ranked, seed):
    """Prompts of a recording of GLIDE whose rejected tokens all have this rank."""
    ours = bundled("glide", GLIDE)
    rank = np.where(ours.trace.rank > 0, ranked, 0).astype(np.uint8)
    prompts = np.sort(np.random.default_rng(seed).permutation(120)[:80])
    trace = replace(ours.trace, rank=rank).select(prompts)
    return replace(ours, trace=trace, _kept={}).at(FLAT)


def ranked_by_confidence(calibrated, seed):
    """As `with_rank`: rejected tokens rank 1 or 7, 7 where confidence is low, or where high."""
    ours = with_rank(1, seed)
    (column,) = ours.trace.features(("confidence",))
    low = ours.trace.feature[..., column] < np.median(ours.trace.feature[..., column])
    rank = np.where(ours.trace.rank > 0, np.where(low == calibrated, 7, 1), 0).astype(np.uint8)
    return replace(ours, trace=replace(ours.trace, rank=rank), _kept={})


def first_slot_right(share, spread, seed):
    """Ranks of an EAGLE whose second token is right as often as the first, or less; at places
    that are easy and hard by `spread`."""
    ours, random = bundled("eagle", "tiny-eagle-coupled"), np.random.default_rng(seed)
    rank = np.where(ours.trace.rank > 0, 1, 0).astype(np.uint8)
    right = 0.6 + spread * random.choice((-1, 1), len(rank))
    rank[:, 0] = random.random(len(rank)) > right
    rank[:, 1] = random.random(len(rank)) > right * share
    run = np.minimum((rank == 0).cumprod(axis=1).sum(axis=1), ours.trace.depth)
    left = np.repeat(ours.trace.offset[1:], np.diff(ours.trace.offset)) - np.arange(len(run))
    trace = replace(ours.trace, rank=rank, run=np.minimum(run, left).astype(np.uint8))
    return replace(ours, trace=trace, _kept={})


def tasks(*names):
    return [names[s % len(names)] for s in range(S)]


SIGNAL = np.random.default_rng(99).random((S, ROWS, 8))
CODE = mixed(0.4, 0.9), ["text" if x < 0.5 else "code" for x in mixed(0.4, 0.9)]
MANY = {claim.number: claim for claims in CLAIMS.values() for claim in claims}
BETA, TEN = eesd.beta_against_best_fixed, eesd.beta_against_ten
THETA = partial(eesd.beta_against_calibrated, theta=True)
BY_CONFIDENCE = partial(eesd.beta_against_calibrated, theta=False)
SIDES = partial(eesd.sampling_against_model, theta=True)
PRINTED, ALL_ROWS = eagle.alpha_gaps, partial(eagle.alpha_gaps, all_rows=True)


def alike(alpha):
    """Worlds of prompts that are all accepted as often."""
    return lambda seed, **given: recorded(np.full(S, alpha), seed=seed, **given)


def knows(seed):
    """Worlds in which theta is whether the token is accepted."""
    return recorded(SIGNAL > 0.4, theta=SIGNAL > 0.4, seed=seed)


def two(low, high, *names):
    """Worlds of prompts of two kinds, or of tasks."""
    return lambda seed: recorded(mixed(low, high), tasks(*names) if names else None, seed=seed)


PLANTED = {
    "1: prompts differ widely": (BETA, two(0.2, 0.95), 1),
    "1: prompts alike": (BETA, alike(0.75), -1),
    "1 censored: prompts alike": (partial(BETA, reading="censored"), alike(0.75), -1),
    "5a: rejected early": (TEN, alike(0.4), 1),
    "5a: always accepted": (TEN, alike(1.0), -1),
    "2: theta knows": (THETA, knows, 1),
    "2: theta does not": (THETA, partial(alike(0.7), theta=0.2 + 0.0 * SIGNAL), None),
    "2 by confidence: it knows": (
        BY_CONFIDENCE, lambda seed: recorded(SIGNAL, confidence=SIGNAL, seed=seed), 1,
    ),
    "3: theta misleads": (SIDES, partial(alike(0.8), theta=0.0 * SIGNAL), 1),
    "3: theta knows": (SIDES, knows, -1),
    "4a: samples differ": (eesd.samples_differ, two(0.1, 0.95), 1),
    "4a: samples alike": (eesd.samples_differ, alike(0.7), None),
    "4b: tasks differ": (eesd.tasks_differ, two(0.2, 0.95, "a", "a", "b", "b"), 1),
    "4b: tasks alike": (
        eesd.tasks_differ, partial(alike(0.7), tasks=tasks("a", "a", "b", "b")), 0,
    ),
    "6: drafts are dear": (lambda r: eesd.higher_hm_is_slower(r.at(0.6)), alike(0.8), 1),
    "6: drafts are free": (lambda r: eesd.higher_hm_is_slower(r.at(0.0)), alike(1.0), 0),
    "10: siblings right": (eesd.tree_over_chain, partial(with_rank, 1), 1),
    "10: siblings never right": (eesd.tree_over_chain, partial(with_rank, 255), 0),
    "13a: siblings right": (glide.cape_over_chain, partial(with_rank, 1), 1),
    "13a: siblings never right": (glide.cape_over_chain, partial(with_rank, 255), 0),
    "13c: far where confidence is high": (
        glide.sets_by_confidence, partial(ranked_by_confidence, False), -1,
    ),
    "13c: far where confidence is low": (
        glide.sets_by_confidence, partial(ranked_by_confidence, True), 1,
    ),
    "15a, all rows: second token worse": (ALL_ROWS, partial(first_slot_right, 0.7, 0.0), 1),
    "15a, all rows: both alike": (ALL_ROWS, partial(first_slot_right, 1.0, 0.0), 0),
    "15a, all rows: both alike, easy and hard": (
        ALL_ROWS, partial(first_slot_right, 1.0, 0.35), 0,
    ),
    "15a: both alike, easy and hard": (PRINTED, partial(first_slot_right, 1.0, 0.35), -1),
    "15a: second token worse": (PRINTED, partial(first_slot_right, 0.7, 0.0), 1),
    "15a: both alike": (PRINTED, partial(first_slot_right, 1.0, 0.0), 0),
    "15b: both alike": (
        lambda r: PRINTED(r, 1, (0,)), partial(first_slot_right, 1.0, 0.0), 1,
    ),
    "15b, all rows: second worse": (
        lambda r: ALL_ROWS(r, 0, (1,)), partial(first_slot_right, 0.6, 0.0), -1,
    ),
    "16: siblings never right": (eagle.tree_adds, partial(with_rank, 255), -1),
    "19: code is accepted": (
        eagle.code_is_fastest, lambda seed: recorded(*CODE, seed=seed), 1,
    ),
    "19: code is as all": (
        eagle.code_is_fastest, partial(alike(0.7), tasks=tasks("code", "text")), 0,
    ),
}  # fmt: skip
"""{claim: (its function, a recording by seed, sign)}; 0: neither holds nor fails, None: it does not
hold."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_world_is_found_at_the_stated_error(name):
    """True and false worlds get their verdict in 7 of 8 draws; where there is no effect, a verdict
    errs in one of twenty: 3 or more of 8 have a chance of 1 in 200."""
    function, world, sign = PLANTED[name]
    if function in (PRINTED, ALL_ROWS):
        function = partial(function, one=0, others=(1,))
    claim, words = MANY[name.partition(":")[0]], []
    for seed in range(8):
        found = function(world(seed=seed))
        effects = found if isinstance(found, list) else [found]
        words.append(verdict_of(claim, effects).word)
    expected = {1: HELD, -1: NOT_HELD}.get(sign)
    if expected:
        assert words.count(expected) >= 7, words
    else:
        assert words.count(HELD) <= 2, words
        assert sign is None or words.count(NOT_HELD) <= 2, words


def test_a_best_length_differs_between_models_that_differ():
    def effects(high):
        pair = [recorded(np.full(S, a), target=t) for a, t in ((0.3, "tiny"), (high, "smollm2"))]
        return eesd.models_differ(Recordings(None, given=tuple(pair)))

    assert len(effects(0.95)) == 8  # both ways, at each price
    assert all(effect.interval.low > 0 for effect in effects(0.95))
    assert all(abs(effect.interval.value) < 0.02 for effect in effects(0.3))


@pytest.fixture
def cards(tmp_path):
    """Folders of cards: a function from {name: accepted tokens of each of 20 sequences}."""

    def write(accepted, folder="ablations", seed=0):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, values in accepted.items():
            kept = {"accepted": values, "drafts": [10] * 20, "tested": [40] * 20}
            data = {
                "asked": {"plan": {"seed": seed}, "settings": {"inputs": name}}, "tokens": 1000,
                "evaluation": {
                    "recorded": {"by_sequence": kept, "by_depth": [0.5]},
                    "trained": {"accepted_length": {"value": 1, "low": 0, "high": 2, "texts": 20}},
                },
            }  # fmt: skip
            (tmp_path / folder / f"{name}.json").write_text(json.dumps(data))
        return Recordings(tmp_path)

    return write


def test_longer_drafts_of_a_card_are_found(cards):
    random = np.random.default_rng(0)
    base = random.integers(5, 25, 20)
    found = cards({"a": (base + random.integers(3, 8, 20)).tolist(), "b": base.tolist()})
    (effect,) = longer("a", "b", found)
    assert effect.interval.low > 0
    assert effect.interval.value == pytest.approx(
        (found.card("a").sums - found.card("b").sums)[:, 0].sum() / 200
    )
    cards({"a": base.tolist(), "b": base.tolist()}, "ablations-seed1", 1)
    first, second = longer("a", "b", found)
    assert first.interval == effect.interval
    assert second.on == "a (seed 1) / b (seed 1)"
    assert second.interval.value == second.interval.low == 0  # the control
    assert longer("a", "absent", found) == []


def test_what_shifting_gains_is_set_against_what_adding_gains(cards):
    random = np.random.default_rng(0)
    base = random.integers(5, 15, 20)
    for shift, sign in ((8, 1), (4, 0), (2, -1)):  # adding gains 4 of 10
        found = cards(
            {
                "eagle-feature": base.tolist(), "eagle-unshifted": (base + 4).tolist(),
                "eagle-shifted": (base + 4 + shift).tolist(),
            }
        )  # fmt: skip
        (effect,) = eagle.shifted_tokens(found)
        assert effect.interval.value == pytest.approx((shift - 4) / 10)
        assert sign == np.sign(round(effect.interval.low, 9))


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


def test_one_exit_is_as_much_faster_as_the_other_is_slower():
    """Claims 7b, 7c and 8: 1 + effect is a ratio of times; of a card and itself it is 1."""
    both = Recordings(TRACES)
    for name in ("early_exit-n1-x0", "early_exit-n2-x1"):
        for one, other in zip(eesd.faster(eesd.TOP, name, both), eesd.faster(name, eesd.TOP, both)):
            assert (1 + one.interval.value) * (1 + other.interval.value) == pytest.approx(1)
    for same in eesd.faster(eesd.TOP, eesd.TOP, both):
        assert same.interval.value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("ours", [recorded(np.full(S, 0.6)), bundled("model", "tiny-model-greedy")])
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
    trace = recorded(np.full(S, 0.5)).trace
    seconds = np.ones((2, S))
    seconds[0, ::2] = 3.0  # the second is best on the even prompts
    seconds[1, 1::2] = 2.0
    chosen, setting = crossed(seconds, trace)
    assert set(setting[::2]) == {0}
    assert set(setting[1::2]) == {1}
    assert chosen[0] == 3.0
    assert chosen[1] == 2.0


def test_hm_is_its_definition():
    ours = recorded(np.full(S, 0.6))
    rounds = ours.rounds(fixed(3))
    accepted, drafted = rounds.accepted.sum(), rounds.computed.sum()
    v, r = accepted / drafted, accepted / ours.trace.rows
    assert eesd.harmonic_mean(ours, fixed(3)).value == pytest.approx(100 * 2 * v * r / (v + r))


def test_a_tree_without_siblings_is_a_chain():
    """The control: as a tree it drafts beyond the output's end, and would lose to itself."""
    single = with_rank(255, 0)
    tree = TreePolicy("one branch", "static", tree=chain_tree(2))
    seconds = [
        prompt_figures(single.trace, policy, single.cost)[:, SECONDS].sum()
        for policy in (fixed(2), tree)
    ]
    assert seconds[0] < seconds[1]


def test_repetitive_outputs_are_shown_and_do_not_count():
    ours = recorded(np.full(S, 0.5))
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


def test_a_claim_holds_where_the_interval_lies_within_its_bounds():
    def claim(*bounds):
        return Claim("0", "Something.", "-", each(lambda ours: None), bounds)

    inside = Estimate(0.7, 0.65, 0.75, 0.95, 20)
    assert claim(0.6, 0.8).holds(inside)
    assert claim(0.0, np.inf).holds(inside)
    assert not claim(0.7, 0.8).holds(inside)
    assert not claim(0.6, 0.72).holds(inside)
    assert not claim(0.0, np.inf).holds(Estimate(0.7, np.nan, np.nan, 0.95, 20))


def test_a_folder_of_a_further_pair_is_read_as_one(tmp_path):
    """Without measured costs it has flat prices; a model of its own is not the H200's head."""
    folder = tmp_path / "coder" / "coupled"
    folder.mkdir(parents=True)
    for drafter, alpha in (("model", 0.8), ("prompt_lookup", 0.3)):
        recorded(np.full(S, alpha)).trace.save(folder / f"{drafter}.parquet")
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
    assert len(lengths) == 32  # every drafter, at ten tokens or as many as it has
    assert set(lengths["method"].str.rpartition(" ")[2]) == {"10", "8", "4"}


def test_the_chain_and_the_tree_differ_by_what_the_tree_adds():
    table = TABLES["eagle-1"](Recordings(TRACES))
    assert len(table) == 4
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
