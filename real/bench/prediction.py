"""Rows of a scorecard: seconds predicted by phase costs, beside measured ones."""

import math
from collections.abc import Sequence

import numpy as np

from real.bench.phase_costs import PhaseCosts
from real.bench.scorecard import ScorecardRow
from real.decode.result import DecodeResult
from real.equality import rounds_of
from simspec import Policy, Rounds, Trace

Run = Sequence[DecodeResult]
"""One repeat of a policy: a result for every sequence."""


def scorecard_rows(
    name: str,
    trace: Trace,
    drafter: str,
    replays: Sequence[tuple[Policy, Sequence[Rounds]]],
    costs: PhaseCosts,
    runs: Sequence[Sequence[Run]],
) -> list[ScorecardRow]:
    """A row for each replayed policy of runs[repeat][policy] on `trace`; predictions are means of
    its replays.

    The last policy of `runs` is plain decoding. `costs` come from other prompts.
    """
    plain, _ = median_run([repeat[-1] for repeat in runs])
    plain_rate = _tokens(plain) / _seconds(plain).sum()
    rows = []
    for i, (policy, replayed) in enumerate(replays):
        run, noise = median_run([repeat[i] for repeat in runs])
        rounds = rounds_of(trace, run)
        tokens, measured_phases = _tokens(run), _seconds(run)
        phases = np.mean([costs.seconds(r, policy.reads).sum(0) for r in replayed], axis=0)
        same_rounds = costs.seconds(rounds, policy.reads).sum(0)
        predicted, measured = trace.rows / phases.sum(), tokens / measured_phases.sum()
        core, rest = _core_and_rest(same_rounds)
        core_measured, rest_measured = _core_and_rest(measured_phases)
        rows.append(
            ScorecardRow(
                recording=name,
                drafter=drafter,
                policy=policy.name,
                predicted=float(predicted),
                measured=float(measured),
                error=float(predicted / measured - 1),
                acceptance=math.log(predicted) - math.log(tokens / same_rounds.sum()),
                cost=math.log((core_measured + rest) / (core + rest)),
                overhead=math.log((core_measured + rest_measured) / (core_measured + rest)),
                noise=noise,
                tau=trace.rows / float(np.mean([len(r) for r in replayed])),
                tau_measured=tokens / len(rounds),
                speedup=float(predicted * costs.plain.sum()),
                speedup_measured=float(measured / plain_rate),
                phases=tuple(phases.tolist()),
                phases_measured=tuple(measured_phases.tolist()),
                prompts=trace.sequences,
                tokens=tokens,
                rounds=len(rounds),
            )
        )
    return rows


def median_run(repeats: Sequence[Run]) -> tuple[Run, float | None]:
    """The repeat with the (lower) median time, and the relative deviation of tokens a second."""
    total = np.array([_seconds(run).sum() for run in repeats])
    rate = np.array([_tokens(run) for run in repeats]) / total
    noise = float(rate.std(ddof=1) / rate.mean()) if len(rate) > 1 else None
    return repeats[np.argsort(total, kind="stable")[(len(total) - 1) // 2]], noise


def _tokens(run: Run) -> int:
    return sum(len(r.token) for r in run)


def _seconds(run: Run) -> np.ndarray:
    return np.concatenate([r.seconds for r in run]).sum(0)


def _core_and_rest(phases: np.ndarray) -> tuple[float, float]:
    """Seconds of drafting and verification; of policy and other."""
    return float(phases[:2].sum()), float(phases[2:].sum())
