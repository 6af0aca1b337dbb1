"""Teacher-forced decoding: runs that commit the tokens of a recording."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from real.audit.score_gaps import spacing
from real.audit.tolerance import TOLERANCES
from real.decode.loop import DecodeResult, Round, decode
from real.decode.plan import Plan
from real.draft import Drafter
from real.equality import rounds_of
from real.model.target import Target
from real.progress import Progress, quiet
from real.rerun import prompts_of, rule_of
from real.sampling import Rule, clear_noise_cache
from simspec import Rounds, Trace
from simspec.trace.quantization import decode_margin

NATS = {t.dtype: t.nats for t in TOLERANCES}
"""Gaps that rounding explains in a dtype; COARSE_NATS in any other."""
COARSE_NATS, ULPS = 0.3, 3.0


@dataclass(frozen=True)
class ForcedDivergence:
    """A committed token that is not the target's pick.

    | field | meaning |
    | --- | --- |
    | sequence, position | of the recording; among its new tokens |
    | token, best | the recorded token; the target's pick |
    | gap | score of the pick minus that of the token, nats |
    | ulps | the same in logits, in units in the last place of the coarser dtype |
    | excused | whether rounding explains it: gap <= NATS of that dtype, or ulps <= ULPS |
    """

    sequence: int
    position: int
    token: int
    best: int
    gap: float
    ulps: float
    excused: bool


def decode_forced(
    target: Target, drafter: Drafter, plan: Plan, trace: Trace, progress: Progress = quiet
) -> tuple[list[DecodeResult], list[ForcedDivergence]]:
    """Decodes every prompt of `trace` and commits the recorded tokens: (results, divergences)."""
    rule, results, divergences = rule_of(trace), [], []
    dtypes = [target.decoder.dtype, getattr(torch, trace.meta.dtype, torch.float32)]
    coarser = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    for s, prompt in enumerate(prompts_of(trace)):
        tokens = trace.token[trace.offset[s] : trace.offset[s + 1]].tolist()
        address = int(trace.sequence[s])

        def listen(r: Round, s=s, tokens=tokens, address=address) -> None:
            divergences.extend(_divergences(rule, r, tokens, s, address, coarser))

        clear_noise_cache()
        results.append(
            decode(
                target,
                drafter,
                plan,
                rule,
                prompt,
                int(trace.budget[s]),
                trace.meta.end_tokens,
                address,
                listen,
                forced=tokens,
            )
        )
        progress("forcing", s + 1, trace.sequences)
    return results, divergences


def _divergences(
    rule: Rule, r: Round, tokens: list[int], s: int, address: int, dtype: torch.dtype
) -> list[ForcedDivergence]:
    """The divergences of a round; logits are scores without the rule's noise and temperature."""
    scores = r.verified.scores[: len(r.verified.token)]
    best, divergences = scores.argmax(-1).tolist(), []
    for row in range(len(best)):
        position = r.position + row
        token = tokens[position]
        if best[row] == token:
            continue
        gap = float(scores[row, best[row]] - scores[row, token])
        row_scores = scores[row : row + 1]
        noise = rule.scores(torch.zeros_like(row_scores), address, [position])
        logits = (row_scores - noise) * rule.temperature
        unit = float(spacing(logits[0, [best[row], token]].abs().max(), dtype))
        ulps = gap * rule.temperature / unit
        limit = NATS.get(str(dtype).removeprefix("torch."), COARSE_NATS)
        excused = gap <= limit or ulps <= ULPS
        divergences.append(ForcedDivergence(s, position, token, best[row], gap, ulps, excused))
    return divergences


MIN_EQUAL_SHARE = 0.97
"""Smallest share of rounds whose accepted length must be the recorded one."""


@dataclass(frozen=True)
class DraftFlip:
    """A round whose accepted length is not the recorded one.

    | field | meaning |
    | --- | --- |
    | row, slot | of the recording: the round's row and the first slot that differs |
    | expected, accepted | accepted length as recorded and as run |
    | margin | of the recorded draft token there, nats; inf if unknown |
    """

    row: int
    slot: int
    expected: int
    accepted: int
    margin: float


@dataclass(frozen=True)
class ForcedComparison:
    """How teacher-forced runs compare with their recording.

    | field | meaning |
    | --- | --- |
    | rounds | rounds of the runs |
    | equal | rounds that accept min(drafted, run[row]) tokens, as recorded |
    | replayed | rounds of the replay too: same row, computed, drafted, accepted |
    | tokens | committed tokens |
    | draft_flips | the rounds that are not equal |
    | divergences | the tokens that are not the target's pick |
    """

    rounds: int
    equal: int
    replayed: int
    tokens: int
    draft_flips: tuple[DraftFlip, ...]
    divergences: tuple[ForcedDivergence, ...]

    @property
    def share(self) -> float:
        """Share of rounds whose accepted length is the recorded one."""
        return self.equal / self.rounds

    @property
    def failures(self) -> tuple[ForcedDivergence, ...]:
        """Divergences that rounding does not explain."""
        return tuple(d for d in self.divergences if not d.excused)

    @property
    def sound(self) -> bool:
        """No failure, and at least MIN_EQUAL_SHARE of the rounds equal."""
        return not self.failures and self.share >= MIN_EQUAL_SHARE

    def describe(self) -> str:
        """The comparison in words."""
        return (
            f"{self.equal} of {self.rounds} rounds accept as "
            f"recorded ({self.share:.2%}), {self.replayed} are the replay's; "
            f"{len(self.divergences)} of {self.tokens} tokens are not the target's pick, "
            f"{len(self.failures)} beyond rounding"
        )

    def summary(self) -> dict:
        """The comparison as JSON values; infinite margins become null."""
        flips = [asdict(flip) for flip in self.draft_flips]
        for flip in flips:
            flip["margin"] = None if flip["margin"] == float("inf") else flip["margin"]
        return {
            "rounds": self.rounds,
            "equal": self.equal,
            "replayed": self.replayed,
            "tokens": self.tokens,
            "share": self.share,
            "failures": len(self.failures),
            "sound": self.sound,
            "draft_flips": flips,
            "divergences": [asdict(divergence) for divergence in self.divergences],
        }


def compare_forced(
    trace: Trace,
    replayed: Rounds,
    results: Sequence[DecodeResult],
    divergences: Sequence[ForcedDivergence] = (),
) -> ForcedComparison:
    """Compares each round of teacher-forced chains with its row and with the replay.

    All rounds compare, because forcing keeps later rounds on the recorded sequence.
    ValueError for a result with other tokens than the recording.
    """
    for s, result in enumerate(results):
        if not np.array_equal(result.token, trace.token[trace.offset[s] : trace.offset[s + 1]]):
            raise ValueError(
                f"run {s} has other tokens than the recording; "
                "expected a teacher-forced run, as `decode_forced` makes it"
            )
    rounds = rounds_of(trace, results)
    expected = np.minimum(rounds.drafted, trace.run[rounds.row].astype(np.int64))
    flips = []
    for r in np.flatnonzero(rounds.accepted != expected):
        row, slot = int(rounds.row[r]), int(min(rounds.accepted[r], expected[r]))
        margin = float("inf")
        if trace.draft_margin is not None and slot < trace.K:
            margin = float(decode_margin(trace.draft_margin[row, slot]))
        flips.append(DraftFlip(row, slot, int(expected[r]), int(rounds.accepted[r]), margin))
    return ForcedComparison(
        rounds=len(rounds),
        equal=len(rounds) - len(flips),
        replayed=len(rounds.as_set() & replayed.as_set()),
        tokens=trace.rows,
        draft_flips=tuple(flips),
        divergences=tuple(divergences),
    )
