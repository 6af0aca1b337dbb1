"""Forced text: runs on a recording's own text, whatever the target picks there, so that rounds compare in any dtype."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from real.audit.teacher_forcing import spacing
from real.decode.loop import DecodeResult, Plan, Round, decode
from real.draft import Drafter
from real.equality import rounds_of
from real.model.target import Target
from real.pair import prompts_of, rule_of
from real.progress import Progress, quiet
from real.sampling import Rule, forget_noise
from simspec import Rounds, Stepper, Trace
from simspec.quantization import decode_margin

NATS = {"float64": 1e-9, "float32": 1e-4}
"""Gaps that a dtype explains whatever the size of its numbers; `COARSE` for the others."""
COARSE, ULPS = 0.3, 3.0
"""Nats that bfloat16 explains, and units in the last place that any dtype does."""
SHARE = 0.97
"""Least share of rounds whose accepted length must be the recording's."""


@dataclass(frozen=True)
class Divergence:
    """A committed row where the target itself picks another token than the text's.

    gap is the pick's score minus the text's, in nats; ulps the same of logits in units in the last place of the coarser dtype; flip
    says whether either is small enough to be rounding: at most NATS of that dtype, or ULPS.
    """

    sequence: int
    position: int
    token: int
    best: int
    gap: float
    ulps: float
    flip: bool


@dataclass(frozen=True)
class DraftFlip:
    """A round that accepts otherwise than recorded: its row, the first slot that differs, that slot's recorded margin (inf: unknown)."""

    row: int
    slot: int
    expected: int
    accepted: int
    margin: float


@dataclass(frozen=True)
class ForcedComparison:
    """What runs on the recording's text showed.

    | field | meaning |
    | --- | --- |
    | rounds | rounds of the runs |
    | equal | those that accept min(drafted, run[row]) tokens, as the recording says of that row |
    | replayed | those that the replay makes too: same row, computed, drafted, accepted |
    | tokens | committed tokens, each judged by the target |
    | draft_flips | the rounds that are not equal |
    | divergences | the tokens that the target would not have picked |
    """

    rounds: int
    equal: int
    replayed: int
    tokens: int
    draft_flips: tuple[DraftFlip, ...]
    divergences: tuple[Divergence, ...]

    @property
    def share(self) -> float:
        """Share of rounds whose accepted length is the recording's."""
        return self.equal / self.rounds

    @property
    def failures(self) -> tuple[Divergence, ...]:
        """Divergences that rounding does not explain."""
        return tuple(d for d in self.divergences if not d.flip)

    @property
    def sound(self) -> bool:
        """No failure, and at least SHARE of the rounds equal."""
        return not self.failures and self.share >= SHARE

    def summary(self) -> dict:
        """For machines."""
        counts = {name: getattr(self, name) for name in ("rounds", "equal", "replayed", "tokens")}
        apart = {
            name: [asdict(each) for each in getattr(self, name)]
            for name in ("draft_flips", "divergences")
        }
        for flip in apart["draft_flips"]:
            flip["margin"] = None if flip["margin"] == float("inf") else flip["margin"]
        return (
            counts
            | {"share": self.share, "failures": len(self.failures), "sound": self.sound}
            | apart
        )


def force(
    target: Target,
    drafter: Drafter,
    drive: Stepper | Plan,
    trace: Trace,
    progress: Progress = quiet,
) -> tuple[list[DecodeResult], list[Divergence]]:
    """Decodes every sequence of `trace` with its own text forced: (results, divergences), the latter judged outside the clock."""
    rule, results, found = rule_of(trace), [], []
    dtypes = [target.decoder.dtype, getattr(torch, trace.meta.dtype, torch.float32)]
    coarse = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    for s, prompt in enumerate(prompts_of(trace)):
        text = trace.token[trace.offset[s] : trace.offset[s + 1]].tolist()
        address = int(trace.sequence[s])

        def judge(r: Round, s=s, text=text, address=address) -> None:
            found.extend(_apart(rule, r, text, s, address, coarse))

        forget_noise()
        results.append(
            decode(
                target,
                drafter,
                drive,
                rule,
                prompt,
                int(trace.budget[s]),
                trace.meta.end_tokens,
                address,
                judge,
                text=text,
            )
        )
        progress("forcing", s + 1, trace.sequences)
    return results, found


def _apart(
    rule: Rule, r: Round, text: list[int], s: int, address: int, dtype: torch.dtype
) -> list[Divergence]:
    """The divergences of a round; logits are what scores are without the rule's noise and temperature."""
    scores = r.verified.scores[: len(r.verified.token)]
    best, found = scores.argmax(-1).tolist(), []
    for row in range(len(best)):
        at = r.position + row
        if best[row] == text[at]:
            continue
        gap = float(scores[row, best[row]] - scores[row, text[at]])
        logits = (
            scores[row : row + 1]
            - rule.scores(torch.zeros_like(scores[row : row + 1]), address, [at])
        ) * rule.temperature
        ulps = (
            gap
            * rule.temperature
            / float(spacing(logits[0, [best[row], text[at]]].abs().max(), dtype))
        )
        limit = NATS.get(str(dtype).removeprefix("torch."), COARSE)
        found.append(
            Divergence(s, at, text[at], best[row], gap, ulps, gap <= limit or ulps <= ULPS)
        )
    return found


def compare_forced(
    trace: Trace,
    replayed: Rounds,
    results: Sequence[DecodeResult],
    divergences: Sequence[Divergence] = (),
) -> ForcedComparison:
    """Compares each round of forced runs (chains) with what the recording says of its row, and with the replay of the same policy.

    A round that accepts otherwise moves the rounds behind it to other rows, not the text: so all are compared. ValueError where a
    result's text is not the recording's.
    """
    for s, result in enumerate(results):
        if not np.array_equal(result.token, trace.token[trace.offset[s] : trace.offset[s + 1]]):
            raise ValueError(
                f"run {s} has another text than the recording; expected runs with that text forced, as `force` makes them"
            )
    ran = rounds_of(trace, results)
    expected = np.minimum(ran.drafted, trace.run[ran.row].astype(np.int64))
    known = trace.draft_margin is not None
    flips = []
    for r in np.flatnonzero(ran.accepted != expected):
        row, slot = int(ran.row[r]), int(min(ran.accepted[r], expected[r]))
        margin = (
            float(decode_margin(trace.draft_margin[row, slot]))
            if known and slot < trace.K
            else float("inf")
        )
        flips.append(DraftFlip(row, slot, int(expected[r]), int(ran.accepted[r]), margin))
    shared = len(_table(ran) & _table(replayed))
    return ForcedComparison(
        len(ran), len(ran) - len(flips), shared, trace.rows, tuple(flips), tuple(divergences)
    )


def _table(rounds: Rounds) -> set[tuple]:
    return set(
        zip(
            *(getattr(rounds, name).tolist() for name in ("row", "computed", "drafted", "accepted"))
        )
    )
