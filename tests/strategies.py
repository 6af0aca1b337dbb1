"""Random valid traces, costs and the policies that every exam runs, for hypothesis."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from simspec import CostModel, Policy, Trace, TraceMeta
from simspec.engines.text import WrittenText
from simspec.policies import KINDS, make
from simspec.policy.predictor import ScalarPredictor
from simspec.trace.quantization import TABLES
from simspec.trace.synthetic import iid

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
            rule="greedy", target="tiny target", drafter="tiny drafter", K=K, features=features,
            end_tokens=(END,), tasks=tuple(rng.choice(["code", "prose"], count).tolist()),
            ids=tuple(f"id{s}" for s in range(count)), versions={"simspec": "test"}
        ),
        **parts,
    )  # fmt: skip


@st.composite
def costs(draw, K=6, nodes=0):
    """Of chains of K tokens; of trees of `nodes` nodes too, where it is above 0."""
    # exact in binary, so that sums of two orders agree
    times = st.integers(0, 64).map(lambda n: n / 64)
    steps = draw(st.lists(times, min_size=K, max_size=K))
    rows = (nodes or K) + 1
    verify = draw(st.lists(times.map(lambda t: t + 0.25), min_size=rows, max_size=rows))
    catch_up = draw(st.lists(times, min_size=0, max_size=3))
    return CostModel(
        np.cumsum([0.0, *steps]), verify, [0.0, *catch_up], overhead=draw(times), baseline=1.0,
        node=draw(times) if nodes else 0.0,
    )  # fmt: skip


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
        f"nosy-{scope}", _nosy_more, _nosy_observe, (0.6, 0.7), (0.0,) * 5, None, ("confidence",),
        scope, True
    )  # fmt: skip


SCALAR = ScalarPredictor(0.2, 0.6, -0.3, 0.1)
PLANNED_TRACE = iid(0.5, 1, 4, 6)
PLANNED_COST = CostModel(0.125 * np.arange(7), np.ones(7), [0, 0.25], 0.0, 1.0)

EXAM = [
    *(
        policy
        for kind in KINDS.values()
        if kind.group != "trees" and not kind.clairvoyant
        for policy in (make(text, PLANNED_TRACE, PLANNED_COST) for text in kind.examples)
        if (policy.K or 0) <= 1  # random recordings may be one token deep
    ),
    make("beta_ts:K=1", PLANNED_TRACE, PLANNED_COST),  # a cap
    nosy(),
    nosy("stream"),
]
"""Every built-in policy by its own examples, and a user's; those that plan, planned for a trace and
costs that are not those they are replayed with."""


def as_lists(rounds):
    columns = zip(
        rounds.row.tolist(),
        rounds.computed.tolist(),
        rounds.drafted.tolist(),
        rounds.accepted.tolist(),
    )
    flat = list(columns)
    return [flat[a:b] for a, b in zip(rounds.offset[:-1], rounds.offset[1:])]


def joined(*parts):
    """The sequences of these recordings, one after the other, without margins."""
    names = ("budget", "token", "depth", "run", "feature")
    names += ("rank",) if all(part.rank is not None for part in parts) else ()
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    lengths = np.concatenate([np.diff(part.offset) for part in parts])
    ids = tuple(str(s) for s in range(len(lengths)))
    tasks = tuple(task for part in parts for task in part.meta.tasks)
    meta = replace(parts[0].meta, tasks=tasks, ids=ids)
    return Trace(offset=np.concatenate(([0], np.cumsum(lengths))), meta=meta, **arrays)


def grids(trace):
    return [TABLES[grid] for _, grid in trace.meta.features]


def drawn_recording(seed: int, prompts: int = 12, rows: int = 20) -> Trace:
    """A recording of the rejection rule; prompts are easier or harder."""
    rng = np.random.default_rng(seed)
    offset = np.arange(prompts + 1) * rows
    mean = rng.choice(np.array([0.5, 0.9]), (prompts, 1, 1))
    ratio = np.minimum(1, mean * rng.uniform(0.6, 1.2, (prompts, rows, 4))).reshape(-1, 4)
    left = np.tile(np.arange(rows, 0, -1), prompts)
    ratio[np.arange(4) >= left[:, None]] = 0
    names = tuple(f"p{s}" for s in range(prompts))
    meta = TraceMeta("rejection", "t", "d", 4, temperature=1.0, tasks=names, ids=names)
    return Trace(
        offset=offset, budget=np.full(prompts, rows), token=np.ones(prompts * rows, np.int32),
        depth=np.full(prompts * rows, 4, np.uint8), run=np.zeros(prompts * rows, np.uint8),
        meta=meta, ratio=ratio.astype(np.float32)
    )  # fmt: skip


def world(seed, sequences=3):
    """[(prompt, future, budget)]: token ids whose repetitions n-gram rules find, end tokens too."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(sequences):
        weights = [0.4, 0.3, 0.25, float(rng.choice([0.0, 0.05, 0.2]))]
        text = rng.choice(4, 60, p=np.array(weights) / sum(weights)).tolist()
        if rng.random() < 0.5:
            text = (text[: int(rng.integers(2, 6))] * 40)[:60]
        cut = int(rng.integers(0, 14))
        made.append((text[:cut], text[cut:], int(rng.integers(1, 24))))
    return made


def written(made):
    """The texts that a target leaves of a world, which stop at the end token 3 or at the budget."""
    texts = []
    for s, (prompt, future, budget) in enumerate(made):
        ends = [i + 1 for i, token in enumerate(future) if token == 3]
        output = future[: min([budget, *ends])]
        texts.append(
            WrittenText(str(s), "t", np.array(prompt, np.int32), np.array(output, np.int32), budget)
        )
    return texts
