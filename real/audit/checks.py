"""What an audit asks of emitted tokens: gaps to the target's pick that rounding explains, draws
from the target's distributions, acceptance with probability min(1, p / q)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from real.audit.runs import EmittedSequence
from real.decode.loop import along
from real.draft import Drafter
from real.model.decoder import Decoder
from real.model.target import Target
from real.record.rows import emitted_rows
from real.rerun import MAX_EXCEPTIONS, NEAR_TIE
from real.sampling import Rule, margin
from simspec.numerics.rng import uniform
from simspec.trace.acceptance import chances


@dataclass(frozen=True)
class Tolerance:
    """How far a token's score may lie below the best one because of rounding in `dtype`.

    Up to `nats`, or up to `ulps` units in the last place; in at most a `share` of tokens.
    """

    dtype: str
    nats: float
    ulps: float
    share: float


TOLERANCES = (
    Tolerance("float64", 1e-9, 3, MAX_EXCEPTIONS),
    Tolerance("float32", NEAR_TIE, 3, MAX_EXCEPTIONS),
    Tolerance("bfloat16", 0.3, 3, 0.02),
)
"""From fine to coarse. Two bfloat16 runs differ in about 0.2% of tokens."""


def tolerance_of(*dtypes: str) -> Tolerance:
    """The tolerance of the coarsest of these dtypes."""
    return max((t for t in TOLERANCES if t.dtype in dtypes), key=lambda t: t.nats)


def truncates(rule: Rule) -> bool:
    """Whether the rule removes tokens by top-k or top-p."""
    return bool(rule.top_k) or rule.top_p < 1


def truncation_mask(rule: Rule, logits: Tensor, slack: float) -> Tensor:
    """Bool `[n, vocab]`: tokens that top-k and top-p may keep if scores move by `slack` / 2 nats.

    With slack < 0: tokens that they keep whatever the rounding.
    """
    scores = logits.double() / rule.temperature
    ranked = scores.sort(-1, descending=True)
    ahead = torch.searchsorted(-ranked.values, -ranked.values - slack)
    itself = 1 if slack < 0 else 0  # a token is not ahead of itself
    removed = torch.zeros_like(scores, dtype=torch.bool)
    if rule.top_k:
        removed[..., rule.top_k :] = True
    share = ranked.values.masked_fill(removed, -torch.inf).softmax(-1)
    cumulative = torch.cat((torch.zeros_like(share[..., :1]), share.cumsum(-1)), -1)
    mass = cumulative.gather(-1, ahead) - itself * share
    kept = mass < rule.top_p + slack if rule.top_p < 1 else torch.ones_like(removed)
    if rule.top_k:
        kept &= ahead - itself < rule.top_k
    return torch.zeros_like(removed).scatter(-1, ranked.indices, kept)


@dataclass(frozen=True)
class ScoreGaps:
    """The emitted tokens against the target's picks, greedy or coupled; arrays `[n]`.

    gap: score of the pick minus the token's, nats, inf if removed; least_gap: if top-k and top-p
    are off by `slack` nats; ulps: that in units in the last place of the larger logit. margin: best
    minus second-best score.
    """

    best: np.ndarray
    gap: np.ndarray
    least_gap: np.ndarray
    ulps: np.ndarray
    margin: np.ndarray


@torch.inference_mode()
def score_gaps(
    rule: Rule, logits: Tensor, token: tuple[int, ...], sequence: int, position: int,
    dtype: torch.dtype, slack: float,
) -> ScoreGaps:  # fmt: skip
    """Gaps of `token [n]` at positions `position`, ... from logits `[n, vocab]`."""
    ids = torch.tensor(token, device=logits.device)[:, None]
    positions = list(range(position, position + len(token)))
    scores = rule.scores(logits, sequence, positions)
    best = scores.argmax(-1, keepdim=True)
    gap = torch.where(best == ids, 0.0, scores.gather(-1, best) - scores.gather(-1, ids))
    least_gap = gap
    if truncates(rule):
        full = Rule(rule.name, rule.temperature, rule.seed).scores(logits, sequence, positions)
        certain = full.masked_fill(~truncation_mask(rule, logits, -slack), -torch.inf)
        possible = truncation_mask(rule, logits, slack).gather(-1, ids)
        least_gap = (certain.amax(-1, keepdim=True) - full.gather(-1, ids)).clamp(min=0)
        least_gap = least_gap.masked_fill(~possible, torch.inf).minimum(gap)
    larger = logits.double().gather(-1, torch.cat((best, ids), -1)).abs().amax(-1, keepdim=True)
    ulps = least_gap * rule.temperature / spacing(larger, dtype)
    columns = best[:, 0], gap[:, 0], least_gap[:, 0], ulps[:, 0], margin(scores)
    return ScoreGaps(*(column.cpu().numpy() for column in columns))


def spacing(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The unit in the last place of `dtype` at |x|, float64 (as `numpy.spacing`).

    2^(e - 1) eps where |x| = m 2^e, m in [1/2, 1).
    """
    x = x.double()
    return torch.ldexp(torch.full_like(x, torch.finfo(dtype).eps), torch.frexp(x.abs())[1] - 1)


def teacher_forced_logits(
    decoder: Decoder, prompt: tuple[int, ...], token: tuple[int, ...], rows: int = 64
) -> Iterator[tuple[int, Tensor]]:
    """Yields (position, logits `[m, vocab]`) that predict `token`, at most `rows` at a time.

    One causal pass without a KV cache, so that a faulty cache of the run cannot hide itself.
    ValueError for logits that are not finite.
    """
    with torch.inference_mode():
        inputs = torch.tensor([[*prompt, *token[:-1]]], device=decoder.device)
        hidden = decoder.through(inputs)[0, len(prompt) - 1 :]
        for start in range(0, len(token), rows):
            logits = decoder.logits(hidden[start : start + rows])
            if not logits.isfinite().all():
                raise ValueError(
                    "the target's logits are not finite; expected numbers: "
                    "its weights are damaged, or the dtype too narrow"
                )
            yield start, logits


ACCEPTANCE_TILTS = np.array([sign * 2.0**-i for i in range(1, 8) for sign in (1, -1)])
"""Alternatives h of the acceptance test: acceptance with probability r + h r (1 - r)."""


@dataclass(frozen=True)
class Bias:
    """Scores of tokens, of mean 0 without a bias; arrays `[n]`.

    variance: of the score; shift, square: how far a bias of x = 1 moves its mean, and its mean
    square there (`detectable`); tilt `[n, m]`: log(1 + h score) of each of m alternatives h.
    """

    score: np.ndarray
    variance: np.ndarray
    shift: np.ndarray
    square: np.ndarray
    tilt: np.ndarray


def acceptance_bias(
    target: Target, drafter: Drafter, rule: Rule, sequence: EmittedSequence, K: int
) -> Bias:
    """`bias_of_rounds` of a sequence's rounds of chains, at most K deep."""
    tokens = np.array(sequence.token, np.int32)
    prompt = list(sequence.prompt)
    rows = emitted_rows(target, drafter, rule, prompt, tokens, K, len(tokens))
    assert rows.ratio is not None
    return bias_of_rounds(chances(rows.ratio, rule.name), sequence.rounds, len(tokens))


def bias_of_rounds(chance: np.ndarray, rounds: Sequence[tuple[int, ...]], length: int) -> Bias:
    """The tokens that `rounds` of chains tested in a sequence of that length, given `chance [n,
    K]` of `simspec.trace.acceptance.chances`.

    score: accepted (0 or 1) minus r, the chance of acceptance given the emitted tokens. The bias x
    is the share of accepted tokens that is lost, at chances r (1 - x).

    A token is tested if all before it in the round are accepted. Whether the next one is drafted
    may depend on these, and never on the token itself (`Policy.anticipates`): so acceptances are
    Bernoulli(r) one after the other, whatever the policy.
    """
    score, expected = [np.zeros(0)], [np.zeros(0)]
    for position, _, drafted, accepted in rounds:
        ended = position + accepted == length
        tested = accepted + (accepted < drafted and not ended)
        r = chance[position, :tested].astype(np.float64)
        expected.append(r)
        score.append((np.arange(tested) < accepted) - r)
    scores = np.concatenate(score)
    r = np.concatenate(expected)
    variance, tilt = r * (1 - r), np.log1p(scores[:, None] * ACCEPTANCE_TILTS)
    return Bias(scores, variance, r, variance, tilt)


def chain_depth(sequences: tuple[EmittedSequence, ...]) -> int:
    """The longest chain of all rounds; 0 where rounds are unknown, or some drafted a tree."""
    rounds = [r for sequence in sequences for r in sequence.rounds]
    if any(drafted > computed for _, computed, drafted, _ in rounds):
        return 0
    return max((drafted for _, _, drafted, _ in rounds), default=0)


BIAS_TILTS = np.array([sign * 2.0**-i for i in range(2, 9) for sign in (1, -1)])
"""Alternatives h of the bias test: p (1 + h s), towards the drafter or away from it."""


@torch.inference_mode()
def drafter_bias(p: Tensor, q: Tensor, token: tuple[int, ...]) -> Bias:
    """The emitted `token [n]` between target `p [n, vocab]` and drafter `q [n, vocab]`.

    r = (q - p) / (q + p) and s = r - Σ p r: p (1 + h s) is a distribution for |h| <= 1/4. score:
    s(token), of mean 0 under p; variance: Σ p s^2; shift, square: Σ q s and Σ q s^2. The bias x is
    the share of tokens that is drawn from q.
    """
    r = ((q - p) / (q + p)).nan_to_num(0)  # 0 / 0 where both remove a token
    s = r - (p * r).sum(-1, keepdim=True)
    score = s.gather(-1, torch.tensor(token, device=p.device)[:, None])[:, 0]
    tilt = torch.log1p(score[:, None] * torch.from_numpy(BIAS_TILTS).to(score))
    square = s.square()
    columns = score, (p * square).sum(-1), (q * s).sum(-1), (q * square).sum(-1), tilt
    return Bias(*(column.cpu().numpy() for column in columns))


@torch.inference_mode()
def drafter_distributions(
    target: Target, drafter: Drafter, rule: Rule, sequence: EmittedSequence
) -> Tensor | None:
    """The drafter's processed distribution before every token, float64 `[n, vocab]`.

    One pass for a language model of the token prefix; any other drafter drafts one token at each
    position. None for a drafter without logits.
    """
    prompt, token, device = sequence.prompt, sequence.token, target.decoder.device
    if not drafter.has_logits:
        return None
    if drafter.prefix_only and drafter.lm is not None:
        parts = teacher_forced_logits(drafter.lm, prompt, token)
        return torch.cat([rule.probs(logits).to(device) for _, logits in parts])
    rows = []
    for _ in along(target, drafter, prompt, token):
        step = drafter.next()
        if step is None or step.logits is None:
            return None
        rows.append(rule.probs(step.logits[None])[0].to(device))
    return torch.stack(rows)


PIT = 1 << 16
"""The draw role of randomized probability integral transforms; no engine draws under it."""
TEMPERATURE_TILTS = np.array([sign * 2.0**-i for i in range(1, 9) for sign in (1, -1)])
"""Alternatives h of the temperature test: temperature T / (1 - h)."""


@dataclass(frozen=True)
class SamplingStatistics:
    """The emitted tokens under the target's distributions p; arrays `[n]`.

    surprisal: -log p(token), nats, inf where p is 0; at_cutoff: there top-k or top-p off by `slack`
    nats would keep the token; entropy, variance, third_moment: mean and central moments of
    -log p(y), y ~ p; pit: randomized probability integral transform, uniform if token ~ p; tilt
    `[n, len(TEMPERATURE_TILTS)]`: log p_h(token) / p(token), p_h ~ p^(1 - h).
    """

    surprisal: np.ndarray
    at_cutoff: np.ndarray
    entropy: np.ndarray
    variance: np.ndarray
    third_moment: np.ndarray
    pit: np.ndarray
    tilt: np.ndarray


@torch.inference_mode()
def sampling_statistics(
    rule: Rule, logits: Tensor, token: tuple[int, ...], sequence: int, position: int, slack: float
) -> SamplingStatistics:
    """Statistics of `token [n]` at positions `position`, ... from logits `[n, vocab]`.

    pit = Σ p(y) over likelier y + w p(token), w uniform; ties go to the smaller index.
    """
    ids = torch.tensor(token, device=logits.device)[:, None]
    p = rule.probs(logits)
    log = p.log()
    p_token = p.gather(-1, ids)
    at_cutoff = torch.zeros_like(ids, dtype=torch.bool)
    if truncates(rule):
        at_cutoff = (p_token == 0) & truncation_mask(rule, logits, slack).gather(-1, ids)
    entropy = torch.special.entr(p).sum(-1)
    centered = torch.where(p > 0, -log - entropy[:, None], 0.0)
    moments = [(p * centered**power).sum(-1) for power in (2, 3)]
    smaller = torch.arange(p.shape[-1], device=p.device) < ids
    likelier = torch.where((p > p_token) | ((p == p_token) & smaller), p, 0.0).sum(-1)
    positions = range(position, position + len(token))
    draws = [uniform(rule.seed, sequence, at, 0, PIT) for at in positions]
    pit = likelier + p_token[:, 0] * torch.tensor(draws, dtype=p.dtype, device=p.device)
    surprisal = -log.gather(-1, ids)[:, 0]
    tilts = [h * surprisal - ((1 - h) * log).logsumexp(-1) for h in TEMPERATURE_TILTS.tolist()]
    drawn = surprisal, at_cutoff[:, 0], entropy, *moments, pit.clamp(0, 1)
    columns = *drawn, torch.stack(tilts, -1)
    return SamplingStatistics(*(column.cpu().numpy() for column in columns))


POWER = 0.99
QUANTILE = float(ndtri(POWER))


def detectable_temperature(statistics: SamplingStatistics, level: float) -> float:
    """The larger of the smallest relative temperature errors of either sign; inf if none.

    Under a tilt x, Σ (surprisal - entropy) has mean x V + x^2 S / 2 and variance V + x S.
    V and S are the sums of `variance` and `third_moment`. The log ratio of a tilt h is
    h Σ (surprisal - entropy) - h^2 V / 2 - h^3 S / 6.
    """
    V, S = float(statistics.variance.sum()), float(statistics.third_moment.sum())

    def evidence(x: float, sign: int) -> float:
        s = sign * S
        score = x * V + x * x * s / 2 - QUANTILE * math.sqrt(max(V + x * s, 0.0))
        h = np.abs(TEMPERATURE_TILTS)
        return float((h * score - h**2 * V / 2 - h**3 * s / 6).max())

    # the expansion holds while the third cumulant is small compared with the second
    limit = min(1.0, V / abs(S)) if S else 1.0
    tilts = len(TEMPERATURE_TILTS)
    return max(_root(partial(evidence, sign=sign), tilts, level, limit) for sign in (1, -1))


def detectable(bias: Bias, tilts: np.ndarray, level: float) -> float:
    """The smallest bias x that is found; inf if none.

    The sum of scores then has mean x Σ shift; the log ratio of a tilt h is h Σ score - h^2 S / 2
    with S the sum of mean squares.
    """
    variance, square, shift = (
        float(part.sum()) for part in (bias.variance, bias.square, bias.shift)
    )

    def evidence(x: float) -> float:
        squares = (1 - x) * variance + x * square
        score = x * shift - QUANTILE * math.sqrt(squares)
        return float((np.abs(tilts) * score - tilts**2 * squares / 2).max())

    return _root(evidence, len(tilts), level, 1.0)


@lru_cache(maxsize=64)  # audits of as many tokens share it, and its root takes a while
def detectable_variation(n: int, bins: int, level: float) -> float:
    """The smallest total variation from uniform that chi-square detects; inf for one bin.

    sqrt(x / n) / 2, x the noncentrality; x is at least 4 n (total variation)^2.
    """
    if bins < 2:
        return math.inf
    from scipy import optimize, stats  # most commands start sooner without

    critical = stats.chi2.isf(level, bins - 1)
    noncentrality = optimize.brentq(
        lambda x: stats.ncx2.sf(critical, bins - 1, x) - POWER, 1e-3, 100 * critical
    )
    return float(math.sqrt(noncentrality / n) / 2)


def _root(evidence: Callable[[float], float], tilts: int, level: float, limit: float) -> float:
    """The smallest effect whose 1% quantile of `evidence` raises an alarm; inf beyond `limit`."""
    threshold = math.log(tilts / level)
    if evidence(limit) <= threshold:
        return math.inf
    from scipy import optimize

    return float(optimize.brentq(lambda x: evidence(x) - threshold, 0.0, limit))


MAX_BINS, MIN_PER_BIN = 20, 20


@dataclass(frozen=True)
class SamplingTests:
    """Tests of N tokens; together they raise a false alarm with probability `risk` at most.

    | field | meaning |
    | --- | --- |
    | surprisal, entropy, z | mean of -log p(token), expected, their difference in deviations |
    | temperature_ratio | likeliest temperature among the alternatives over the stated one |
    | p_temperature | bound of its p-value: 1 / mean over h of Π p_h(token) / p(token) |
    | bins, chi2, p_chi2 | Pearson's statistic of `pit` in equal bins |
    | bias_z, p_bias | Σ s(token) in standard deviations, > 0 towards q; bound of its p-value |
    | acceptance_z, p_acceptance | Σ (accepted - r) in standard deviations; bound of its p-value |
    | detectable_... | found with probability POWER, or inf: relative temperature error, total \
variation, share of tokens drawn from q, share of accepted tokens lost |
    | alarms | failed tests: temperature, uniformity, drafter bias, acceptance |

    The fields of the drafter bias and of acceptance are None where they were not tested.
    """

    tokens: int
    surprisal: float
    entropy: float
    z: float
    temperature_ratio: float
    p_temperature: float
    bins: int
    chi2: float
    p_chi2: float
    bias_z: float | None
    p_bias: float | None
    acceptance_z: float | None
    p_acceptance: float | None
    risk: float
    detectable_temperature: float
    detectable_variation: float
    detectable_bias: float | None
    detectable_loss: float | None
    alarms: tuple[str, ...]


def sampling_tests(
    statistics: SamplingStatistics, bias: Bias | None, risk: float, acceptance: Bias | None = None
) -> SamplingTests:
    """Runs m tests on all tokens together, each at level risk / m (Bonferroni).

    | test | p-value or limit |
    | --- | --- |
    | temperature | exp(Σ tilt) is a likelihood ratio, so Markov's inequality bounds the p-value |
    | uniformity | chi-square with bins - 1 degrees of freedom |
    | drafter bias, acceptance, if given | as temperature |

    Markov's bounds hold at any N; at 20 tokens per bin the chi-square tail is up to 1.3 times its
    level.
    """
    from scipy import stats  # most commands start sooner without

    n = len(statistics.surprisal)
    level = risk / (2 + (bias is not None) + (acceptance is not None))
    tilts = statistics.tilt.sum(0)
    likeliest = int(tilts.argmax())
    bins = int(np.clip(n // MIN_PER_BIN, 1, MAX_BINS))
    bin_of = np.minimum((statistics.pit * bins).astype(np.int64), bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    chi2, p_chi2 = stats.chisquare(counts) if bins > 1 else (0.0, 1.0)
    p_temperature = _markov_bound(statistics.tilt)
    bias_z, p_bias, smallest_bias = _bias_test(bias, BIAS_TILTS, level)
    acceptance_z, p_acceptance, smallest_loss = _bias_test(acceptance, ACCEPTANCE_TILTS, level)
    failed = {
        "temperature": p_temperature < level,
        "uniformity": p_chi2 < level,
        "drafter bias": p_bias is not None and p_bias < level,
        "acceptance": p_acceptance is not None and p_acceptance < level,
    }
    return SamplingTests(
        tokens=n,
        surprisal=float(statistics.surprisal.mean()),
        entropy=float(statistics.entropy.mean()),
        z=_z(statistics.surprisal - statistics.entropy, float(statistics.variance.sum())),
        temperature_ratio=(
            float(1 / (1 - TEMPERATURE_TILTS[likeliest])) if tilts[likeliest] > 0 else 1.0
        ),
        p_temperature=p_temperature,
        bins=bins,
        chi2=float(chi2),
        p_chi2=float(p_chi2),
        bias_z=bias_z,
        p_bias=p_bias,
        acceptance_z=acceptance_z,
        p_acceptance=p_acceptance,
        risk=risk,
        detectable_temperature=detectable_temperature(statistics, level),
        detectable_variation=detectable_variation(n, bins, level),
        detectable_bias=smallest_bias,
        detectable_loss=smallest_loss,
        alarms=tuple(test for test, alarm in failed.items() if alarm),
    )


def _bias_test(
    bias: Bias | None, tilts: np.ndarray, level: float
) -> tuple[float | None, float | None, float | None]:
    """(z, bound of the p-value, detectable bias); None where it is not tested."""
    if bias is None:
        return None, None, None
    z = _z(bias.score, float(bias.variance.sum()))
    return z, _markov_bound(bias.tilt), detectable(bias, tilts, level)


def _markov_bound(tilts: np.ndarray) -> float:
    """Bound of a p-value: 1 / mean likelihood ratio over the alternatives, at most 1."""
    evidence = np.logaddexp.reduce(tilts.sum(0)) - math.log(tilts.shape[1])
    return math.exp(-evidence) if evidence > 0 else 1.0


def _z(centered: np.ndarray, variance: float) -> float:
    return float(centered.sum() / math.sqrt(variance)) if variance > 0 else 0.0
