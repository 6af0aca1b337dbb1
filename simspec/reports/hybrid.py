"""Cali-TS as a hybrid: what its predictor weighs, and what it adds to Beta-TS and to sampling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simspec.cost.model import CostModel
from simspec.evaluate.evaluation import evaluate, priced_recordings
from simspec.numerics.stats import Estimate
from simspec.output.table import Table
from simspec.policies.calibrated import DEFAULTS, cali_ts
from simspec.policies.thompson import beta_ts
from simspec.policy.predictor import fit_predictor, split_by_task
from simspec.reports.hybrid_search import (
    FITTED,
    WEIGHT_ROUNDS,
    ConstantsSearch,
    predictors,
    weights,
)
from simspec.reports.regimes import FLAT, MEASURED, RATIOS, regime_label
from simspec.trace.trace import Trace

CHARGED, FREE = "charged", "free"


@dataclass(frozen=True)
class Gain:
    """Cali-TS on the prompts of one recording that nothing was chosen on.

    | field | meaning |
    | --- | --- |
    | recording, predictor | what was replayed; FITTED: fitted to the other prompts |
    | price | measured, or a label of `regimes` |
    | features | CHARGED, or FREE: reading them takes no time; at a ratio they are free |
    | speedup | Estimate over plain decoding |
    | over_beta_ts, over_sampling | Estimates of the difference, paired by prompt |
    """

    recording: str
    predictor: str
    price: str
    features: str
    speedup: Estimate
    over_beta_ts: Estimate
    over_sampling: Estimate


def gains(
    traces: Mapping[str, Trace],
    costs: Any,
    chosen: Sequence[str] = (),
    replicates: int = 8,
    level: float = 0.95,
    seed: int = 0,
) -> list[Gain]:
    """A Gain per recording, predictor (`chosen`, default all it has) and price.

    Counted on every second prompt of each task, those that `hybrid_search.search` leaves out.
    Prices are the recording's own, features charged and free, and c in RATIOS. Fewer than 8 such
    prompts have no interval. ValueError where no recording has a predictor.
    """
    rows = []
    for name, trace, cost in priced_recordings(traces, costs):
        heads = [head for head in predictors(trace) if not chosen or head in chosen]
        for head in heads:
            fit, report = split_by_task(trace)
            predictor: Any = fit_predictor(trace, fit) if head == FITTED else head
            policies = [cali_ts(predictor=predictor), beta_ts(), cali_ts(side="sampling")]
            held = trace.select(report)
            for (price, features), priced in _prices(cost, trace).items():
                found = evaluate(held, policies, priced, replicates, seed)
                ours, beta, sampling = (policy.name for policy in policies)
                options: dict[str, Any] = {"level": level, "seed": seed}
                rows.append(
                    Gain(
                        name, head, price, features,
                        found.speedup(ours, **options),
                        found.gain(ours, beta, **options),
                        found.gain(ours, sampling, **options),
                    )
                )  # fmt: skip
    if not rows:
        wanted = ", ".join(chosen) or "theta, or confidence and entropy"
        raise ValueError(f"no recording here has {wanted}: name one that has, see `simspec show`")
    return rows


def _prices(cost: CostModel, trace: Trace) -> dict[tuple[str, str], CostModel]:
    own = {(MEASURED, FREE): _free(cost)}
    if cost.feature:
        own = {(MEASURED, CHARGED): cost} | own
    return own | {(regime_label(c, FLAT), FREE): CostModel.from_ratio(c, trace.K) for c in RATIOS}


def _free(cost: CostModel) -> CostModel:
    """The same costs, features free."""
    return replace(cost, feature=0.0, predictor=None, precision=None).derived(_free, cost)


def weight_table() -> Table:
    """Weight of theta by round, of the defaults of each kind of predictor."""
    rows = []
    for kind, (sigma_m, sigma_s, theta0) in DEFAULTS.items():
        by_round = weights(sigma_m, sigma_s).values()
        constants = (f"{value:g}" for value in (sigma_m, sigma_s, theta0))
        rows.append((kind, *constants, *(f"{weight:.3f}" for weight in by_round)))
    rounds = (f"n={n}" for n in WEIGHT_ROUNDS)
    note = "n=..: weight of theta after n verified rounds."
    return Table(("predictor", "sigma_m", "sigma_s", "theta0", *rounds), rows, notes=(note,))


def gain_table(found: Sequence[Gain]) -> Table:
    """Gains of Cali-TS over its parts."""
    headings = (
        "recording", "predictor", "price", "features", "cali_ts", "over beta_ts",
        "over side=sampling",
    )  # fmt: skip
    rows = [
        (
            row.recording, row.predictor, row.price, row.features,
            row.speedup.text(".3f", limits=False),
            row.over_beta_ts.text("+.3f"),
            row.over_sampling.text("+.3f"),
        )
        for row in found
    ]  # fmt: skip
    return Table(headings, rows, names=4, optional=("cali_ts",))


def choice_table(choices: Sequence[ConstantsSearch]) -> Table:
    """The best constants of each search, and those chosen."""
    headings = (
        "predictor", "", "sigma_m", "sigma_s", "theta0", "reading", "n=1", "n=10", "speedup",
        "inside the grid",
    )  # fmt: skip
    rows = []
    for choice in choices:
        for label, constants, speedup in (
            ("best", choice.best, choice.speedup_best),
            ("chosen", choice.chosen, choice.speedup_chosen),
        ):
            sampling = not constants.rounds
            weight: dict[int, float] = {}
            if not sampling:
                weight = weights(constants.sigma_m, constants.sigma_s)
            rows.append(
                (
                    choice.predictor or "side=sampling", label,
                    "-" if sampling else f"{constants.sigma_m:g}",
                    f"{constants.sigma_s:g}", f"{constants.theta0:g}", constants.reading,
                    *("-" if sampling else f"{weight[n]:.3f}" for n in (1, 10)),
                    f"{speedup:.4f}",
                    ("yes" if choice.inside else "no") if label == "chosen" else "",
                )
            )  # fmt: skip
    note = (
        "Every second prompt of each task at c = 0.05, 0.10 and 0.15; n: weight of theta after "
        "that number of rounds. chosen: the least committed within one standard error of the best."
    )
    return Table(headings, rows, names=2, optional=("reading", "n=10"), notes=(note,))
