"""Timings of policies in an emulation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from real.decode.result import DecodeResult
from real.equality import rounds_of
from simspec import Rounds, Trace

PLAIN = "plain"


@dataclass(frozen=True)
class PolicyTiming:
    """One policy on all sequences of a recording.

    | field | meaning |
    | --- | --- |
    | policy | its name; "plain" is plain decoding without a drafter |
    | rounds, tokens | target passes, and tokens that they committed |
    | drafting, verification, policy_time, other | seconds of all rounds (EESD Table 8's split) |
    | tokens_per_second | tokens / all of these seconds; prefill is not included |
    | speedup | over plain decoding in the same run |
    | equal | whether the rounds are those of the replay |
    | groups | the speedup by `real.prompts.groups` of the recorded sequences |
    """

    policy: str
    rounds: int
    tokens: int
    drafting: float
    verification: float
    policy_time: float
    other: float
    tokens_per_second: float
    speedup: float
    equal: bool
    groups: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Emulation:
    """Timings of all policies, the device, and a label: engines, and what a caller adds."""

    label: dict
    device: str
    timings: tuple[PolicyTiming, ...]

    @property
    def equal(self) -> bool:
        """Whether every policy's rounds are those of its replay."""
        return all(t.equal for t in self.timings)

    def labeled(self, label: Mapping) -> "Emulation":
        """The same with more entries in front of its label."""
        return replace(self, label={**label, **self.label})

    def summary(self) -> dict:
        """The object that `simspec emulate --json` prints."""
        return {
            "label": self.label,
            "device": self.device,
            "replay_equal": self.equal,
            "rows": [asdict(t) for t in self.timings],
        }


def policy_timing(
    trace: Trace,
    name: str,
    replayed: Rounds,
    results: Sequence[DecodeResult],
    plain: Sequence[DecodeResult],
    groups: Mapping[str, Sequence[int]],
) -> PolicyTiming:
    """The timing of one policy; `groups` are numbers of sequences by name."""
    seconds = np.concatenate([r.seconds for r in results]).sum(0).tolist()
    drafting, verification, policy, other = seconds
    rate = _rate(results)
    return PolicyTiming(
        policy=name,
        rounds=len(replayed),
        tokens=trace.rows,
        drafting=drafting,
        verification=verification,
        policy_time=policy,
        other=other,
        tokens_per_second=rate,
        speedup=rate / _rate(plain),
        equal=rounds_of(trace, results) == replayed,
        groups={
            group: _rate([results[s] for s in members]) / _rate([plain[s] for s in members])
            for group, members in groups.items()
            if members
        },
    )


def _rate(results: Sequence[DecodeResult]) -> float:
    """Tokens a second."""
    return sum(len(r.token) for r in results) / sum(float(r.seconds.sum()) for r in results)
