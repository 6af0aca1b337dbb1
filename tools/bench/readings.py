"""Choose the readings and constants that no paper gives: python tools/bench/readings.py
[recording.parquet ...]

Default: the bundled recordings. Everything is chosen on one half of each recording's prompts and
reported on the other (simspec.policy.predictor.split_by_task). Chosen: Beta-TS's reading; Cali-TS's
reading, sigma_M, sigma_S and theta_0, for the scalar predictor (fitted on the same first halves)
and for each recorded theta feature. The best is what has the greatest geometric mean speedup over
the recordings, at their own costs (the .cost.json beside each) and at the papers' cost ratios of
0.05 and 0.1, all three counting alike: at one machine's costs alone a rule wins that merely drafts
little or much. Prints one JSON object; intervals are 95%, over 4,000 resamples of the reported
prompts, paired.
"""

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from simspec import CostModel, load_trace, replay
from simspec.policies import beta_ts, cali_ts, make
from simspec.policies.calibrated import READINGS
from simspec.policy.predictor import brier, examples, fit_predictor, reliability, split_by_task

# the recordings that carry all features and are K = 16 deep
BUNDLED = [
    p
    for d in ("early_exit", "model")
    for p in sorted((Path(__file__).parents[2] / "traces").glob(f"tiny-{d}-*.parquet"))
]
BETA = ("acceptance", "censored")
GRID = {
    "reading": READINGS,
    "sigma_m": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
    "sigma_s": (0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0),
    "theta0": (0.0, 0.25, 0.5, 0.75, 1.0),
}
RATIOS = (0.05, 0.1)
OTHERS = (
    "fixed:0",
    "fixed:1",
    "fixed:2",
    "fixed:3",
    "cost_ts",
    "cost_ts:depth",
    "confidence:0.5",
    "confidence:0.7",
    "oracle",
)


def prompt_seconds(trace, policy, cost, seeds):
    """Modelled seconds of each prompt, float64[S], a mean over seeds."""
    cost, seeds = cost.reading(policy.reads), seeds if policy.random else 1
    total = np.zeros(trace.sequences)
    for seed in range(seeds):
        rounds = replay(trace, policy, seed, cost)
        total += np.add.reduceat(cost.seconds(rounds), rounds.offset[:-1])
    return total / seeds


def speedup(trace, cost, seconds, which=slice(None)):
    """Tokens times the baseline over seconds, of some prompts."""
    return float(np.diff(trace.offset)[which].sum() * cost.baseline / seconds[which].sum())


def difference(trace, cost, first, second):
    """[speedup of first minus that of second, the ends of its interval]."""
    random = np.random.default_rng(7)
    draws = [random.integers(0, trace.sequences, trace.sequences) for _ in range(4000)]
    differences = [speedup(trace, cost, first, d) - speedup(trace, cost, second, d) for d in draws]
    low, high = np.quantile(differences, [0.025, 0.975])
    return [
        round(float(x), 4)
        for x in (speedup(trace, cost, first) - speedup(trace, cost, second), low, high)
    ]


def scores(candidates, halves):
    """float64[candidates, prices]: mean over the recordings of log speedup on the first halves;
    a candidate is one policy per recording.
    """
    table = np.zeros((len(candidates), 1 + len(RATIOS)))
    for row, policies in zip(table, candidates):
        for policy, half in zip(policies, halves):
            rounds = [
                replay(half["fit"], policy, seed) for seed in range(2)
            ]  # none of these receives the cost
            for i, cost in enumerate(half["prices"].values()):
                cost = cost.reading(policy.reads)
                seconds = np.mean([cost.seconds(replayed).sum() for replayed in rounds])
                row[i] += np.log(half["fit"].rows * cost.baseline / seconds) / len(halves)
    return table


def best(settings, table, names):
    """The settings that win over all prices, and at each one alone."""
    columns = {"all": table.mean(1)} | dict(zip(names, table.T))
    means = {name: np.exp(column).round(4).tolist() for name, column in columns.items()}
    won = {name: int(np.argmax(column)) for name, column in columns.items()}
    return {
        name: settings[i] | {"speedup": {n: m[i] for n, m in means.items()}}
        for name, i in won.items()
    }


def choose(halves, recorded) -> dict:
    """The reading of Beta-TS and the settings of Cali-TS, for each predictor, that do best on
    the first halves.
    """
    names = list(halves[0]["prices"])
    winners = {
        f"beta_ts {r}": best([{}], scores([[beta_ts(r)] * len(halves)], halves), names)["all"]
        for r in BETA
    }
    settings = [dict(zip(GRID, values)) for values in product(*GRID.values())]
    for predictor in ("scalar", *recorded):
        at_hand = [h["scalar"] if predictor == "scalar" else predictor for h in halves]
        table = scores([[cali_ts(predictor=p, **s) for p in at_hand] for s in settings], halves)
        winners[f"cali_ts {predictor}"] = best(settings, table, names)
        for reading in READINGS:
            among = [i for i, s in enumerate(settings) if s["reading"] == reading]
            winners[f"cali_ts {predictor} {reading}"] = best(
                [settings[i] for i in among], table[among], names
            )["all"]
    return winners


def reported(half, wins) -> dict:
    """The second half of one recording: calibration; at each price speedups and paired
    differences.
    """
    trace = half["report"]
    feature, slot, label, _ = examples(trace)
    probabilities = {
        "confidence": feature[:, 0],
        "scalar": half["scalar"].probability(*feature.T, slot),
    }
    probabilities |= {name: examples(trace, (name,))[0][:, 0] for name in wins if name != "scalar"}
    report = {
        "prompts": trace.sequences,
        "scalar": dict(zip(("bias", "confidence", "entropy", "depth"), half["scalar"].weights)),
        "brier": {n: round(brier(c, label), 4) for n, c in probabilities.items()}
        | {"base rate": round(label.mean() * (1 - label.mean()), 4)},
        "reliability": {
            name: np.round(np.nan_to_num(reliability(draws, label)), 3).tolist()
            for name, draws in probabilities.items()
        },
    }
    for price, cost in half["prices"].items():
        named = {f"beta_ts:{r}": beta_ts(r) for r in BETA} | {
            text: make(text, trace, cost) for text in OTHERS
        }
        pairs = [("beta_ts:acceptance", "beta_ts:censored"), ("cost_ts", "beta_ts:acceptance")]
        for predictor, setting in wins.items():
            theta, cali = (
                half["scalar"] if predictor == "scalar" else predictor,
                f"cali_ts {predictor}",
            )
            named |= {
                cali: cali_ts(predictor=theta, **setting),
                f"model_only {predictor}": cali_ts(predictor=theta, side="model"),
            }
            named[f"sampling_only {predictor}"] = cali_ts(
                setting["reading"],
                sigma_s=setting["sigma_s"],
                theta0=setting["theta0"],
                side="sampling",
            )
            pairs += [
                (cali, other)
                for other in (
                    "beta_ts:acceptance",
                    f"model_only {predictor}",
                    f"sampling_only {predictor}",
                )
            ]
        seconds = {name: prompt_seconds(trace, policy, cost, 8) for name, policy in named.items()}
        free = {
            n: prompt_seconds(trace, p, replace(cost, feature=0.0), 8)
            for n, p in named.items()
            if p.reads and cost.feature
        }
        report[price] = {
            "speedup": {name: round(speedup(trace, cost, s), 4) for name, s in seconds.items()},
            "speedup, features free": {
                name: round(speedup(trace, cost, s), 4) for name, s in free.items()
            },
            "difference": {
                f"{a} - {b}": difference(trace, cost, seconds[a], seconds[b]) for a, b in pairs
            },
        }
    return report


def main(paths) -> dict:
    """What was chosen on the first halves and what it gives on the second ones."""
    halves = {}
    for path in paths:
        trace, cost = load_trace(path), CostModel.from_json(Path(path).with_suffix(".cost.json"))
        first, second = split_by_task(trace)
        halves[Path(path).stem] = {
            "prices": {"measured": cost}
            | {f"c = {c}": CostModel.from_ratio(c, trace.K) for c in RATIOS},
            "fit": trace.select(first),
            "report": trace.select(second),
            "scalar": fit_predictor(trace, first),
        }
    recorded = sorted(
        set.intersection(
            *(
                {n for n, _ in h["fit"].meta.features if n.startswith("theta")}
                for h in halves.values()
            )
        )
    )
    chosen = choose(list(halves.values()), recorded)
    wins = {
        p: {key: chosen[f"cali_ts {p}"]["all"][key] for key in GRID} for p in ("scalar", *recorded)
    }
    return {
        "chosen": chosen,
        "report": {name: reported(half, wins) for name, half in halves.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:] or BUNDLED), indent=1))
