"""What every test of the field's rules uses: strategies, and walks by a policy's own functions."""

import field_rules as twins
import numpy as np
from hypothesis import strategies as st
from strategies import traces

from simspec import replay
from simspec.trace.quantization import TABLES

SEED = st.integers(0, 2**64 - 1)
SCOPE = st.sampled_from(["sequence", "stream"])
LONG = traces(max_rows=60, max_sequences=3, optional=False)
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(sorted)
# No sum of a few shares meets one of these: a tie would hang on rounding.
THRESHOLD = st.integers(0, 1009).map(lambda n: (n + 0.123) / 1011)


def text(lengths):
    return "/".join(map(str, lengths))


def same(trace, policy, make_twin, cost, seed=0, features=()):
    """Asserts that a replay makes the rounds of the twin."""
    names = [name for name, _ in trace.meta.features]
    grids = dict(trace.meta.features)
    columns = [(names.index(name), TABLES[grids[name]]) for name in features]
    rounds = replay(trace, policy, seed, cost)
    flat = list(zip(rounds.row.tolist(), rounds.drafted.tolist(), rounds.accepted.tolist()))
    walked = [flat[a:b] for a, b in zip(rounds.offset[:-1], rounds.offset[1:])]
    assert walked == twins.play(trace, policy, make_twin, cost, seed, columns)


def learn(policy, state, accepted, drafted, features=(), cost=1.0, K=16):
    """The state after a round, by the policy's own function."""
    shown = np.full((K, len(policy.reads)), np.nan)
    for slot, values in enumerate(features):
        shown[slot] = values
    state = np.array(state, dtype=float)
    policy.compiled()[1](np.array(policy.params), state, drafted, drafted, accepted, shown, cost)
    return state


def drafts(policy, outcomes, K=16):
    """Draft lengths before each round of `outcomes` (accepted tokens) and after the last."""
    more, _ = policy.compiled()
    params, state = policy.start()
    lengths = []
    for accepted in [*outcomes, None]:
        slot = 0
        while slot < K and more(params, state, slot, np.full((K, 0), np.nan), 0.5)[0]:
            slot += 1
        lengths.append(slot)
        if accepted is not None:
            state = learn(policy, state, min(accepted, slot), slot, K=K)
    return lengths
