"""The simulator against known distributions, recordings against Eq. 13, papers against formulas."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simspec import formulas, policies
from simspec.cost.model import CostModel
from simspec.replay import metrics
from simspec.replay import replay as simulate
from simspec.trace.acceptance import depth_acceptance, drawn_trace
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace, load_trace
from simspec.validation import paper_tables as implied_costs
from simspec.validation import paper_tables as paper_cells
from simspec.validation.checks import Check, broken_rounds
from simspec.validation.synthetic_checks import optimal_length_checks, plan

RATIO = 0.1
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


def recording_checks(name: str, trace: Trace, seed: int) -> tuple[list[Check], dict[str, Any]]:
    """(the checks, {name, texts, rows, alpha, tokens_per_round}).

    Eq. 13 is exact but for sequences that an accepted end token closed, one target step each.
    tokens_per_round holds formulas 1 and 2 next to the replay: a deviation is no failure.
    """
    cost = CostModel.from_ratio(RATIO, trace.K)
    lengths = [k for k in LENGTHS if k <= trace.K]
    replayed = [policies.fixed(k) for k in lengths] + [policies.beta_ts(), policies.hf_heuristic()]
    if "confidence" in dict(trace.meta.features):
        replayed += [policies.confidence(0.5), policies.confidence(0.5, inclusive=False)]
    alpha, alphas = depth_acceptance(trace)
    trace = drawn_trace(trace, seed)  # under the rejection rule: the accepted lengths of a draw
    checks, by_length = [], []
    for policy in replayed:
        rounds = simulate.replay(trace, policy, seed, cost)
        figures = metrics.summary(rounds, trace, cost)
        assert isinstance(figures, metrics.Metrics)
        label = f"{name}: {policy.name}"
        broken = broken_rounds(trace, rounds, policy.longest(trace.K))
        checks.append(Check(f"{label}, rounds that break a rule", 0, broken, 0, 0))
        bare = _ended_without_correction(trace, rounds)
        expected, got = _eq_13(figures), figures.seconds - bare
        low, high = expected * (1 - 1e-9), expected * (1 + 1e-9)
        checks.append(Check(f"{label}, Eq. 13", expected, got, low, high))
        if policy.name.startswith("fixed:"):
            k = int(policy.name[6:])
            tokens = figures.committed_per_round
            formula_1 = float(formulas.expected_committed(alpha, k))
            formula_2 = float(formulas.depthwise_committed(np.nan_to_num(alphas[:k])))
            by_length.append(
                {
                    "k": k,
                    "replayed": tokens,
                    "formula_1": formula_1,
                    "formula_2": formula_2,
                    "deviation_1": formula_1 / tokens - 1,
                    "deviation_2": formula_2 / tokens - 1,
                    "ended_without_correction": bare,
                }
            )
    facts = {"name": name, "texts": trace.sequences, "rows": trace.rows, "alpha": alpha}
    return checks, facts | {"tokens_per_round": by_length}


def _ended_without_correction(trace: Trace, rounds: Rounds) -> int:
    """Sequences that an accepted end token closed: their last round has no bonus token."""
    last = rounds.offset[1:] - 1
    return int((rounds.row[last] + rounds.accepted[last] >= trace.offset[1:]).sum())


def _eq_13(figures: metrics.Metrics) -> float:
    if figures.accepted > min(figures.drafted, figures.tokens):
        return 0.0  # no rounds are like that: a check that fails, not an error
    if figures.accepted:
        v_d, r_d = figures.v_d, figures.r_d
        return float(formulas.eesd_time(v_d, r_d, figures.tokens, RATIO, 1.0))
    return RATIO * figures.computed + figures.tokens  # v_d = 0 hides how many were computed


FALSE_ALARM = 1e-4


def check(recordings: Mapping[str, Trace | Path | str], seed: int = 0) -> dict[str, Any]:
    """Every check, as plain data: {ok, checks, recordings, papers, false_alarm}.

    | part | what is compared |
    | --- | --- |
    | synthetic sequences | replays with intervals; all hold with probability 1 - false_alarm |
    | recordings | rounds with their rules, time with Eq. 13, see `recording_checks` |
    | papers | printed tables with formulas; misfits are no failures |

    ValueError for a recording that cannot be read, or an invalid seed.
    """
    traces = {
        name: trace if isinstance(trace, Trace) else load_trace(trace)
        for name, trace in recordings.items()
    }
    checks = plan(seed).evaluate(FALSE_ALARM)
    checks += optimal_length_checks(checks)
    facts = []
    for name, trace in traces.items():
        of_recording, of_trace = recording_checks(name, trace, seed)
        checks += of_recording
        facts.append(of_trace)
    return {
        "ok": all(check.ok for check in checks),
        "checks": [check.to_dict() for check in checks],
        "recordings": facts,
        "papers": _papers(),
        "false_alarm": FALSE_ALARM,
    }


def _papers() -> dict[str, Any]:
    costs = []
    for (target, method, drafter), tables in implied_costs.implied_costs().items():
        shared = implied_costs.shared_cost(tables)
        costs.append(
            {
                "target": target,
                "method": method,
                "drafter": drafter,
                "tables": {table: list(span) for table, span in tables.items()},
                "shared": None if shared is None else list(shared),
            }
        )
    return {
        "cells": len(paper_cells.cells()),
        "misfits": [cell.name for cell in paper_cells.misfits()],
        "eq_14_cost": costs,
    }
