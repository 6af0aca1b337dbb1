"""Rounding in an audit: tolerances by dtype, and how far a token lies below the target's pick."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.rerun import MAX_EXCEPTIONS, NEAR_TIE
from real.sampling import Rule, margin
from simspec import Trace
from simspec.trace.quantization import decode_margin


@dataclass(frozen=True)
class Tolerance:
    """How far a token's score may lie below the best one because of rounding in `dtype`.

    | field | meaning |
    | --- | --- |
    | dtype | float64, float32 or bfloat16 |
    | nats, ulps | a gap is excused up to `nats`, or up to `ulps` units in the last place |
    | share | largest expected share of tokens with an excused gap |
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


@dataclass(frozen=True)
class FirstDifference:
    """First position at which two sequences differ, and the target's smaller recorded margin
    there."""

    sequence: int
    position: int
    margin: float


@dataclass(frozen=True)
class NearTies:
    """The comparison of two recordings' sequences.

    | field | meaning |
    | --- | --- |
    | sequences, tokens | compared; tokens up to and including each first difference |
    | near_ties | first differences with a margin under `NEAR_TIE`: rounding decided |
    | failures | all other first differences |
    """

    sequences: int
    tokens: int
    near_ties: tuple[FirstDifference, ...]
    failures: tuple[FirstDifference, ...]


def near_ties(one: Trace, other: Trace) -> NearTies:
    """Compares the target's sequences in two recordings of the same prompts, as of batch 1 and 16.

    ValueError for other prompts or draw addresses, and for recordings without margins.
    """
    same = all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("prompt", "prompt_offset", "sequence", "budget")
    )
    if not same:
        raise ValueError("the recordings are of other prompts; expected the same in one order")
    if one.margin is None or other.margin is None:
        raise ValueError("a recording has no margins; expected rule greedy or coupled")
    tokens = 0
    excused: list[FirstDifference] = []
    failed: list[FirstDifference] = []
    for s in range(one.sequences):
        first, second = (slice(t.offset[s], t.offset[s + 1]) for t in (one, other))
        a, b = one.token[first], other.token[second]
        shared = min(len(a), len(b))
        differ = np.flatnonzero(a[:shared] != b[:shared])
        if not len(differ) and len(a) == len(b):
            tokens += len(a)
            continue
        # of equal tokens the shorter ended otherwise: by another budget or set of end tokens
        position = int(differ[0]) if len(differ) else shared - 1
        tokens += position + 1
        codes = one.margin[first][position], other.margin[second][position]
        margin = float(decode_margin(np.array(codes)).min()) if len(differ) else float("inf")
        (excused if margin < NEAR_TIE else failed).append(FirstDifference(s, position, margin))
    return NearTies(one.sequences, tokens, tuple(excused), tuple(failed))


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
    """The emitted tokens against the target's picks, greedy or coupled.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | best | int64 `[n]` | the target's pick |
    | gap | float64 `[n]` | score of the pick minus the token's, nats; inf if removed |
    | least_gap | float64 `[n]` | smallest gap if top-k and top-p may be off by `slack` nats |
    | ulps | float64 `[n]` | `least_gap` in units in the last place of the larger logit |
    | margin | float64 `[n]` | best minus second-best score |
    """

    best: np.ndarray
    gap: np.ndarray
    least_gap: np.ndarray
    ulps: np.ndarray
    margin: np.ndarray


@torch.inference_mode()
def score_gaps(
    rule: Rule,
    logits: Tensor,
    token: tuple[int, ...],
    sequence: int,
    position: int,
    dtype: torch.dtype,
    slack: float,
) -> ScoreGaps:
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
