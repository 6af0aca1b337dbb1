"""A server under load: the slow twin, queueing theory, the lock step and the single replay."""

import math
from dataclasses import replace

import naive_load
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config
from strategies import costs, traces
from test_lock_step import named, token_costs, twin_rounds

from simspec import CostModel, policies, replay, synthetic
from simspec.cost.batch import TokenCost
from simspec.cost.table import CostTable
from simspec.numerics.rng import ARRIVAL, uniform
from simspec.numerics.stats import replicated
from simspec.replay.arrivals import Requests, poisson_requests, read_arrivals, recorded_requests
from simspec.replay.load import Schedule, Server, serve
from simspec.replay.load_metrics import Counting, load_figures
from simspec.replay.lock_step import plain_steps, policy_steps

WORK = (0, 2, "confidence:0.5", "plain", "schedule:1=4/2=1/3=0")
CATCH_UP = np.array([0.0, 0.5, 0.75])
CACHED = Server(4, 64, False)


def exact(tokens):
    """Costs of these terms, so short that sums of two orders agree."""
    return replace(tokens.cost(6, 3.0), catch_up=CATCH_UP)


@st.composite
def arrivals(draw, most=3):
    """Whole sixty-fourths of a second, often at once."""
    gaps = draw(st.lists(st.sampled_from((0, 0, 8, 100, 500)), min_size=1, max_size=12))
    return np.cumsum(gaps) / 64, draw(st.integers(0, 2**32))


def requests_of(trace, drawn):
    times, seed = drawn
    chosen = np.random.default_rng(seed).integers(0, trace.sequences, len(times))
    return Requests(times, chosen)


def times_of(served):
    return list(zip(served.start.tolist(), served.first.tolist(), served.finish.tolist()))


def steps_of(served):
    columns = (served.begin, served.seconds, served.held, served.active, served.rows)
    return list(zip(*(column.tolist() for column in (*columns, served.emitted))))


@settings(max_examples=100)
@given(
    traces(),
    token_costs(),
    st.sampled_from(WORK),
    arrivals(),
    st.builds(Server, st.integers(1, 4), st.integers(1, 9), st.booleans()),
    st.sampled_from((None, 7.0)),
)
def test_every_time_equals_the_slow_twin(trace, tokens, work, drawn, server, context):
    requests, cost = requests_of(trace, drawn), exact(tokens)
    if work == "plain":
        rounds = None

        def decide(s, number, row, held):
            return row, 0, 0, 0

    elif str(work).startswith("schedule"):
        top = min(4, trace.K)
        rounds = Schedule(((1, top), (2, 1), (3, 0)))

        def decide(s, number, row, held):
            return naive_load.scheduled_round(trace, rounds.starts, s, row, held)

    else:
        rounds = replay(trace, policies.parse(named(work, trace)), 0)
        listed = twin_rounds(rounds, trace)

        def decide(s, number, row, held):
            return listed[s][number]

    served = serve(trace, requests, rounds, cost, server, context)
    pairs = list(zip(requests.arrival.tolist(), requests.sequence.tolist()))
    times, steps = naive_load.run(
        trace, pairs, decide, server, (tokens, CATCH_UP.tolist()), context
    )
    assert steps_of(served) == steps
    assert times_of(served) == times
    # L = lambda W of the requests that the server holds, in exact sums
    assert (served.held * served.seconds).sum() == (served.finish - served.start).sum()
    assert served.emitted.sum() == served.tokens.sum()


def walk(trace, rounds, batch):
    """Sequences by the steps at which slots of a lock step take them, ties by slot."""
    counts, S = np.diff(rounds.offset), trace.sequences
    taken = []
    for i in range(batch):
        step = 0
        for n in range(S):
            s = (i * S // batch + n) % S
            taken.append((step, i, s))
            step += int(counts[s])
    return [s for _, _, s in sorted(taken)]


@settings(max_examples=25)
@given(traces(), token_costs(), st.sampled_from((0, 2, "confidence:0.5")), st.integers(1, 6))
def test_saturated_server_is_the_lock_step(trace, tokens, name, batch):
    """All requests at time 0, in the order in which the slots of a refilled batch take them."""
    cost, server = exact(tokens), Server(batch, 64, False)
    rounds = replay(trace, policies.parse(named(name, trace)), 0)
    order = walk(trace, rounds, batch)
    served = serve(trace, Requests(np.zeros(len(order)), order), rounds, cost, server)
    assert served.seconds.tolist() == policy_steps(trace, rounds, cost, batch).seconds.tolist()
    assert (served.active == batch).all()
    none = np.zeros(trace.rows, np.int64)
    plain = type(rounds)(trace.offset, np.arange(trace.rows), none, none, none)
    order = walk(trace, plain, batch)
    served = serve(trace, Requests(np.zeros(len(order)), order), None, cost, server)
    assert served.seconds.tolist() == plain_steps(trace, cost, batch).seconds.tolist()


@pytest.mark.parametrize("known", [(), (9, 40), (3, 5)], ids=["line", "all rows", "some rows"])
def test_saturated_table_is_the_lock_step(known):
    """Cells of several batch sizes, of a line between rows a request or of passes by rows."""
    trace = synthetic.iid(0.7, 9, 30, 3, seed=1)
    cells = [CostModel([0, 0.1, 0.3, 0.4], 1 + 0.3 * m * np.arange(4), [0, 0.2], 0.1, 1.5)
             for m in (1, 2, 8)]  # fmt: skip
    for i, rows in enumerate(known, 1):
        cells[i] = replace(cells[i], passes=1 + 0.2 * np.sqrt(np.arange(rows)))
    table = CostTable((1, 2, 8), (0,), tuple((cell,) for cell in cells))
    for batch in (1, 2, 3, 8):
        rounds = replay(trace, policies.parse("fixed:3"))
        order = walk(trace, rounds, batch)
        served = serve(
            trace, Requests(np.zeros(len(order)), order), rounds, table, Server(batch, 64, False)
        )
        steps = policy_steps(trace, rounds, table, batch)
        np.testing.assert_allclose(served.seconds, steps.seconds, rtol=1e-12)
    with pytest.raises(ValueError, match="batch sizes 1 to 8"):
        serve(trace, Requests([0.0], [0]), rounds, table, Server(9))


def test_file_order_is_another_lock_step():
    """Control: the order of requests matters, so equality above is no accident of sums."""
    trace = synthetic.iid(0.7, 9, 30, 3, seed=1).select([0, 1, 2, 3])
    rounds = replay(trace, policies.parse("fixed:3"))
    cost, server = exact(TokenCost(1.0, 0.25, draft=0.5)), Server(2, 64, False)
    served = serve(trace, Requests(np.zeros(8), [0, 1, 2, 3] * 2), rounds, cost, server)
    steps = policy_steps(trace, rounds, cost, 2)
    assert served.seconds.tolist() != steps.seconds.tolist()


@settings(max_examples=25)
@given(traces(), costs(), st.sampled_from((0, 2, "beta_ts", "ucb")))
def test_lone_requests_take_their_replay(trace, cost, name):
    policy = policies.make(named(name, trace), trace, cost)
    rounds, paid = replay(trace, policy, 3, cost), cost.reading(policy.reads)
    requests = Requests(np.arange(trace.sequences) * 1024.0, np.arange(trace.sequences))
    served = serve(trace, requests, rounds, cost, CACHED, reads=policy.reads)
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    alone = np.bincount(sequence, paid.seconds(rounds), trace.sequences)
    assert (served.finish - served.arrival).tolist() == alone.tolist()
    assert (served.start == served.arrival).all()


def service(trace, rounds, cost):
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    return np.bincount(sequence, cost.seconds(rounds), trace.sequences)


@pytest.mark.skipif(config.DISABLE_JIT, reason="takes minutes when interpreted")
@pytest.mark.parametrize("texts", [1, 40])
@pytest.mark.parametrize("burst", [1.0, 3.0])
def test_one_slot_waits_as_queueing_theory_says(texts, burst):
    """M/G/1 and, in bursts of mean b, M^X/G/1: Pollaczek and Khinchine's mean wait
    lambda E[S^2] / (2 (1 - rho)), and (b - 1) E[S] / (1 - rho) more.

    24 runs of 8,000 requests; within 4 standard errors: a right figure fails in 0.06%, one that is
    off by 8 errors (about 8% here) passes in 0.1%.
    """
    trace = synthetic.iid(0.7, texts, 30, 3, seed=2)
    rounds, cost = replay(trace, policies.parse("fixed:3")), CostModel.from_ratio(0.1, 3)
    S = service(trace, rounds, cost)
    rho = 0.6
    rate = rho / S.mean()
    truth = rate * (S**2).mean() / (2 * (1 - rho)) + (burst - 1) * S.mean() / (1 - rho)
    means = []
    for seed in range(24):
        requests = poisson_requests(8000, rate, texts, seed, burst)
        served = serve(trace, requests, rounds, cost, Server(1, 64, False))
        means.append((served.start - served.arrival)[800:].mean())
    error = np.std(means, ddof=1) / math.sqrt(len(means))
    assert error < 0.03 * truth
    assert abs(np.mean(means) - truth) < 4 * error
    for wrong in (truth * 2 * (1 - rho), truth + S.mean()):  # controls: no queue's factor, sojourn
        assert abs(np.mean(means) - wrong) > 8 * error


def test_figures_keep_littles_law():
    """Without a warm-up the mean batch is the rate of requests times their mean time in it."""
    trace = synthetic.iid(0.7, 20, 40, 3, seed=2)
    rounds, cost = replay(trace, policies.parse("fixed:3")), CostModel.from_ratio(0.1, 3)
    requests = poisson_requests(300, 0.5, 20, 3, 2.0)
    served = serve(trace, requests, rounds, cost, Server(8, 64))
    figures = load_figures(served, Counting(0.0))
    inside = figures.latency.mean - figures.wait.mean
    assert figures.batch == pytest.approx(figures.offered * inside, rel=1e-12)
    assert np.mean(figures.batch_by_time) == pytest.approx(figures.batch)
    assert figures.tokens_per_second == pytest.approx(figures.offered * served.tokens.mean())
    idle = served.begin[1:] - (served.begin + served.seconds)[:-1]
    assert figures.busy == pytest.approx(1 - idle.sum() / (served.finish.max() - served.arrival[0]))


def test_prompts_by_hand():
    """Prompts of 6 and 2 tokens, 4 tokens a step, drafts of 1; a row costs 1, a pass 10, a draft
    100; all drafts accepted: 2 rounds of 2 tokens each.

    | step | first request | second | rows |
    | --- | --- | --- | --- |
    | 1 | reads 4 | | 4 |
    | 2 | reads 2, and a round of 1 draft | reads 1 | 3 + 1 |
    | 3 | a round | reads 1, and a round | 2 + 2 |
    | 4 | | a round | 2 |
    """
    trace = synthetic.iid(1.0, 2, 4, 1)
    trace = replace(trace, prompt_offset=np.array([0, 6, 8]), prompt=np.zeros(8, np.int32))
    rounds = replay(trace, policies.parse("fixed:1"))
    cost = TokenCost(10.0, 1.0, draft=100.0).cost(1)
    served = serve(trace, Requests([0.0, 1.0], [0, 1]), rounds, cost, Server(2, 4))
    assert served.rows.tolist() == [4, 4, 4, 2]
    assert served.active.tolist() == [1, 2, 2, 1]
    assert served.held.tolist() == [1, 2, 2, 1]
    assert served.seconds.tolist() == [14, 114, 114, 112]
    assert served.start.tolist() == [0, 14]
    assert served.first.tolist() == [128, 242]
    assert served.finish.tolist() == [242, 354]
    figures = load_figures(served, Counting(0.0, ttft=200.0))
    assert (figures.ttft.mean, figures.latency.mean, figures.wait.mean) == (184.5, 297.5, 6.5)
    assert figures.tpot.mean == pytest.approx((114 + 112) / 2 / 3)
    assert (figures.good, figures.goodput) == (0.5, pytest.approx(1 / 354))


def test_constant_schedule_is_the_fixed_length():
    trace = synthetic.iid(0.6, 10, 30, 4, seed=3)
    cost, requests = CostModel.from_ratio(0.1, 4), poisson_requests(50, 0.2, 10)
    for K in (0, 3):
        fixed = serve(trace, requests, replay(trace, policies.parse(f"fixed:{K}")), cost, CACHED)
        for starts in (((1, K),), ((1, K), (5, 4))):  # of 5 requests on: never held
            scheduled = serve(trace, requests, Schedule(starts), cost, CACHED)
            assert times_of(scheduled) == times_of(fixed)
    assert Schedule.parse("schedule:1=5/9=3").lengths(10).tolist() == [5] * 9 + [3, 3]


def test_arrivals_are_addressed_and_share_draws():
    slow, fast = (poisson_requests(500, rate, 7, 5, 2.5) for rate in (1.0, 4.0))
    np.testing.assert_allclose(slow.arrival, 4 * fast.arrival)
    assert slow.sequence.tolist() == fast.sequence.tolist()
    draws = [[uniform(5, i, 0, slot, ARRIVAL) for slot in range(3)] for i in range(500)]
    gaps = [0.0 if u[2] < 1 - 1 / 2.5 else -math.log(u[0]) * 2.5 for u in draws]
    np.testing.assert_allclose(slow.arrival, np.cumsum(gaps))
    assert slow.sequence.tolist() == [int(7 * u[1]) for u in draws]
    assert poisson_requests(100, 1.0, 7, 5).arrival.tolist() == pytest.approx(
        np.cumsum([-math.log(u[0]) for u in draws[:100]]).tolist()
    )
    recorded = recorded_requests([3.0, 3.0, 5.0], 7, 5, rate=4.0)
    np.testing.assert_allclose(recorded.arrival, [0, 0, 0.5])
    assert recorded.sequence.tolist() == slow.sequence[:3].tolist()


def test_mean_rate_is_the_stated_one():
    """64 runs of 2,000; within 4 errors of the mean."""
    for burst in (1.0, 4.0):
        rates = [2000 / poisson_requests(2000, 3.0, 1, seed, burst).arrival[-1]
                 for seed in range(64)]  # fmt: skip
        assert abs(np.mean(rates) - 3.0) < 4 * np.std(rates, ddof=1) / 8 + 0.003 * burst


def test_student_interval_of_replications():
    found = replicated([1.0, 2.0, 3.0, math.nan])
    assert (found.value, found.prompts) == (2.0, 3)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3))  # t of 2 degrees
    assert math.isnan(replicated([1.0]).low)
    assert math.isnan(replicated([math.nan]).value)


@pytest.mark.parametrize(
    "content", [b"", b"1\n0.5", b"-1", b"nan", b"1e300", b"x", b"\xff", b"1,2"]
)
def test_wrong_arrivals_are_one_line(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="no arrival times") as error:
        read_arrivals(tmp_path / "a")
    assert "\n" not in str(error.value)


def test_long_runs_are_refused_before_memory_is_taken():
    trace = synthetic.iid(0.5, 1, 1000, 1)
    requests = Requests(np.zeros(40_000), np.zeros(40_000, np.int64))
    with pytest.raises(ValueError, match="give fewer requests"):
        serve(trace, requests, None, CostModel.from_ratio(0.1, 1), CACHED)
