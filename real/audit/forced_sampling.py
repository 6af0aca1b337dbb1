"""Teacher-forced decoding under the rejection rule: chances of acceptance against recorded ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from real.audit.forced_decoding import MIN_EQUAL_SHARE
from real.audit.tolerance import Tolerance, tolerance_of
from real.decode.loop import DecodeResult, Round, decode
from real.decode.plan import Plan
from real.draft import Drafter
from real.equality import rounds_of
from real.model.target import Target
from real.progress import Progress, quiet
from real.rerun import prompts_of, recorded_rule
from real.sampling import AddressedDraws
from simspec import Rounds, Trace
from simspec.trace.acceptance import drawn_run

_STORED = 2.0**-24
"""Rounding of a recorded ratio, float32."""


@dataclass(frozen=True)
class AcceptanceChances:
    """The drafted tokens that forced runs have tested.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | row, slot | int64 `[n]` | row of the recording at which the draft starts, and place in it |
    | chance | float64 `[n]` | P(accepted) = min(1, q(y) / p(y)) of the recorded token y as run |
    | recorded | float64 `[n]` | the same, as recorded |
    """

    row: np.ndarray
    slot: np.ndarray
    chance: np.ndarray
    recorded: np.ndarray


@dataclass(frozen=True)
class SampledForcedComparison:
    """How teacher-forced runs under the rejection rule compare with their recording.

    | field | meaning |
    | --- | --- |
    | rounds, equal | rounds of the runs; of these, with the accepted length of the replay |
    | replayed | rounds of the replay too: same row, computed, drafted, accepted |
    | tokens, tested | committed tokens; drafted tokens that were tested |
    | largest_gap, mean_gap | of abs(chance - recorded) over tested tokens |
    | differing | tested tokens whose gap exceeds `tolerance` |
    | tolerance | nats of the coarser dtype over the temperature, and float32's rounding |
    """

    rounds: int
    equal: int
    replayed: int
    tokens: int
    tested: int
    largest_gap: float
    mean_gap: float
    differing: int
    tolerance: float

    @property
    def share(self) -> float:
        """Share of rounds whose accepted length is the replay's."""
        return self.equal / self.rounds

    @property
    def sound(self) -> bool:
        """At least MIN_EQUAL_SHARE of rounds are equal, and of chances within the tolerance."""
        beyond = self.differing <= (1 - MIN_EQUAL_SHARE) * self.tested
        return beyond and self.share >= MIN_EQUAL_SHARE

    def summary(self) -> dict:
        """The comparison as JSON values."""
        names = self.__dataclass_fields__
        values = {name: getattr(self, name) for name in names}
        return values | {"rule": "rejection", "share": self.share, "sound": self.sound}

    def describe(self) -> str:
        """The comparison in words."""
        return (
            f"{self.equal} of {self.rounds} rounds accept as the replay does ({self.share:.2%}), "
            f"{self.replayed} are the replay's; chances of {self.tested} tested tokens differ by "
            f"{self.mean_gap:.2g} on average, {self.largest_gap:.2g} at most, {self.differing} by "
            f"more than {self.tolerance:.2g}"
        )


def decode_forced_sampled(
    target: Target,
    drafter: Drafter,
    plan: Plan,
    trace: Trace,
    seed: int = 0,
    progress: Progress = quiet,
) -> tuple[list[DecodeResult], AcceptanceChances]:
    """Decodes every prompt of `trace`, drafting and committing the recorded tokens.

    A drafted token is accepted with the probability that it has given the tokens, by the draws of
    the replay with `seed`: its rounds are the replay's, one by one, where chances are as recorded.
    """
    rule, results = recorded_rule(trace), []
    tested: list[tuple[int, int, float]] = []
    for s, prompt in enumerate(prompts_of(trace)):
        first = int(trace.offset[s])
        address = int(trace.sequence[s])

        def listen(r: Round, first=first) -> None:
            tested.extend(
                (first + r.position, slot, chance) for slot, chance in enumerate(r.verified.chance)
            )

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
                AddressedDraws(seed, address),
                forced=trace.token[first : trace.offset[s + 1]].tolist(),
            )
        )
        progress("forcing", s + 1, trace.sequences)
    row, slot, chance = np.array(tested, np.float64).reshape(-1, 3).T
    row, slot = row.astype(np.int64), slot.astype(np.int64)
    assert trace.ratio is not None
    return results, AcceptanceChances(row, slot, chance, trace.ratio[row, slot].astype(np.float64))


def compare_forced_sampled(
    trace: Trace,
    replayed: Rounds,
    results: Sequence[DecodeResult],
    tested: AcceptanceChances,
    dtype: str,
    seed: int = 0,
) -> SampledForcedComparison:
    """Compares forced runs with the replay with `seed`, and their chances with recorded ones."""
    rounds = rounds_of(trace, results)
    run = drawn_run(trace, seed)[rounds.row].astype(np.int64)
    tolerance: Tolerance = tolerance_of(dtype, trace.meta.dtype)
    limit = tolerance.nats / recorded_rule(trace).temperature + _STORED
    gap = np.abs(tested.chance - tested.recorded)
    return SampledForcedComparison(
        rounds=len(rounds),
        equal=int((rounds.accepted == np.minimum(rounds.drafted, run)).sum()),
        replayed=len(rounds.as_set() & replayed.as_set()),
        tokens=trace.rows,
        tested=len(gap),
        largest_gap=float(gap.max(initial=0.0)),
        mean_gap=float(gap.mean()) if len(gap) else 0.0,
        differing=int((gap > limit).sum()),
        tolerance=limit,
    )
