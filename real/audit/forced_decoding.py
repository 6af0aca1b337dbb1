"""Teacher-forced decoding: runs that commit the tokens of a recording, under every rule."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from real.audit.checks import Tolerance, spacing, tolerance_of
from real.decode.loop import DecodeResult, Round, decode
from real.decode.plans import Plan
from real.draft import Drafter
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import prompts_of
from real.rerun import recorded_rule, rounds_of, rule_of
from real.sampling import AddressedDraws, Rule, clear_noise_cache
from simspec import Rounds, Trace
from simspec.trace.acceptance import chances, drawn_run
from simspec.trace.quantization import decode_margin


@dataclass(frozen=True)
class ForcedDivergence:
    """A committed token that is not the target's pick `best`.

    gap: score of the pick minus that of the token, nats; ulps: the same in logits, in units in the
    last place of the coarser dtype; excused: either is within that dtype's Tolerance.
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
    rule, divergences = rule_of(trace), []
    own = str(target.decoder.dtype).removeprefix("torch.")
    tolerance = tolerance_of(own, trace.meta.dtype)

    def listen(s: int, r: Round) -> None:
        tokens = trace.token[trace.offset[s] : trace.offset[s + 1]].tolist()
        divergences.extend(_divergences(rule, r, tokens, s, int(trace.sequence[s]), tolerance))

    results = _decoded(target, drafter, plan, rule, trace, listen, lambda s: None, progress)
    return results, divergences


def _decoded(
    target: Target, drafter: Drafter, plan: Plan, rule: Rule, trace: Trace,
    listen: Callable[[int, Round], None], draws: Callable[[int], AddressedDraws | None],
    progress: Progress,
) -> list[DecodeResult]:  # fmt: skip
    """Every prompt decoded with its recorded tokens; `listen` has sequence and round."""
    results = []
    for s, prompt in enumerate(prompts_of(trace)):
        clear_noise_cache()
        address = int(trace.sequence[s])
        forced = trace.token[trace.offset[s] : trace.offset[s + 1]].tolist()
        results.append(
            decode(
                target, drafter, plan, rule, prompt, int(trace.budget[s]), trace.meta.end_tokens,
                address, partial(listen, s), draws(address), forced,
            )
        )  # fmt: skip
        progress("forcing", s + 1, trace.sequences)
    return results


def _divergences(
    rule: Rule, r: Round, tokens: list[int], s: int, address: int, tolerance: Tolerance
) -> list[ForcedDivergence]:
    """The divergences of a round; logits are scores without the rule's noise and temperature."""
    scores = r.verified.scores[: len(r.verified.token)]
    best, divergences = scores.argmax(-1).tolist(), []
    dtype = getattr(torch, tolerance.dtype)
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
        excused = gap <= tolerance.nats or ulps <= tolerance.ulps
        divergences.append(ForcedDivergence(s, position, token, best[row], gap, ulps, excused))
    return divergences


MIN_EQUAL_SHARE = 0.97
"""Smallest share of rounds whose accepted length must be the recorded one."""


@dataclass(frozen=True)
class DraftFlip:
    """A round whose accepted length is not the `expected` one that was recorded.

    row, slot: of the recording, the first slot that differs; margin: of the recorded draft token
    there, nats; inf if unknown.
    """

    row: int
    slot: int
    expected: int
    accepted: int
    margin: float


@dataclass(frozen=True)
class ForcedRounds:
    """Rounds of teacher-forced runs beside their recording.

    equal: rounds whose accepted length is the recorded one, or the replay's where it is drawn;
    replayed: rounds of the replay too, with the same row, computed, drafted and accepted.
    """

    rounds: int
    equal: int
    replayed: int
    tokens: int

    @property
    def share(self) -> float:
        """Share of equal rounds."""
        return self.equal / self.rounds


@dataclass(frozen=True)
class ForcedComparison(ForcedRounds):
    """How teacher-forced runs compare with their recording; draft_flips: rounds that differ."""

    draft_flips: tuple[DraftFlip, ...]
    divergences: tuple[ForcedDivergence, ...]

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
        values = asdict(self)
        for flip in values["draft_flips"]:
            flip["margin"] = None if flip["margin"] == float("inf") else flip["margin"]
        found = {"share": self.share, "failures": len(self.failures), "sound": self.sound}
        return values | found


def compare_forced(
    trace: Trace, replayed: Rounds, results: Sequence[DecodeResult],
    divergences: Sequence[ForcedDivergence] = (),
) -> ForcedComparison:  # fmt: skip
    """Compares each round of teacher-forced chains with its row and with the replay.

    All rounds compare, because forcing keeps later rounds on the recorded sequence.
    """
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
        rounds=len(rounds), equal=len(rounds) - len(flips),
        replayed=len(rounds.as_set() & replayed.as_set()), tokens=trace.rows,
        draft_flips=tuple(flips), divergences=tuple(divergences)
    )  # fmt: skip


_STORED = {"rejection": 2.0**-24, "block": 2.0**-11}
"""Rounding of a recorded ratio up to 1 and above; chances of block multiply up to K."""


@dataclass(frozen=True)
class SampledForcedComparison(ForcedRounds):
    """How teacher-forced runs under rule rejection or block compare with their recording.

    tested: drafted tokens; gaps: of abs(chance - recorded) over these; differing: of these with a
    gap over the tolerance, nats of the coarser dtype over the temperature.
    """

    tested: int
    largest_gap: float
    mean_gap: float
    differing: int
    tolerance: float
    rule: str

    @property
    def sound(self) -> bool:
        """At least MIN_EQUAL_SHARE of rounds are equal, and of chances within the tolerance."""
        beyond = self.differing <= (1 - MIN_EQUAL_SHARE) * self.tested
        return beyond and self.share >= MIN_EQUAL_SHARE

    def summary(self) -> dict:
        """The comparison as JSON values."""
        return asdict(self) | {"share": self.share, "sound": self.sound}

    def describe(self) -> str:
        """The comparison in words."""
        return (
            f"{self.equal} of {self.rounds} rounds accept as the replay does ({self.share:.2%}), "
            f"{self.replayed} are the replay's; chances of {self.tested} tested tokens differ by "
            f"{self.mean_gap:.2g} on average, {self.largest_gap:.2g} at most, {self.differing} by "
            f"more than {self.tolerance:.2g}"
        )


def decode_forced_sampled(
    target: Target, drafter: Drafter, plan: Plan, trace: Trace, seed: int = 0,
    progress: Progress = quiet,
) -> tuple[list[DecodeResult], np.ndarray]:  # fmt: skip
    """Decodes every prompt of `trace`, drafting and committing the recorded tokens.

    Returned with the results is abs(chance - recorded) of every tested draft token: the probability
    that the recorded token is accepted, as run and by `simspec.trace.acceptance.chances`.

    A drafted token is accepted with the probability that it has given the tokens, by the draws of
    the replay with `seed`: its rounds are the replay's, one by one, where chances are as recorded.
    """
    gaps: list[float] = []
    assert trace.ratio is not None
    chance_of = chances(trace.ratio, trace.meta.rule)

    def listen(s: int, r: Round) -> None:
        recorded = chance_of[int(trace.offset[s]) + r.position].tolist()
        gaps.extend(abs(chance - was) for chance, was in zip(r.verified.chance, recorded))

    results = _decoded(
        target, drafter, plan, recorded_rule(trace), trace, listen, partial(AddressedDraws, seed),
        progress,
    )  # fmt: skip
    return results, np.array(gaps, np.float64)


def compare_forced_sampled(
    trace: Trace, replayed: Rounds, results: Sequence[DecodeResult], gap: np.ndarray, dtype: str,
    seed: int = 0,
) -> SampledForcedComparison:  # fmt: skip
    """Compares forced runs with the replay with `seed`, and their chances with recorded ones."""
    rounds = rounds_of(trace, results)
    run = drawn_run(trace, seed)[rounds.row].astype(np.int64)
    name, rule = trace.meta.rule, recorded_rule(trace)
    stored = _STORED[name] * (trace.K if name == "block" else 1)
    limit = tolerance_of(dtype, trace.meta.dtype).nats / rule.temperature + stored
    return SampledForcedComparison(
        rounds=len(rounds), equal=int((rounds.accepted == np.minimum(rounds.drafted, run)).sum()),
        replayed=len(rounds.as_set() & replayed.as_set()), tokens=trace.rows, tested=len(gap),
        largest_gap=float(gap.max(initial=0.0)), mean_gap=float(gap.mean()) if len(gap) else 0.0,
        differing=int((gap > limit).sum()), tolerance=limit, rule=name
    )  # fmt: skip
