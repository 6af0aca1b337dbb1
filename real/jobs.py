"""Whole jobs, from loaded models to files and figures: what commands, the demo and the campaign share."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from real.decode.beam_search import BeamSearch
from real.equality import Comparison, compare, rounds_of
from real.files import replace_json
from real.pair import Pair, rerun, seconds
from real.progress import Progress, quiet, relabel
from real.prompts import Prompt
from real.record.data_card import card
from real.record.recorder import Settings, describe, record
from real.sampling import Rule
from simspec import CostModel, Policy, Rounds, Trace, policies, replay
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import prepare_tree, replay_tree, tree_seconds


def record_to(
    out: Path,
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    progress: Progress = quiet,
    texts: Path | None = None,
) -> dict:
    """Records a trace with its card beside it (`<out>.json`), and returns the card; the target's texts are kept in `texts`, if given."""
    decoder = pair.target.decoder
    meta = describe(
        pair.name,
        pair.drafter,
        settings,
        prompts,
        pair.tokenizer_sha256,
        decoder.device,
        decoder.dtype,
    )
    trace = record(
        pair.target,
        pair.drafter,
        settings,
        prompts,
        out,
        meta,
        progress=relabel(progress, f"recording {out.stem}"),
        texts=texts,
    )
    described = card(out, trace)
    replace_json(out.with_suffix(".json"), described)
    return described


@dataclass(frozen=True)
class Outcome:
    """A policy run for real on a recording: the comparison with its replay, and the speedup modelled and by the clock.

    `committed` is the run's output tokens per round. Beams have no replay: their texts are compared, their own rounds priced.
    """

    policy: str
    comparison: Comparison
    simulated: float
    measured: float
    device: str
    texts: tuple
    committed: float
    results: tuple = ()

    def summary(self) -> dict:
        """For machines."""
        found = self.comparison
        return {
            "policy": self.policy,
            "replay_equal": found.equal,
            "lossless": found.lossless,
            "rounds_compared": found.rounds,
            "exceptions": [asdict(f) for f in found.exceptions],
            "failures": [asdict(f) for f in found.failures],
            "text_flips": len(found.text_flips),
            "speedup_simulated": round(self.simulated, 4),
            "speedup_measured": round(self.measured, 4),
            "committed_per_round": round(self.committed, 4),
            "device": self.device,
        }


def run_on(
    trace: Trace,
    pair: Pair,
    policy: Policy | TreePolicy | BeamSearch | str | Callable,
    cost: CostModel,
    seed: int = 0,
    progress: Progress = quiet,
) -> Outcome:
    """Runs `policy` (or what its text means) on a trace's prompts, plain decoding beside it, and compares every round with the replay.

    Both speedups are times per token of plain decoding over those of the policy, prefill apart.
    """
    if not isinstance(policy, BeamSearch):
        policy = policies.make(policy, trace, cost)
    if isinstance(policy, TreePolicy):
        prepare_tree(trace, policy, cost.reading(policy.reads))
    ran, plain = rerun(
        pair, trace, [policy], seed, cost, relabel(progress, f"running {policy.name}")
    )
    cost = cost.reading(policy.reads)
    replayed, spent = _replayed(trace, policy, seed, cost, ran)
    tokens = [sum(len(r.token) for r in results) for results in (ran, plain)]
    return Outcome(
        policy.name,
        compare(trace, policy, replayed, ran),
        float(trace.rows * cost.baseline / spent.sum()),
        seconds(plain) / tokens[1] * tokens[0] / seconds(ran),
        cost.device,
        tuple(r.token for r in ran),
        tokens[0] / sum(len(r.position) for r in ran),
        tuple(ran),
    )


def _replayed(
    trace: Trace, policy: Policy | TreePolicy | BeamSearch, seed: int, cost: CostModel, ran
) -> tuple[Rounds, np.ndarray]:
    """The rounds of the replay, of beams those of the run, and their modelled seconds."""
    if isinstance(policy, BeamSearch):
        rounds = rounds_of(trace, ran)
        return rounds, cost.seconds_tree(rounds, policy.rows(rounds.computed), rounds.accepted)
    if isinstance(policy, TreePolicy):
        rounds = replay_tree(trace, policy, cost)
        return rounds, tree_seconds(rounds, trace, policy, cost)
    rounds = replay(trace, policy, seed=seed, cost=cost)
    return rounds, cost.seconds(rounds)


RULES = {"greedy": Rule(), "coupled": Rule("coupled", 0.8, 0)}
"""The rules that the bundled recordings are made under."""
