"""Cali-TS as a hybrid: what its predictor weighs, and what it adds to Beta-TS and to sampling."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from simspec.cost.model import CostModel
from simspec.numerics.stats import Interval, ratio, ratio_difference
from simspec.output.terminal import markdown_table
from simspec.policies.calibrated import DEFAULTS, cali_ts, sampling_only
from simspec.policies.thompson import beta_ts
from simspec.policy.predictor import fit_predictor, split_by_task
from simspec.reports.hybrid_search import FITTED, WEIGHT_ROUNDS, Choice, predictors, weights
from simspec.reports.intervals import interval_data, interval_text, replicated_seconds
from simspec.reports.regimes import FLAT, MEASURED, RATIOS, regime_label
from simspec.trace.trace import Trace
from simspec.tree.tree import MAX_NODES

CHARGED, FREE = "charged", "free"
WEIGHT_HEADINGS = (
    "predictor", "sigma_m", "sigma_s", "theta0", *(f"n={n}" for n in WEIGHT_ROUNDS),
)  # fmt: skip
GAIN_HEADINGS = (
    "recording", "predictor", "price", "features", "cali_ts", "over beta_ts",
    "over sampling_only",
)  # fmt: skip
CHOICE_HEADINGS = (
    "predictor", "", "sigma_m", "sigma_s", "theta0", "reading", "n=1", "n=10", "speedup",
    "inside the grid",
)  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """Cali-TS on the prompts of one recording that nothing was chosen on.

    | field | meaning |
    | --- | --- |
    | recording, predictor | what was replayed; FITTED: fitted to the other prompts |
    | price | measured, or a label of `regimes` |
    | features | CHARGED, or FREE: reading them takes no time; at a ratio they are free |
    | speedup | Interval over plain decoding |
    | over_beta_ts, over_sampling | Intervals of the difference, paired by prompt |
    """

    recording: str
    predictor: str
    price: str
    features: str
    speedup: Interval
    over_beta_ts: Interval
    over_sampling: Interval

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        names = ("speedup", "over_beta_ts", "over_sampling")
        return asdict(self) | {name: interval_data(getattr(self, name)) for name in names}


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
    Prices are the recording's own, features charged and free, and c in RATIOS. ValueError for
    fewer than 8 such prompts, and where no recording has a predictor.
    """
    rows = []
    for name, trace in traces.items():
        cost = costs[name] if isinstance(costs, Mapping) else costs
        heads = [head for head in predictors(trace) if not chosen or head in chosen]
        for head in heads:
            fit, report = split_by_task(trace)
            predictor: Any = fit_predictor(trace, fit) if head == FITTED else head
            policies = [cali_ts(predictor=predictor), beta_ts(), sampling_only()]
            held = trace.select(report)
            for (price, features), priced in _prices(cost, trace).items():
                seconds, tokens = replicated_seconds(held, policies, priced, replicates, seed)
                ours, beta, sampling = (seconds[policy.name] for policy in policies)
                plain = tokens * priced.baseline
                options: dict[str, Any] = {"level": level, "seed": seed}
                rows.append(
                    Gain(
                        name, head, price, features,
                        ratio(plain, ours, **options),
                        ratio_difference(plain, ours, plain, beta, **options),
                        ratio_difference(plain, ours, plain, sampling, **options),
                    )
                )  # fmt: skip
    if not rows:
        wanted = ", ".join(chosen) or "theta, or confidence and entropy"
        raise ValueError(f"no recording here has {wanted}: name one that has, see `simspec show`")
    return rows


def _prices(cost: CostModel | float, trace: Trace) -> dict[tuple[str, str], CostModel]:
    if not isinstance(cost, CostModel):
        cost = CostModel.from_ratio(cost, trace.K, MAX_NODES)
    own = {(MEASURED, FREE): _free(cost)}
    if cost.feature:
        own = {(MEASURED, CHARGED): cost} | own
    return own | {(regime_label(c, FLAT), FREE): CostModel.from_ratio(c, trace.K) for c in RATIOS}


def _free(cost: CostModel) -> CostModel:
    """The same costs, features free."""
    return replace(cost, feature=0.0, predictor=None, precision=None).derived(_free, cost)


def weight_rows() -> list[tuple[str, ...]]:
    """The cells under WEIGHT_HEADINGS: defaults by kind of predictor, weight of theta by round."""
    rows = []
    for kind, (sigma_m, sigma_s, theta0) in DEFAULTS.items():
        by_round = weights(sigma_m, sigma_s).values()
        constants = (f"{value:g}" for value in (sigma_m, sigma_s, theta0))
        rows.append((kind, *constants, *(f"{weight:.3f}" for weight in by_round)))
    return rows


def gain_rows(found: Sequence[Gain]) -> list[tuple[str, ...]]:
    """The cells under GAIN_HEADINGS."""
    return [
        (
            row.recording, row.predictor, row.price, row.features,
            interval_text(row.speedup, ".3f", limits=False),
            interval_text(row.over_beta_ts, "+.3f"),
            interval_text(row.over_sampling, "+.3f"),
        )
        for row in found
    ]  # fmt: skip


def choice_rows(choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    """The cells under CHOICE_HEADINGS: the best constants, and those chosen."""
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
                    choice.predictor or "sampling_only", label,
                    "-" if sampling else f"{constants.sigma_m:g}",
                    f"{constants.sigma_s:g}", f"{constants.theta0:g}", constants.reading,
                    *("-" if sampling else f"{weight[n]:.3f}" for n in (1, 10)),
                    f"{speedup:.4f}",
                    ("yes" if choice.inside else "no") if label == "chosen" else "",
                )
            )  # fmt: skip
    return rows


def markdown(found: Sequence[Gain]) -> str:
    """The weights and the gains as two Markdown tables."""
    return "\n\n".join(
        (
            markdown_table(WEIGHT_HEADINGS, weight_rows()),
            markdown_table(GAIN_HEADINGS, gain_rows(found)),
        )
    )
