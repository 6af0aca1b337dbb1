"""What a running server's waves say: acceptance, its measured speedup, and which length pays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simspec.cost.gate import Claim, PriceError, check_claims, no_interval, settled
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.engines import Import
from simspec.engines.choice import Schedule, best_length
from simspec.engines.documents import NO_POSITION, Source
from simspec.engines.exports import BY_BATCH, LENGTH
from simspec.engines.import_report import NOTHING, counts_of
from simspec.engines.imports import READERS
from simspec.engines.server import ACCEPTED, BY_POSITION, DRAFTED, DRAFTS, Wave, counted
from simspec.engines.steps import further_passes, in_flight, why_it_loses
from simspec.numerics.stats import Estimate, estimate, quotient, stacked
from simspec.output.files import reraised
from simspec.output.frames import DataFrame, frame

Float = NDArray[np.float64]
PRICES = "--cost of `simspec engine measure vllm`, or --log of the steps that the plug-in writes"


@dataclass(frozen=True)
class Served:
    """W waves of one number of requests in flight, and drafts of up to K tokens.

    | array | shape | content |
    | --- | --- | --- |
    | passes, drafts, drafted | float64[W] | after the prompts: passes, those with drafts, tokens |
    | accepted | float64[W, K] | tokens by position |
    | timed | float64[W', 6] | of waves that a plain server answered too, see below |

    timed: a request's seconds and passes while all that were in flight decoded, plain and drafting,
    then all tokens and passes of the drafting answers. W' = 0: no plain server.

    differ: answers of both servers that are not equal.
    """

    requests: int
    passes: Float
    drafts: Float
    drafted: Float
    accepted: Float
    timed: Float
    differ: int = 0

    @property
    def K(self) -> int:
        """The longest draft, or the last position that was accepted: a schedule may serve less."""
        used = np.flatnonzero(self.accepted.any(axis=0))
        return max(ceil(self.mean_draft), int(used[-1]) + 1 if len(used) else 0)

    @property
    def mean_draft(self) -> float:
        """Tokens of a draft."""
        return float(self.drafted.sum() / max(self.drafts.sum(), 1))


def served_at(waves: Sequence[Wave], requests: int) -> Served:
    """The figures of one number of requests in flight.

    By the requests' own counts where the server gives any, else by its counters. ValueError where
    it gives neither, and where nothing was drafted.
    """
    mine = [wave for wave in waves if wave.requests == requests]
    plain = {wave.place: wave for wave in mine if wave.plain}
    mine = sorted((wave for wave in mine if not wave.plain), key=lambda wave: wave.place)
    own = any(answer.figures for wave in waves for answer in wave.answers)
    held = [_drafts_of(wave, own) for wave in mine]
    K = max((len(positions) for *_, positions in held), default=0)
    if not any(sum(positions) or drafts for drafts, _, positions in held):
        raise ValueError(
            "the server drafted nothing for these prompts: start it with --speculative-config, and "
            "give prompts whose answers are longer than a token"
        )
    drafts, drafted = np.array([(each[0], each[1]) for each in held], np.float64).T
    accepted = np.array([[*each[2], *[0] * (K - len(each[2]))] for each in held], np.float64)
    after = np.array([wave.tokens - len(wave.answers) for wave in mine])  # the prompts' passes
    passes = after - accepted.sum(axis=1)
    if (drafts >= passes).all():
        passes = drafts  # each pass drafts, and the last one's draft reaches beyond the answer
    else:
        # the mean excess of a sum of passes' tokens over the limit: sum_j j accepted_j / tokens
        limit = max(answer.tokens for wave in mine for answer in wave.answers)
        cut = np.array([sum(a.tokens == limit for a in wave.answers) for wave in mine])
        beyond = float(accepted.sum(axis=0) @ np.arange(1, K + 1)) / max(after.sum(), 1)
        passes = np.maximum(passes + beyond * cut, drafts)
    both = [(i, plain[wave.place], wave) for i, wave in enumerate(mine) if wave.place in plain]
    paced = [
        (*_paced(p, p.tokens - len(p.answers)), *_paced(d, passes[i]), after[i], passes[i])
        for i, p, d in both
    ]
    differ = sum(a.text != b.text for _, p, d in both for a, b in zip(p.answers, d.answers))
    timed = np.array([row for row in paced if min(row) > 0], np.float64).reshape(-1, 6)
    return Served(requests, passes, drafts, drafted, accepted, timed, differ)


def _paced(wave: Wave, passes: float) -> tuple[float, float]:
    """(a request's seconds, its passes) while all in flight decode; passes: those of the wave."""
    seconds, inside = wave.full
    return wave.requests * seconds, passes * inside / max(wave.parts, 1)


def _drafts_of(wave: Wave, own: bool) -> tuple[int, int, list[int]]:
    """(drafts, drafted tokens, accepted by position) of a wave."""
    told = [answer.figures for answer in wave.answers if answer.figures]
    found = counted(wave)
    if own and not told:
        return 0, 0, []
    if own:
        source = Source("vllm-requests", "the server's answers", "", "\n".join(told))
        try:
            result = READERS["vllm-requests"][0](source, Import("vllm-requests", (Path("-"),)))
        except ValueError as error:
            if str(error) != NOTHING:
                raise
            return 0, 0, []
        if result.outcomes is not None:
            by_depth = counts_of(result.outcomes).accepted.sum(axis=0).tolist()
            return result.rounds or 0, result.drafted or 0, by_depth
    if BY_POSITION not in found:
        raise ValueError(
            "the server gives no acceptance by position: show its /metrics, or start it with "
            "--speculative-config and --per-request-spec-decode-metrics detailed"
        )
    held = found[BY_POSITION]
    at_least = [held[place] for place in sorted(held)]
    drafts, drafted, accepted = (found[name][NO_POSITION] for name in (DRAFTS, DRAFTED, ACCEPTED))
    if sum(at_least) != accepted or accepted > drafted:
        raise ValueError(
            f"/metrics counts {accepted} accepted tokens of {drafted}, {sum(at_least)} by position"
        )
    return drafts, drafted, at_least


class Length(NamedTuple):
    """A draft length at a number of requests: share of drafts whose k-th token is accepted, tokens
    of a pass, and speedups over plain decoding; None: not known."""

    requests: int
    K: int
    accepted: Estimate
    tokens: Estimate
    predicted: Estimate | None
    measured: Estimate | None


class Prices(NamedTuple):
    """Seconds of a plain step float64[1 + R], and of rounds by their draft [1 + R, K + 1].

    As measured, and R replicates of it; source: their file; cost: None of a step log.
    """

    plain: Float
    rounds: Float
    source: str
    cost: CostModel | None = None

    @classmethod
    def of(cls, cost: CostModel | CostTable, requests: int, source: str) -> "Prices":
        """Those of that number of requests; ValueError where the costs are of others."""
        if isinstance(cost, CostTable):
            cost = cost.at(requests)
        elif requests != 1:
            raise ValueError(
                f"{source} prices one request, --batch is {requests}: measure it with "
                f"--concurrent {requests}"
            )
        each = cost, *cost.replicates
        rounds = [c.draft + c.verify[: c.K + 1] + c.overhead for c in each]
        return cls(np.array([c.baseline for c in each]), np.array(rounds), source, cost)

    def speedup(self, served: Served, k: int, more: Float) -> Estimate:
        """Of drafts of k in float64[W] more passes; no interval where the costs have none."""
        length = min(k, served.mean_draft)
        tokens = served.passes + served.accepted.sum(axis=1)
        drafts = np.arange(self.rounds.shape[1])
        a_draft = np.array([np.interp(length, drafts, each) - each[0] for each in self.rounds])
        spent = np.outer(served.passes + more, self.rounds[:, 0])
        spent += np.outer(served.drafts + more, a_draft)
        sure = self.cost is None or not no_interval(self.cost)
        return estimate(stacked(np.outer(tokens, self.plain), spent), quotient, sure)


def lengths_of(served: Served, prices: Prices | None) -> list[Length]:
    """Draft lengths 1 to the served one, K.

    tokens = (1 + accepted) / passes: those served, in their passes and `further_passes` of shorter
    drafts. predicted = tokens plain / (rounds[0] + (rounds[k] - rounds[0]) drafts / passes).
    measured, of K: tokens times plain seconds of a pass / seconds of a pass, while all requests in
    flight decode. Intervals resample waves. For a speedup above tokens a pass, beyond noise:
    PriceError where it was measured, ValueError where it was predicted.
    """
    found, longest = [], np.full(len(served.passes), served.K)
    for k in range(1, served.K + 1):
        more = further_passes(served.accepted, longest, k)
        committed = served.passes + served.accepted.sum(axis=1)
        tokens = estimate(stacked(committed, served.passes + more), quotient)
        share = estimate(stacked(served.accepted[:, k - 1], served.drafts), quotient)
        predicted = measured = None
        if prices is not None and k < prices.rounds.shape[1]:
            predicted = prices.speedup(served, k, more)
            with reraised(ValueError, "the prices", raised=PriceError):  # the waves stay
                claim = _claim(f"K = {k}", predicted, tokens)
                check_claims([claim], prices.cost, prices.source)
        if k == served.K and len(served.timed):
            measured = estimate(served.timed, _pace)
            check_claims([_claim(f"the measured K = {k}", measured, tokens)])
        found.append(Length(served.requests, k, share, tokens, predicted, measured))
    return found


def _pace(totals: Any) -> Any:
    """Seconds a token of plain decoding over those of drafting, of totals [..., 6] of `Served`."""
    plain, plain_passes, seconds, paced, tokens, passes = np.moveaxis(totals, -1, 0)
    return plain / plain_passes * paced / seconds * tokens / passes


def _claim(name: str, speedup: Estimate, tokens: Estimate) -> Claim:
    low = None if isnan(speedup.low) else speedup.low
    return Claim(name, speedup.value, tokens.value, low)


def served_advice(
    waves: Sequence[Wave], prices: Mapping[int, Prices | None]
) -> tuple[DataFrame, list[str], dict[str, Any] | None]:
    """(a table, a sentence for each number of requests, the setting) that the waves give.

    With prices where they are known; no setting where some number of requests is not settled, or
    none drafts.
    """
    served = [served_at(waves, n) for n in prices]
    lengths = [lengths_of(each, prices[each.requests]) for each in served]
    decided = [_decide(rows) for rows in lengths]
    notes = [
        "accepted: share of drafts whose K-th token is; speedups are over plain decoding, while "
        "all requests in flight decode; a draft of K is the first K tokens of those served; "
        "intervals are over waves of requests",
        *(f"{in_flight(each.requests)}: {each.differ} answers differ between the servers"
          for each in served if each.differ),
    ]  # fmt: skip
    table = frame(
        [row._asdict() for rows in lengths for row in rows], names=2, notes=notes,
        title="What the server did with these prompts",
        formats=dict.fromkeys(Length._fields[3:], ".2f"),
    )  # fmt: skip
    chosen = [k for k, _ in decided if k is not None]
    setting: dict[str, Any] | None = None
    if len(chosen) == len(decided) and any(chosen):
        schedule = Schedule(tuple(prices), tuple(chosen))
        setting = {LENGTH: schedule.longest}
        if not schedule.single:
            setting[BY_BATCH] = [list(step) for step in schedule.steps]
    return table, [text for _, text in decided], setting


def _decide(rows: Sequence[Length]) -> tuple[int | None, str]:
    """(the draft length, None where none is settled; the sentence) of a number of requests."""
    last, unsettled = rows[-1], "not settled, "
    said = f"{in_flight(last.requests)}: K = {last.K} commits {last.tokens.text()} tokens a pass"
    if last.measured is not None:
        said += f" and measured {last.measured.text()} times the plain server"
    predicted = [row.predicted for row in rows if row.predicted is not None]
    if not predicted:
        if last.measured is None:
            told = f"{unsettled}only acceptance is known; --plain-url prices it, or {PRICES}"
        elif not (told := _doubt(last.measured)):
            told = "it pays" if last.measured.low > 1 else "do not draft it"
            told += f"; which K up to {last.K} pays best needs {PRICES}"
        return None, f"{said}: {told}"
    k = 1 + best_length([1 / each.value for each in predicted])
    best, own = predicted[k - 1], last.predicted
    said += f"; K = {k} predicted {best.text()}: "
    if told := _doubt(best):
        return None, said + told
    if own and last.measured and not settled(own.value, last.measured.value):
        return None, said + (
            f"{unsettled}K = {last.K} was predicted {own.value:.2f} and gave "
            f"{last.measured.value:.2f}: measure costs of this server's setting, idle"
        )
    if best.low <= 1:
        return 0, f"{said}do not draft. {why_it_loses(k, rows[k - 1].tokens.value, best)}"
    if last.measured is None or k < last.K:
        how = "--plain-url confirms it" if last.measured is None else "run this again on it"
        return k, said + f"serve K = {k}; {how}"
    if (told := _doubt(last.measured)) or last.measured.low <= 1:
        return None, said + (told or f"{unsettled}the measurement says otherwise")
    return k, said + f"confirmed, K = {k} pays best of those up to the served one"


def _doubt(speedup: Estimate) -> str:
    """Why an interval settles nothing; "" where it does."""
    if isnan(speedup.low):
        return f"not settled, {speedup.prompts} waves have no interval: raise --count"
    gain = speedup.low <= 1 <= speedup.high
    return "not settled, it may gain nothing: raise --count" if gain else ""
