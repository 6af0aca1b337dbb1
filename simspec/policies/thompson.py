"""Thompson sampling of the continuation, Beta prior (EESD, Algorithm 2)."""

from simspec.policy import Policy, PolicyError

READINGS = ("acceptance", "censored", "printed", "printed_with_correction")


def _draft_more(params, state, slot, features, u):
    # Algorithm 2 asks after each drafted token, so there is always a first one.
    if slot == 0:
        return True, True
    return u < state[0] / (state[0] + state[1]), True


def _observe(params, state, computed, drafted, accepted, features, cost):
    if params[0] == 0.0:
        successes, trials = accepted, min(accepted + 1, drafted)
    elif params[0] == 1.0:
        successes = max(accepted - 1, 0)
        trials = successes + 1 if 1 <= accepted < drafted else successes
    elif params[0] == 2.0:
        successes, trials = max(accepted - 1, 0), min(accepted + 1, drafted)
    else:
        verified = min(accepted + 1, drafted)
        successes, trials = max(verified - 1, 0), min(verified + 1, drafted)
    state[0] += successes
    state[1] += trials - successes


def beta_ts(
    reading: str = "acceptance",
    alpha0: float = 1.0,
    beta0: float = 1.0,
    scope: str = "sequence",
    K: int | None = None,
) -> Policy:
    """Beta-TS (EESD Alg. 2): after each token draw theta ~ Beta(alpha, beta), go on with probability theta.

    theta is fresh at every question, so going on is exactly Bernoulli(alpha / (alpha + beta)): one uniform decides.
    After a round with a of k tokens accepted, alpha += r and beta += n - r. The printed update counts the policy's own
    stop as a failure and drifts to short drafts, against the paper's own tables; the readings are
    `acceptance`: r = a, n = min(a + 1, k), every verified token a trial of acceptance;
    `censored`: going on after token j was right iff token j + 1 was accepted, a stop of one's own says nothing:
    r = max(a - 1, 0), n = r + 1 if 1 <= a < k else r;
    `printed`: |Q_v| = a, r = max(a - 1, 0), n = min(a + 1, k);
    `printed_with_correction`: |Q_v| = min(a + 1, k), r = max(|Q_v| - 1, 0), n = min(|Q_v| + 1, k).
    The default won on one half of the bundled recordings' prompts, over three prices (tests/bench/readings.py): mean speedup 1.317 against
    1.310 of `censored`; on the other half it is ahead by up to 0.023 on sampled text, and on greedy text neither leads beyond chance.
    PolicyError for an unknown reading or alpha0, beta0 not > 0.
    """
    if reading not in READINGS:
        raise PolicyError(f"beta_ts: reading is {reading!r}, expected one of {', '.join(READINGS)}")
    for name, value in (("alpha0", alpha0), ("beta0", beta0)):
        if isinstance(value, str) or not 0 < value < float("inf"):
            raise PolicyError(f"beta_ts: {name} is {value!r}, expected a finite number > 0")
    given = {
        "alpha0": (alpha0, 1.0),
        "beta0": (beta0, 1.0),
        "scope": (scope, "sequence"),
        "K": (K, None),
    }
    name = ",".join(
        [f"beta_ts:{reading}"]
        + [f"{key}={value}" for key, (value, usual) in given.items() if value != usual]
    )
    params = (READINGS.index(reading),)
    return Policy(
        name, _draft_more, _observe, params, (alpha0, beta0), K=K, scope=scope, random=True
    )
