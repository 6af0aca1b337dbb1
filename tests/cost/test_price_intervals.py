"""Intervals over prompts and prices: coverage on known truth, the naive bootstrap, and pairs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cost_replicates import replicated
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from shell import run
from tree_strategies import tree_seconds

from simspec import CostModel, policies, synthetic
from simspec.cost.table import load_cost
from simspec.engines.choice import Evidence, choose
from simspec.numerics import stats
from simspec.papers.recorded import Recorded, excess, figure, speedup
from simspec.policies.fixed import fixed
from simspec.replay.evaluation import covers, covers_text, evaluate
from simspec.replay.metrics import replicate_seconds
from simspec.replay.replay import replay
from simspec.replay.sweep import priced_seconds, prompt_figures
from simspec.reports.comparison import Question, comparisons, paired_p
from simspec.reports.drafters import compare_drafters
from simspec.reports.oracle_gap import score
from simspec.reports.trees import compare_trees
from simspec.trace.trace import Rounds, load_trace
from simspec.tree.replay import tree_rounds

TRIALS, PROMPTS, BLOCKS, R = 1000, 40, 40, 64
FILE = "traces/tiny-eagle-greedy"
QUICK = Question(resamples=999)


def measured(rng, spread):
    """(the error of a price, of R of its bootstrap replicates): medians of BLOCKS blocks."""
    blocks = np.exp(spread * np.sqrt(BLOCKS) / 1.25 * rng.standard_normal(BLOCKS))
    drawn = rng.integers(0, BLOCKS, (R, BLOCKS))
    return np.median(blocks), np.median(blocks[drawn], axis=1)


def held(spread, priced, trials=TRIALS):
    """Of `trials` intervals of tokens over seconds, how many hold the truth, 2.0.

    A round takes 0.75 s, and 1.5 tokens on average; each measurement of its price has this spread.
    """
    hits = 0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        rounds = rng.integers(10, 60, PROMPTS).astype(float)
        tokens = rng.poisson(1.5 * rng.gamma(8.0, 1 / 8.0, PROMPTS) * rounds).astype(float)
        point, replicates = measured(rng, spread)
        seconds = 0.75 * rounds[:, None] * np.array([point, *replicates] if priced else [point])
        hits += 2.0 in stats.ratio(tokens, seconds, resamples=1000, seed=seed % 7)
    return hits


@pytest.mark.parametrize("spread", [0.03, 0.06, 0.12])
def test_coverage_where_prompts_and_prices_are_uncertain(spread, record_property):
    """95% intervals; prices make up 16, 44 and 76% of the variance. 93 to 97% of 1000 hold; if the
    coverage is 95%, more or less do with probability 5e-3.
    """
    hits = held(spread, priced=True)
    record_property("measured", f"intervals at prices +-{spread:.0%}: {hits / TRIALS:.1%} hold it")
    assert scipy_stats.binom.cdf(929, TRIALS, 0.95) < 5e-3
    assert 930 <= hits <= 970


def test_control_prompts_alone_do_not_cover_uncertain_prices():
    assert held(0.06, priced=False, trials=200) < 0.88 * 200


@given(st.integers(0, 10**6), st.sampled_from(("bca", "percentile")))
def test_one_price_is_todays_interval_to_the_last_bit(seed, method):
    rng = np.random.default_rng(seed)
    a, b = rng.gamma(2, 1, (2, 12))
    plain = stats.ratio(a, b, resamples=200, seed=seed, method=method)
    assert stats.ratio(a, b[:, None], resamples=200, seed=seed, method=method) == plain
    assert stats.ratio(a[:, None], b[:, None], resamples=200, seed=seed, method=method) == plain


def test_nested_bootstrap_equals_the_naive_one():
    """Percentile intervals of the resamples drawn one by one, each with one replicate."""
    rng, resamples = np.random.default_rng(3), 400
    tokens, rounds = rng.gamma(4, 30, 15), rng.gamma(4, 20, 15)
    seconds = rounds[:, None] * np.concatenate(([1.0], np.exp(0.2 * rng.standard_normal(7))))
    found = stats.ratio(tokens, seconds, resamples=resamples, seed=5, method="percentile")
    counts = np.random.default_rng(5).multinomial(15, np.full(15, 1 / 15), size=resamples)
    figures = []
    for b, count in enumerate(counts):
        chosen = np.repeat(np.arange(15), count)
        figures.append(tokens[chosen].sum() / seconds[chosen, 1 + b % 7].sum())
    z = np.sqrt(15 / 14) * scipy_stats.t.ppf([0.025, 0.975], 14)
    assert found.value == tokens.sum() / seconds[:, 0].sum()
    assert [found.low, found.high] == pytest.approx(np.quantile(figures, scipy_stats.norm.cdf(z)))


def test_a_common_factor_of_all_prices_cancels_in_a_share_and_in_equal_policies():
    """Both need one replicate for all columns; control: other replicates for one of them."""
    rng = np.random.default_rng(1)
    factor = np.concatenate(([1.0], np.exp(0.3 * rng.standard_normal(R))))
    a, b = rng.gamma(4, 1, (2, 30))
    alone = stats.ratio(a, b)
    paired = stats.ratio(a[:, None] * factor, b[:, None] * factor)
    assert (paired.low, paired.high) == pytest.approx((alone.low, alone.high))
    spent = b[:, None] * factor
    same = stats.bootstrap(stats.stacked(a, spent, a, spent), stats.difference)
    assert (same.low, same.high) == (0, 0)
    other = stats.stacked(a, spent, a, spent[:, [0, *range(R, 0, -1)]])
    apart = stats.bootstrap(other, stats.difference)
    assert apart.high - apart.low > 0.1


def test_fewer_replicates_repeat_and_none_stand_still():
    one, two = np.arange(3.0), np.arange(12.0).reshape(3, 4)
    three = two[:, :3] + 100
    columns = stats.stacked(one, two, three)
    assert columns.shape == (3, 3, 4)
    assert (columns[:, 0] == one[:, None]).all()
    assert (columns[:, 1] == two).all()
    assert (columns[:, 2] == three[:, [0, 1, 2, 1]]).all()
    assert (stats.joined([two, one[:, None]]) == [*two.tolist(), *np.tile(one, (4, 1)).T]).all()
    with pytest.raises(ValueError, match="replicate of the prices"):
        stats.ratio(np.ones(9), np.stack((np.ones(9), np.full(9, np.nan)), -1))


def costs(R=6):
    cost = replicated(load_cost(f"{FILE}.cost.json"), R=R, spread=0.15)
    return load_trace(f"{FILE}.parquet").select(np.arange(0, 120, 4)), cost


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), min_size=1))
def test_any_rounds_are_priced_as_the_cost_model_prices_them(drafts):
    """Rounds without a draft, of which the next draft catches up, come often."""
    _, cost = costs(2)
    computed, accepted = np.array([pair for rounds in drafts for pair in rounds]).T
    offset = np.cumsum([0, *map(len, drafts)])
    rounds = Rounds(
        offset, 4 * np.arange(offset[-1]), computed, computed, np.minimum(accepted, computed)
    )
    wanted = [np.add.reduceat(r.seconds(rounds), offset[:-1]) for r in cost.replicates]
    np.testing.assert_allclose(replicate_seconds(rounds, cost), np.stack(wanted, -1), rtol=1e-12)


@pytest.mark.parametrize("text", ["fixed:0", "fixed:3", "beta_ts", "confidence:0.4", "adaedl"])
def test_policies_rounds_are_priced_as_the_cost_model_prices_them(text):
    trace, cost = costs()
    policy = policies.parse(text)
    charged = cost.reading(policy.reads)
    rounds = replay(trace, policy, 0, cost)
    wanted = [np.add.reduceat(r.seconds(rounds), rounds.offset[:-1]) for r in charged.replicates]
    np.testing.assert_allclose(replicate_seconds(rounds, charged), np.stack(wanted, -1), rtol=1e-12)


def test_trees_are_priced_as_the_cost_model_prices_them():
    trace, cost = costs()
    policy = policies.make("cape", trace, cost)
    charged = replace(cost, node=1e-4).widen(32).reading(policy.reads)
    rounds, *tree = tree_rounds(trace, policy)
    found = replicate_seconds(rounds, charged, tree)
    for r, replicate in enumerate(charged.replicates):
        seconds = tree_seconds(rounds, trace, policy, replicate)
        np.testing.assert_allclose(found[:, r], np.add.reduceat(seconds, rounds.offset[:-1]))


def test_policies_plan_with_the_costs_as_measured():
    """A replay at a replicate would be another one; control: the oracle there is another."""
    trace, cost = costs()
    seconds = evaluate(trace, ["oracle", "cost_ts"], cost, 2).seconds
    bare = load_cost(f"{FILE}.cost.json")
    exact = evaluate(trace, ["oracle", "cost_ts"], bare, 2).times
    for name, spent in seconds.items():
        assert (spent[:, 0] == exact[name]).all()
    alone = priced_seconds(prompt_figures(trace, policies.make("oracle", trace, bare), cost))
    for r, replicate in enumerate(cost.replicates):
        assert (seconds["oracle"][:, 1 + r] == alone[:, 1 + r]).all()
        again = evaluate(trace, ["oracle"], replicate, 1).times
        assert again["oracle"].sum() < seconds["oracle"][:, 1 + r].sum()


def test_comparisons_price_both_policies_by_the_same_replicates():
    trace, cost = costs()
    (row,) = comparisons({"t": trace}, ["confidence:0.4"], {"t": cost}, "fixed:3", 1, QUICK)
    tokens = np.diff(trace.offset)
    names = ("confidence:0.4", "fixed:3")
    models = (load_cost(f"{FILE}.cost.json"), *cost.replicates)
    each = [evaluate(trace, names, model, 1).times for model in models]
    ours, theirs = (np.stack([of[name] for of in each], -1) for name in names)
    plain = tokens * cost.baseline
    options = {"resamples": QUICK.resamples, "seed": QUICK.seed}
    columns = stats.stacked(plain, ours, plain, theirs)
    difference = stats.bootstrap(columns, stats.difference, **options)
    for found, wanted in (
        (row.difference, difference),
        (row.speedup, stats.ratio(plain, ours, **options)),
        (row.baseline, stats.ratio(plain, theirs, **options)),
    ):
        assert (found.value, found.low, found.high) == pytest.approx(
            (wanted.value, wanted.low, wanted.high)
        )
    (bare,) = comparisons({"t": trace}, ["confidence:0.4"], {"t": models[0]}, "fixed:3", 1, QUICK)
    assert row.difference.value == bare.difference.value
    assert row.difference.high - row.difference.low > bare.difference.high - bare.difference.low
    assert row.error > bare.error
    assert row.p >= bare.p


def test_p_of_a_difference_that_prices_alone_leave_open():
    rng = np.random.default_rng(2)
    plain, theirs = rng.gamma(9, 1, (2, 50))
    ours = 0.97 * theirs
    assert paired_p(plain, ours[:, None], theirs[:, None], 999, 0) == 0.001
    factor = np.concatenate(([1.0], np.exp(0.1 * rng.standard_normal(R))))
    assert paired_p(plain, ours[:, None] * factor, theirs[:, None], 999, 0) > 0.2


def test_reports_widen_and_keep_their_figures():
    """Drafters, score, exports and claims: the value stays, the interval widens."""
    trace, cost = costs(R=32)
    bare = load_cost(f"{FILE}.cost.json")

    def found(cost):
        (scored,) = score({"t": trace}, {"t": cost}, ["confidence:0.4"], 1, resamples=500)
        drafter = compare_drafters({"t": trace}, {"t": cost})[0]
        gain = choose(Evidence({"t": trace}, (1,), {"t": (cost,)})).gains[0]
        (row,) = scored["policies"]
        seconds = evaluate(trace, ["fixed:2", "fixed:3"], cost, 1).seconds
        shown = drafter.speedup, gain, figure(*seconds.values(), of=excess)
        return [
            (row["share"], row["high"] - row["low"]),
            *((one.value, one.high - one.low) for one in shown),
        ]

    for (value, width), (exact, narrow) in zip(found(cost), found(bare), strict=True):
        assert value == exact
        assert width > 1.01 * narrow


def test_trees_and_papers_widen_and_keep_their_figures():
    trace, cost = costs(R=32)
    bare = load_cost(f"{FILE}.cost.json")

    def found(cost):
        rows, _ = compare_trees({"t": trace}, {"t": cost}, (8,), policies=("cape",), resamples=500)
        recorded = Recorded("t", "eagle", "tiny", trace, cost)
        cell = speedup(recorded, recorded.seconds(fixed(3)))
        assert recorded.at(0.1).seconds(fixed(3)).shape[1] == 1  # a ratio has an exact price
        intervals = [rows[-1].speedup, rows[-1].gain, cell]
        return rows[-1], [(one.value, one.high - one.low) for one in intervals]

    (row, wide), (exact, narrow) = found(cost), found(bare)
    assert (row.tau, row.passes) == (exact.tau, exact.passes)
    for (value, width), (same, less) in zip(wide, narrow, strict=True):
        assert value == same
        assert width > 1.02 * less


def test_what_is_covered_is_said():
    bare = CostModel.from_ratio(0.1, 3)
    full = replicated(bare, R=2)
    assert covers([full, full.truncate(2)]) == ["prompts", "prices"]
    assert covers([full, bare]) == covers([bare]) == covers([0.1]) == covers([]) == ["prompts"]
    assert covers_text([full], 0.9) == "90% intervals over prompts and prices."
    assert covers_text([bare]) == "95% intervals over prompts; these costs hold no replicates."
    assert covers_text([full, bare]).endswith("; some of these costs hold no replicates.")


@pytest.mark.parametrize(
    "command",
    [
        ("sweep", "--report", "drafters"),
        ("sweep", "--report", "oracle", "--policy", "confidence:0.5"),
        ("sweep", "--report", "differences", "--policy", "fixed:1"),
        ("tune", "fixed", "--trials", "16"),
    ],
    ids=lambda words: words[2],
)
def test_commands_say_what_intervals_cover_and_what_costs_warn_of(command, tmp_path, capsys):
    name, *options = command
    argument = [options.pop(0)] if name == "tune" else []
    synthetic.iid(0.5, 20, 30, 4, seed=1, confidence=True).save(tmp_path / "a.parquet")
    cost = replicated(CostModel.from_ratio(0.2, 4), R=8)
    cost = replace(cost, precision=replace(cost.precision, warnings=("a busy machine",)))
    cost.to_json(tmp_path / "a.cost.json")
    words = [name, *argument, tmp_path / "a.parquet", *options]
    code, out, error = run(capsys, *words)
    assert code == 0
    assert "95% intervals over prompts and prices." in " ".join(out.split())
    assert error == "simspec: a.cost.json: a busy machine\n"
    code, out, error = run(capsys, *words, "--json", "--cost", 0.2)
    assert (code, json.loads(out)["covers"], error) == (0, ["prompts"], "")
