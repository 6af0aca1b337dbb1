"""Thompson sampling: of the continuation (EESD, Algorithm 2), and of the length at given costs."""

from functools import partial
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.numerics.rng import beta_draw
from simspec.policy.policy import (
    Array,
    Draft,
    Go,
    Policy,
    Scope,
    changed_settings,
    check_priced,
    checked,
    policy_name,
)  # fmt: skip
from simspec.policy_kind import FLAG, PRIOR, SCOPE, DeferredPolicy, Option, PolicyKind, Real
from simspec.trace.trace import Trace

Reading = Literal["acceptance", "censored", "printed", "printed_with_correction"]
READINGS = get_args(Reading)
Positive = Annotated[float, Meta(gt=0, le=1e300)]


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    # Algorithm 2 decides after each drafted token, so there is always a first one.
    if slot == 0:
        return True, True
    return u < state[0] / (state[0] + state[1]), True


def _observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
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


@checked
def beta_ts(
    reading: Reading = "acceptance",
    alpha0: Positive = 1.0,
    beta0: Positive = 1.0,
    scope: Scope = "sequence",
    K: Draft | None = None,
) -> Policy:
    """Beta-TS (EESD Alg. 2): after each token draw theta ~ Beta(alpha, beta), continue with
    probability theta.

    theta is drawn anew at every call, so continuing is Bernoulli(alpha / (alpha + beta)): one
    uniform decides. After a round with a of k tokens accepted, alpha += r and beta += n - r. The
    printed update counts the policy's own stop as a failure and drifts to short drafts, against the
    paper's own tables.

    | reading                 | r                                | n                          |
    | ----------------------- | -------------------------------- | -------------------------- |
    | acceptance              | a                                | min(a + 1, k)              |
    | censored                | max(a - 1, 0)                    | r + 1 if 1 <= a < k else r |
    | printed                 | max(a - 1, 0)                    | min(a + 1, k)              |
    | printed_with_correction | max(Q - 1, 0), Q = min(a + 1, k) | min(Q + 1, k)              |

    `acceptance`: every verified token is a trial. `censored`: continuing after token j was right
    iff token j + 1 was accepted; a stop of the policy's own is no trial. The default won on one
    half of the bundled recordings' prompts, over three prices: mean
    speedup 1.317 against 1.310 of `censored`. On the other half it leads by up to 0.023 on sampled
    text; on greedy text the difference is within noise.
    """
    settings = {"alpha0": alpha0, "beta0": beta0, "scope": scope, "K": K}
    name = ",".join([f"beta_ts:{reading}", *changed_settings(settings, beta_ts)])
    params, state0 = (READINGS.index(reading),), (alpha0, beta0)
    return Policy(name, _draft_more, _observe, params, state0, K=K, scope=scope, random=True)


Variant = Literal["shared", "depth"]
Prior = Annotated[float, Meta(ge=1e-3, le=1e6)]
_HEAD = 8

# params: 1 for the variant depth, 1 for greedy, decay, alpha0, beta0, K, entries of catch_up,
# overhead, then draft[0..K], verify[0..K], catch_up. state: the round's k, the backlog, then per
# posterior accepted and rejected trials beyond the prior.


@cached_njit
def planned(params: Array, state: Array, u: float) -> int:
    """The k in 0..K of most committed tokens per second at the acceptance sampled with u; ties go
    to the shorter draft.
    """
    K, width = int(params[5]), int(params[6])
    catch_up = params[_HEAD + 2 * (K + 1) + min(int(state[1]), width - 1)]
    tokens, reach, alpha = 1.0, 1.0, 0.0
    choice, best_tokens, best_seconds = 0, 1.0, params[7] + params[_HEAD + K + 1]
    for k in range(1, K + 1):
        if k == 1 or params[0] == 1.0:
            index = 2 * k if params[0] == 1.0 else 2
            a, b = params[3] + state[index], params[4] + state[index + 1]
            alpha = a / (a + b) if params[1] == 1.0 else beta_draw(u, k - 1, a, b)
        reach *= alpha
        tokens += reach
        seconds = params[7] + catch_up + params[_HEAD + k] + params[_HEAD + K + 1 + k]
        # Multiplied out, so that free rounds divide by nothing; the margin keeps ties ties in any
        # rounding.
        if tokens * best_seconds > best_tokens * seconds * (1.0 + 1e-12):
            choice, best_tokens, best_seconds = k, tokens, seconds
    return choice


def _planned_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        state[0] = planned(params, state, u)
    return slot < state[0], True


def _planned_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    # The backlog, as in simspec.cost.rounds.next_backlog.
    if computed == 0:
        state[1] += 1.0
    else:
        state[1] = 1.0 if accepted == computed else 0.0
    if params[2] < 1.0:
        for i in range(2, len(state)):
            state[i] *= params[2]
    for j in range(1, min(accepted + 1, drafted) + 1):
        index = 2 * j if params[0] == 1.0 else 2
        state[index if j <= accepted else index + 1] += 1.0


@checked
def cost_ts(
    variant: Variant = "shared",
    alpha0: Prior = 1.0,
    beta0: Prior = 1.0,
    decay: Annotated[float, Meta(gt=0, le=1)] = 1.0,
    greedy: bool = False,
    scope: Scope = "sequence",
    K: Draft | None = None,
) -> DeferredPolicy:
    """Cost-aware Thompson sampling, planned at the costs of (trace, cost); ours, not from a paper.

    Before each round alpha ~ Beta(alpha0 + accepted, beta0 + rejected) is sampled. The draft length
    k in 0..K is that of the largest committed / seconds:

    committed = 1 + alpha + ... + alpha^k = (1 - alpha^(k+1)) / (1 - alpha) (Leviathan et al., GLIDE
    5.1) seconds = overhead + draft[k] + verify[k] + catch_up[backlog] (the last for k >= 1)

    `shared` has one posterior: accepted += a, trials += min(a + 1, k). `depth` has one a depth:
    committed = 1 + sum_j prod_{i<=j} alpha_i, depth j is tried iff j <= min(k, a + 1); its samples
    come from one draw, see `beta_draw`. A round of k = 0 updates nothing; sampling leaves it, since
    the posterior keeps all of (0, 1) in its support. decay < 1 multiplies the counts at every
    round, so that it leaves 0 sooner. greedy uses the posterior mean (the goodput rule of serving
    engines; it needs decay < 1 to leave k = 0). With scope 'stream' the backlog carries over to the
    next sequence. PolicyError when resolved for costs shorter than K (default: the trace's).
    """
    settings = dict(locals())
    name = policy_name("cost_ts", settings, cost_ts)
    return DeferredPolicy(name, partial(_plan, name, settings))


def _plan(name: str, settings: dict[str, Any], trace: Trace, cost: CostModel) -> Policy:
    """The policy with the costs among its parameters."""
    variant, greedy, K = settings["variant"], settings["greedy"], settings["K"]
    longest = trace.K if K is None else K
    check_priced("cost_ts", cost, longest)
    params = (
        variant == "depth", greedy, settings["decay"], settings["alpha0"], settings["beta0"],
        longest, len(cost.catch_up), cost.overhead,
        *cost.draft[: longest + 1], *cost.verify[: longest + 1], *cost.catch_up,
    )  # fmt: skip
    state0 = (0.0,) * (2 + 2 * (max(longest, 1) if variant == "depth" else 1))
    return Policy(
        name, _planned_more, _planned_observe, params, state0,
        K=K, scope=settings["scope"], random=not greedy,
    )  # fmt: skip


POLICIES = (
    PolicyKind(
        beta_ts, "outcomes", "EESD, Algorithm 2", "Beta posterior", "continue with its mean",
        "reading `acceptance`", "four readings of the paper",
        examples=(
            *(f"beta_ts:{reading}" for reading in READINGS),
            "beta_ts:scope=stream,alpha0=2,beta0=0.5",
        ),
        space={"reading": Option(READINGS), "alpha0": PRIOR, "beta0": PRIOR, "scope": SCOPE},
    ),
    PolicyKind(
        cost_ts, "costs", "ours", "Beta posterior", "the length of the best sampled throughput",
        "shared posterior",
        examples=(
            "cost_ts", "cost_ts:depth,alpha0=2,decay=0.75,scope=stream",
            "cost_ts:greedy=true,decay=0.5",
        ),
        space={
            "variant": Option(get_args(Variant)), "alpha0": PRIOR, "beta0": PRIOR,
            "decay": Real(0.3, 1.0), "greedy": FLAG, "scope": SCOPE,
        },
    ),
)  # fmt: skip
