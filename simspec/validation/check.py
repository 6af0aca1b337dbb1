"""The package against itself: simulator against formulas and exact laws, recordings against Eq. 13, papers against their own tables."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simspec import acceptance, formulas, metrics, policies, simulate
from simspec.cost import CostModel
from simspec.reports.acceptance_by_depth import depth_acceptance
from simspec.trace import Trace, load_trace
from simspec.validation import paper_tables as papers
from simspec.validation import synthetic_checks as known
from simspec.validation.synthetic_checks import Check

FALSE_ALARM = 1e-4
RATIO = 0.1
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


def check(recordings: Mapping[str, Trace | Path | str], seed: int = 0) -> dict:
    """Every check, as plain data: {ok, checks, recordings, papers, false_alarm}.

    (a) Synthetic texts of known law: what the simulator gives must lie in intervals that all hold with chance
    1 - false_alarm at least if it is right (`known`, `tail`). (b) On every recording: the rules of a round, and Eq. 13
    against the replayed time at c = 0.1, exact but for sequences that an accepted end token closed, one target step each;
    formulas 1 and 2 beside the replay, their deviation shown and not judged. (c) The papers' tables; misfits do not count.
    ValueError for a recording that cannot be read, or a seed that is none.
    """
    traces = {
        name: trace if isinstance(trace, Trace) else load_trace(trace)
        for name, trace in recordings.items()
    }
    checks = known.plan(seed).judge(FALSE_ALARM)
    checks += known.optima(checks)
    shown = []
    for name, trace in traces.items():
        found, facts = _recording(name, trace, seed)
        checks += found
        shown.append(facts)
    return {
        "ok": all(c.ok for c in checks),
        "checks": [c.to_dict() for c in checks],
        "recordings": shown,
        "papers": _papers(),
        "false_alarm": FALSE_ALARM,
    }


def _recording(name, trace, seed):
    cost, checks, deviation = CostModel.from_ratio(RATIO, trace.K), [], []
    lengths = [k for k in LENGTHS if k <= trace.K]
    made = [policies.fixed(k) for k in lengths] + [policies.beta_ts(), policies.hf_heuristic()]
    if "confidence" in dict(trace.meta.features):
        made.append(policies.confidence(0.5))
    alpha, alphas = depth_acceptance(trace)
    trace = acceptance.drawn_trace(
        trace, seed
    )  # where runs are drawn at each replay: the ones of this seed
    for policy in made:
        rounds = simulate.replay(trace, policy, seed, cost)
        found = metrics.summary(rounds, trace, cost)
        label = f"{name}: {policy.name}"
        checks.append(
            Check(
                f"{label}, rounds that break a rule",
                0,
                known.faults(trace, rounds, policy.longest(trace.K)),
                0,
                0,
            )
        )
        bare = _without_correction(trace, rounds)
        expected = _eq_13(found)
        checks.append(
            Check(
                f"{label}, Eq. 13",
                expected,
                found.seconds - bare,
                expected * (1 - 1e-9),
                expected * (1 + 1e-9),
            )
        )
        if policy.name.startswith("fixed:"):
            k = int(policy.name[6:])
            known_depths = np.nan_to_num(alphas[:k])
            formula = (
                float(formulas.expected_committed(alpha, k)),
                float(formulas.depthwise_committed(known_depths)),
            )
            deviation.append(
                {
                    "k": k,
                    "replayed": found.committed_per_round,
                    "formula_1": formula[0],
                    "formula_2": formula[1],
                    "deviation_1": formula[0] / found.committed_per_round - 1,
                    "deviation_2": formula[1] / found.committed_per_round - 1,
                    "ended_without_correction": bare,
                }
            )
    facts = {
        "name": name,
        "texts": trace.sequences,
        "rows": trace.rows,
        "alpha": alpha,
        "tokens_per_round": deviation,
    }
    return checks, facts


def _without_correction(trace, rounds):
    # A text's last round commits its accepted tokens and no more if an accepted end token closed it.
    last = rounds.offset[1:] - 1
    return int((rounds.row[last] + rounds.accepted[last] >= trace.offset[1:]).sum())


def _eq_13(found):
    if found.accepted > min(found.drafted, found.tokens):
        return 0.0  # no rounds are like that: a check that fails, not an error
    if found.accepted:
        return float(formulas.eesd_time(found.v_d, found.r_d, found.tokens, RATIO, 1.0))
    return RATIO * found.drafted + found.tokens  # v_d = 0 hides how many were drafted


def _papers():
    costs = []
    for (target, method, drafter), tables in papers.implied_costs().items():
        shared = papers.shared_cost(tables)
        costs.append(
            {"target": target, "method": method, "drafter": drafter}
            | {
                "tables": {table: list(span) for table, span in tables.items()},
                "shared": None if shared is None else list(shared),
            }
        )
    return {
        "cells": len(papers.cells()),
        "misfits": [cell.name for cell in papers.misfits()],
        "eq_14_cost": costs,
    }
