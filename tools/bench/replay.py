"""Time of a simulated round, as one JSON: python tools/bench/replay.py [--repetitions 20] [--small]
(make bench)

500 sequences x 512 rows, K = 16, acceptance 0.7, features on. Every repetition draws anew (another
seed, another recording of two), or the branch predictor would learn the path and bias the
figure; all forms of a policy are timed in turn within one repetition, so a slow minute of the
machine falls on all alike. A ratio is a median of ratios within repetitions.

| key | meaning |
| --- | --- |
| ns_per_round | of the compiled loop, output arrays reused (median; `best` is the least) |
| replay_ns | of `simspec.replay` as called, with its checks and fresh arrays |
| tokens_per_s | committed tokens, one core and two (two threads, two recordings) |
| over_limit | times the hand-written loop of the same rounds and draws (tools/bench/forms.py) |
| under_numpy | times faster than the vectorised NumPy form |
| under_twin | times faster than the slow twin (tests/naive.py), on the first sequences |
| profile | time over the limit: one more call of the policy, state in memory, arithmetic alone |

The state of a policy is kept in memory from round to round, where the limit has registers. The
arithmetic of cali_ts and cost_ts is timed alone.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests")]
import forms  # noqa: E402
import history  # noqa: E402
import naive  # noqa: E402
import sweep  # noqa: E402
from numba import njit  # noqa: E402

from simspec import CostModel, replay, synthetic  # noqa: E402
from simspec.numerics.rng import beta_draw  # noqa: E402
from simspec.policies import (  # noqa: E402
    beta_ts,
    cali_ts,
    confidence,
    cost_ts,
    fixed,
    hf_heuristic,
    oracle,
    product,
)
from simspec.policies.calibrated import clipped_mean  # noqa: E402
from simspec.replay.kernel import Output, kernel  # noqa: E402
from simspec.replay.replay import policy_arrays, prepare, recording  # noqa: E402
from simspec.trace.quantization import LOG_ODDS, TABLES  # noqa: E402

THETA = "confidence"  # calibrated: accepted with exactly this probability


def cases(traces, cost):
    """(policies by recording, limit(trace, seed, out) or None, vectorised(trace, seed) or None)
    of every policy timed.
    """
    lowest = int(np.searchsorted(LOG_ODDS, 0.4))
    calibrated = cali_ts(predictor=THETA)
    _, model, sample, theta0 = calibrated.params[:4]

    def codes(trace):
        return trace.feature[:, :, 0]

    return [
        (
            fixed(0),
            lambda t, s, out: forms.chase(t.offset, t.run, 0, out),
            lambda t, s: forms.numpy_fixed(t, 0),
        ),
        (
            fixed(3),
            lambda t, s, out: forms.chase(t.offset, t.run, 3, out),
            lambda t, s: forms.numpy_fixed(t, 3),
        ),
        (
            fixed(8),
            lambda t, s, out: forms.chase(t.offset, t.run, 8, out),
            lambda t, s: forms.numpy_fixed(t, 8),
        ),
        (
            confidence(0.4),
            lambda t, s, out: forms.leave(t.offset, t.run, codes(t), lowest, 16, out),
            lambda t, s: forms.numpy_confidence(t, 0.4),
        ),
        (
            product(0.7),
            lambda t, s, out: forms.multiply(t.offset, t.run, codes(t), LOG_ODDS, 0.7, 16, out),
            None,
        ),
        (hf_heuristic(5), lambda t, s, out: forms.follow(t.offset, t.run, 5, 16, out), None),
        (
            beta_ts(),
            lambda t, s, out: forms.toss(t.offset, t.run, t.sequence, np.uint64(s), 16, out),
            forms.numpy_beta_ts,
        ),
        (
            calibrated,
            lambda t, s, out: forms.calibrate(
                t.offset,
                t.run,
                codes(t),
                LOG_ODDS,
                t.sequence,
                np.uint64(s),
                model,
                sample,
                theta0,
                16,
                out,
            ),
            None,
        ),
        (cost_ts()(traces[0], cost), None, None),
        ([oracle(trace, cost) for trace in traces], None, None),
    ]


def loop(trace, policy, cost, seed, outputs):
    """The compiled loop alone, into arrays that are there already: call it for its time."""
    K, cost, columns, grids = prepare(trace, policy, cost)
    compiled, arrays = kernel(policy), policy_arrays(policy, K)
    arguments = recording(trace, columns, grids), cost.tables, arrays, Output(*outputs)
    return lambda: compiled(*arguments, K, np.uint64(seed), policy.scope == "stream")


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def buffers(trace):
    return [
        np.zeros(trace.sequences + 1, np.int64),
        *(np.zeros(trace.rows, np.int64) for _ in range(4)),
    ]


def bench(policy, limit, vectorised, traces, cost, repetitions, twin):
    """One policy's row."""
    pair = policy if isinstance(policy, list) else [policy] * 2
    outs, path = [buffers(trace) for trace in traces], np.zeros(traces[0].rows, np.int64)
    part = traces[0].select(range(twin))
    shown = [TABLES[grid] for _, grid in part.meta.features]
    times = {key: [] for key in ("loop", "call", "limit", "numpy", "two")}
    rounds = 0
    with ThreadPoolExecutor(2) as pool:
        for i in range(-1, repetitions):  # the first warms up
            seed, trace, mine, out = i + 1, traces[i % 2], pair[i % 2], outs[i % 2]
            took = {"loop": seconds(loop(trace, mine, cost, seed, out))}
            rounds = int(out[0][-1])
            took["call"] = seconds(
                lambda trace=trace, mine=mine, seed=seed: replay(trace, mine, seed, cost)
            )
            if limit:
                took["limit"] = seconds(lambda trace=trace, seed=seed: limit(trace, seed, path))
            if vectorised and i < 5:
                took["numpy"] = seconds(lambda trace=trace, seed=seed: vectorised(trace, seed))
            both = [loop(traces[j], pair[j], cost, seed, outs[j]) for j in (0, 1)]
            took["two"] = seconds(
                lambda both=both: [f.result() for f in [pool.submit(call) for call in both]]
            )
            if i >= 0:
                for key, value in took.items():
                    times[key].append(
                        value / (sum(o[0][-1] for o in outs) if key == "two" else rounds) * 1e9
                    )
    row = {
        "policy": pair[0].name,
        "tokens_per_round": round(traces[0].rows / len(replay(traces[0], pair[0], cost=cost)), 3),
        "ns_per_round": round(statistics.median(times["loop"]), 2),
        "best": round(min(times["loop"]), 2),
        "replay_ns": round(statistics.median(times["call"]), 2),
    }
    per_round = row["tokens_per_round"] * 1e9
    row["tokens_per_s"] = {
        "one_core": round(per_round / row["ns_per_round"]),
        "two": round(per_round / statistics.median(times["two"])),
    }

    def ratio(top, bottom):
        return round(statistics.median(a / b for a, b in zip(top, bottom)), 3)

    row["over_limit"] = ratio(times["loop"], times["limit"]) if limit else None
    row["under_numpy"] = ratio(times["numpy"], times["loop"]) if vectorised else None
    if not isinstance(policy, list):
        slow = (
            seconds(lambda: naive.replay(part, policy, 1, cost, shown))
            / len(replay(part, policy, 1, cost))
            * 1e9
        )
        row["under_twin"] = round(slow / row["ns_per_round"], 1)
    return row


def main() -> None:
    """Print the JSON; progress goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument(
        "--small",
        action="store_true",
        help="sizes at which only the command is tried, not the speed",
    )
    parser.add_argument(
        "--history", type=Path, help="add the ratios to this file, and compare them with its others"
    )
    options = parser.parse_args()
    earlier = history.read(options.history) if options.history else []
    size = (6, 40) if options.small else (500, 512)
    traces = [synthetic.iid(0.7, *size, 16, seed=seed, confidence=True) for seed in (1, 2)]
    cost = CostModel.from_ratio(0.1, 16)
    rows = []
    for case in cases(traces, cost):
        rows.append(bench(*case, traces, cost, options.repetitions, min(10, size[0])))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    report = {
        "machine": history.cpu_model(),
        "python": platform.python_version(),
        "sequences": size[0],
        "rows": size[1],
        "repetitions": options.repetitions,
        "policies": rows,
        "profile": profile(rows, traces, options.repetitions),
        "sweep": sweep.timed(options.small),
    }
    report["ratios"] = history.compared(history.ratios(report), earlier)
    print(json.dumps(report, indent=1))
    print(history.table(report["ratios"]), file=sys.stderr)
    if options.history and not options.small:
        history.append(options.history, report, history.ratios(report))


def profile(rows, traces, repetitions) -> dict:
    """Where the time over the limit goes: what one more question costs, signals that pass through
    memory (times the limit of confidence), and the arithmetic of one question or round alone.
    """
    by_name = {row["policy"].split(",")[0]: row for row in rows}
    ask = (by_name["fixed:8"]["ns_per_round"] - by_name["fixed:3"]["ns_per_round"]) / 5
    means, draws = (
        np.random.default_rng(0).uniform(-0.2, 1.2, 20000),
        np.random.default_rng(1).random(20000),
    )
    counts = np.random.default_rng(2).integers(1, 200, (20000, 2)).astype(float)
    state = by_name["hf_heuristic:5"]["ns_per_round"] * (
        1 - 1 / by_name["hf_heuristic:5"]["over_limit"]
    )
    report = {
        "one_more_question_ns": round(ask, 2),
        "state_in_memory_ns": round(state, 2),
        "confidence_through_memory": round(_through_memory(traces, repetitions), 3),
    }
    for name, call in (
        ("clipped_mean_of_cali_ts_ns", lambda: _means(means)),
        ("beta_draw_of_cost_ts_ns", lambda: _draws(draws, counts)),
    ):
        call()
        report[name] = round(min(seconds(call) for _ in range(5)) / 20000 * 1e9, 1)
    return report


def _through_memory(traces, repetitions) -> float:
    """Times the limit of confidence(0.4), median over repetitions, of the same loop with its
    signals written to memory and read back.
    """
    path, shown, ratios = np.zeros(traces[0].rows, np.int64), np.full((16, 1), np.nan), []
    lowest = int(np.searchsorted(LOG_ODDS, 0.4))
    for i in range(-2, repetitions):  # both recordings once as a warm-up
        trace = traces[i % 2]
        arrays = trace.offset, trace.run, trace.feature[:, :, 0]
        limit = seconds(lambda a=arrays: forms.leave(*a, lowest, 16, path))
        memory = seconds(
            lambda a=arrays: forms.leave_through_memory(*a, LOG_ODDS, 0.4, 16, shown, path)
        )
        ratios.append(memory / limit)
    return statistics.median(ratios[2:])


@njit
def _means(mean):
    total = 0.0
    for x in mean:
        total += clipped_mean(x, 0.2)
    return total


@njit
def _draws(u, counts):
    total = 0.0
    for i in range(len(u)):
        total += beta_draw(u[i], 0, counts[i, 0], counts[i, 1])
    return total


if __name__ == "__main__":
    main()
