"""Random valid traces, costs and the policies that every exam runs, for hypothesis."""

import numpy as np
from hypothesis import strategies as st

from simspec import CostModel, Policy, Trace, TraceMeta
from simspec.policies import (
    adaedl,
    adaptive_confidence,
    beta_ts,
    cali_ts,
    confidence,
    cost_ts,
    draft_verify,
    ema_tiers,
    entropy,
    exp3,
    fixed,
    goodput,
    hf_heuristic,
    in_a_row,
    kill_switch,
    model_only,
    product,
    sampling_only,
    specdec_pp,
    tapout,
    throughput_aware,
    ucb,
)  # fmt: skip
from simspec.policies.thompson import READINGS
from simspec.quantization import TABLES
from simspec.scalar_predictor import ScalarPredictor
from simspec.synthetic import iid

END = 7


@st.composite
def traces(draw, max_K=6, max_rows=10, max_sequences=4, optional=True):
    K, count = draw(st.integers(1, max_K)), draw(st.integers(1, max_sequences))
    lengths = np.array(draw(st.lists(st.integers(1, max_rows), min_size=count, max_size=count)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    easy = draw(st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]))
    whole = draw(st.booleans())
    N, offset = int(lengths.sum()), np.concatenate(([0], np.cumsum(lengths)))
    ended = rng.random(count) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    budget = lengths + np.where(ended, rng.integers(0, 2 * K + 2, count), 0)
    token = rng.integers(0, END, N).astype(np.int32)
    token[offset[1:][ended] - 1] = END
    left = np.repeat(offset[1:], lengths) - np.arange(N)
    depth = np.full(N, K) if whole else rng.integers(0, K + 1, N)
    reach = np.minimum(depth, left)
    run = np.minimum((rng.random((N, K)) < easy).cumprod(axis=1).sum(axis=1), reach)
    features = (("theta", "identity"), ("entropy", "entropy"), ("confidence", "confidence"))
    if draw(st.booleans()):
        features = (*((name, name) for name in TABLES), ("theta", "identity"))
    parts = {}
    if optional and draw(st.booleans()):
        rank = rng.integers(0, 256, (N, K))
        rank[np.arange(K) < run[:, None]] = 0
        missed = np.flatnonzero(run < reach)
        rank[missed, run[missed]] = rng.integers(1, 256, len(missed))
        parts["rank"] = rank.astype(np.uint8)
    if optional and draw(st.booleans()):
        parts |= {
            name: rng.integers(0, 256, (N, K), dtype=np.uint8)
            for name in ("draft_margin", "feature_margin")
        }
        parts["margin"] = rng.integers(0, 256, N, dtype=np.uint8)
    prompt_offset = np.concatenate(([0], np.cumsum(rng.integers(0, 4, count))))
    return Trace(
        offset=offset,
        budget=budget,
        token=token,
        depth=depth.astype(np.uint8),
        run=run.astype(np.uint8),
        feature=rng.integers(0, 256, (N, K, len(features)), dtype=np.uint8),
        sequence=rng.integers(0, 2**32, count),
        prompt_offset=prompt_offset,
        prompt=rng.integers(0, 1000, prompt_offset[-1]).astype(np.int32),
        meta=TraceMeta(
            rule="greedy",
            target="tiny target",
            drafter="tiny drafter",
            K=K,
            features=features,
            end_tokens=(END,),
            tasks=tuple(rng.choice(["code", "prose"], count).tolist()),
            ids=tuple(f"id{s}" for s in range(count)),
            versions={"simspec": "test"},
        ),
        **parts,
    )


@st.composite
def costs(draw, K=6):
    times = st.integers(0, 64).map(
        lambda n: n / 64
    )  # exact in binary, so that sums of two orders agree
    steps = draw(st.lists(times, min_size=K, max_size=K))
    verify = draw(st.lists(times.map(lambda t: t + 0.25), min_size=K + 1, max_size=K + 1))
    catch_up = draw(st.lists(times, min_size=0, max_size=3))
    return CostModel(
        np.cumsum([0.0, *steps]), verify, [0.0, *catch_up], overhead=draw(times), baseline=1.0
    )


def _nosy_more(params, state, slot, features, u):
    # Reads all it may: parameters, a state of five numbers, computed features, its draw; drops
    # now and then.
    if slot > 0:
        state[4] += features[slot - 1, 0]
    return u < params[0] + 0.1 * state[0] or slot < int(state[1]), u < params[1]


def _nosy_observe(params, state, computed, drafted, accepted, features, cost):
    state[0] = 0.5 * state[0] + (0.5 if accepted == drafted else 0.0)
    # Costs are whole sixty-fourths here: any error in one shows in the next round's length.
    state[1] = (int(state[1]) + computed + drafted + int(64 * cost)) % 3
    state[2] += cost
    state[3] += 1.0
    if computed > 0 and features[computed - 1, 0] > 0.9:
        state[1] += 1.0


def nosy(scope="sequence"):
    """A user's policy, of the length that a user would write, using every door there is."""
    return Policy(
        f"nosy-{scope}",
        _nosy_more,
        _nosy_observe,
        (0.6, 0.7),
        (0.0,) * 5,
        None,
        ("confidence",),
        scope,
        True,
    )


SCALAR = ScalarPredictor(0.2, 0.6, -0.3, 0.1)


def planned(*arguments, rule=cost_ts, **named):
    """A cost-aware policy, planned for a trace and costs that are not those it is replayed with."""
    return rule(*arguments, **named)(
        iid(0.5, 1, 4, 6), CostModel(0.125 * np.arange(7), np.ones(7), [0, 0.25], 0.0, 1.0)
    )


EXAM = [
    fixed(0),
    fixed(1),
    *(beta_ts(reading) for reading in READINGS),
    beta_ts(scope="stream", alpha0=2.0, beta0=0.5, K=1),
    confidence(0.7),
    confidence(0.7, inclusive=False),
    cali_ts("draft_share"),
    cali_ts("validated", SCALAR, sigma_m=0.2, sigma_s=0.7, theta0=0.8, scope="stream"),
    cali_ts("literal", "confidence", sigma_m=2.0),
    model_only(SCALAR),
    sampling_only("draft_share", sigma_s=0.4),
    planned(),
    planned("depth", alpha0=2.0, decay=0.75, scope="stream"),
    planned(greedy=True, decay=0.5),
    entropy(),
    entropy(2.0, inclusive=False),
    product(0.3),
    product(0.6, "theta", shortest=1, inclusive=False),
    planned(0.5, "released", "theta", rule=specdec_pp),
    planned(0.6, predictor=SCALAR, shortest=1, longest=4, rule=specdec_pp),
    draft_verify(),
    adaedl(0.5, step=0.3, scope="stream"),
    hf_heuristic(2),
    hf_heuristic(3, transient=True),
    adaptive_confidence(0.6, samples=1),
    adaptive_confidence(weight=0.5, samples=0, scope="stream"),
    ema_tiers("0/1/3", interval=1, warmup=1),
    ema_tiers(weight=0.9, interval=2, warmup=0, scope="sequence"),
    planned(rule=throughput_aware, window=2, interval=2),
    planned("geometric", "1/2/4", rule=throughput_aware, window=1, interval=1, scope="sequence"),
    planned(rule=goodput, window=1),
    planned("released", rule=goodput, window=2, shortest=1, scope="sequence"),
    kill_switch(1, 3, 0.6),
    in_a_row(1, 0, 3),
    in_a_row(2, wasteful=True, scope="sequence"),
    planned(rule=ucb),
    planned("released", "0/1/3", rule=ucb, scope="stream"),
    planned(rule=exp3),
    planned("0/2/5", 2.0, rule=exp3, scope="stream"),
    tapout(),
    tapout(0.5, exploration=0.5, scope="stream"),
    nosy(),
    nosy("stream"),
]
