"""Routers among drafters compared on recordings of one text: speedups, and regret by prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simspec.cost.gate import Claim, check_claims, no_interval
from simspec.numerics.stats import Estimate, difference, estimate, quotient, stacked
from simspec.output.frames import frame
from simspec.policies import make
from simspec.policies.fixed import fixed
from simspec.replay.evaluation import evaluate, priced_recordings
from simspec.replay.router import (
    Expert,
    bandit,
    cascade,
    hedge,
    leader,
    normal_hedge,
    oracle,
    outcomes,
    planned,
    route,
)  # fmt: skip
from simspec.trace.trace import Trace


@dataclass(frozen=True)
class RouterRow:
    """A router on the prompts of one text, at modelled seconds in plain steps.

    regret_steps: beyond the plain steps of the prompt's best expert; regret_tokens: that the best
    expert has more in the router's rounds; bound: of these. Means of a prompt, NaN where unknown.
    """

    router: str
    feedback: str  # free, paid: how unused drafters show their drafts; '': they do not
    speedup: Estimate  # plain steps of plain decoding over those of the router
    gain: Estimate  # speedup less that of the best expert in hindsight, paired by prompt
    tokens: float  # committed a round
    regret_steps: float
    regret_tokens: float
    bound: float
    share: str  # of its rounds that each drafter drafted


def compare_routers(
    traces: Mapping[str, Trace | Path | str],
    costs: Any,
    policies: Sequence[Any] = (),
    draws: int = 4,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[RouterRow]:
    """A RouterRow for each expert alone, and for each router among them.

    traces: {name: Trace or path} of one text; costs as for `score`, each in its own plain steps.
    policies: rules without memory, each an expert with every drafter; default: the best fixed
    length of each recording in hindsight. Figures are means of `draws` replays. ValueError for what
    cannot run, PriceError for a speedup that no round can reach.
    """
    experts, settled = [], True
    for name, trace, cost in priced_recordings(traces, costs):
        chosen: list[Any] = [make(policy, trace, cost) for policy in policies]
        if not policies:
            lengths = {f"fixed:{k}": fixed(k) for k in range(trace.K + 1)}
            chosen = [lengths[evaluate(trace, [*lengths.values()], cost, 1).fastest(lengths)]]
        settled &= not no_interval(cost)
        experts += [Expert(Path(name).stem, p, trace, cost.reading(p.reads)) for p in chosen]
    found = outcomes(experts)
    rows_of, single = np.ones(found.trace.rows, np.int64), range(len(experts))
    contest = [
        planned(f"{experts[e].drafter} {experts[e].policy.name}", e * rows_of) for e in single
    ]
    contest += hedge(tokens=True), hedge(), normal_hedge(), leader(), bandit()
    contest += cascade(found), oracle(found)
    replays = [
        [route(found, router, seed + i) for i in range(draws if router.random else 1)]
        for router in contest
    ]
    alone = np.stack([of.steps for (of,) in replays[: len(experts)]])
    best = alone[int(alone[:, :, 0].sum(axis=1).argmin())]
    least, plain = alone[:, :, 0].min(axis=0), np.diff(found.trace.offset).astype(float)
    options: dict[str, Any] = dict(level=level, resamples=resamples, seed=seed, limits=settled)
    rows = []
    for router, routed in zip(contest, replays):
        tokens = float(plain.sum() / np.mean([len(of.rounds) for of in routed]))
        used = np.bincount(np.concatenate([of.used for of in routed]), minlength=len(experts))
        share = [f"{n / used.sum():.0%} {e.drafter}" for n, e in zip(used, experts) if n]
        for feedback in ("free", "paid") if router.full else ("",):
            held = "paid" if feedback == "paid" else "steps"
            steps = np.mean([getattr(of, held) for of in routed], axis=0)
            speedup = estimate(stacked(plain, steps), quotient, **options)
            check_claims([Claim(router.name, speedup.value, tokens, speedup.low)], source="routers")
            gain = estimate(stacked(plain, steps, plain, best), difference, **options)
            beyond = float((steps[:, 0] - least).mean())
            regret, bound = (
                float(np.mean([getattr(of, n) for of in routed])) for n in ("regret", "bound")
            )
            figures = tokens, beyond, regret, bound if router.tokens else np.nan
            rows.append(RouterRow(router.name, feedback, speedup, gain, *figures, ", ".join(share)))
    return rows


def router_frame(rows: Sequence[RouterRow]) -> Any:
    """The rows as a table with its legend."""
    legend = (
        "First each drafter alone, then routers, which choose one each round. gain: over the best "
        "alone. feedback: unused drafters show what they would have drafted, free or at their "
        "price. Regrets are of a prompt: plain steps beyond its best drafter alone; tokens that "
        "the best drafter has more in the router's rounds, and Hedge's bound of these.",
    )
    return frame(
        map(vars, rows), [*RouterRow.__dataclass_fields__], names=2, notes=legend,
        formats={"gain": "+.2f", "tokens": ".2f", "regret_steps": ".1f", "regret_tokens": ".1f",
                 "bound": ".1f"},
        optional=("share", "bound", "regret_tokens", "regret_steps", "tokens"),
    )  # fmt: skip
