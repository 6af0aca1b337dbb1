"""The demo: sweep the bundled recordings, run the best policies, compare with the replays."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pandas import DataFrame

from real.bench.figures import draw_speedups, speedup_intervals
from real.equality import NOTHING, Comparison
from real.jobs import Outcome, run_on
from real.measure import MeasureSettings
from real.measure.price import measure
from real.model_settings import evenly_spaced
from real.pair import TINY, load_pair
from real.progress import Progress, quiet
from real.rerun import rule_of
from simspec import CostModel, load_trace, sweep
from simspec.numerics.stats import Estimate

TRACES = Path(__file__).parent.parent / "traces"
DRAFTERS = ("model", "early_exit")
"""Drafters whose recordings the demo runs: two whose drafts differ in cost."""
CANDIDATES = (
    "fixed:0", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6", "fixed:8",
    "beta_ts", "cost_ts", "confidence:0.3", "confidence:0.5", "confidence:0.7", "hf_heuristic",
)  # fmt: skip


@dataclass(frozen=True)
class Demo:
    """Result of the demo.

    | field | meaning |
    | --- | --- |
    | table | the sweep of these recordings, oracle included |
    | intervals | recording -> policy -> modeled speedup with its interval |
    | best | the recording with the largest modeled speedup of a policy in CANDIDATES |
    | outcomes | recording -> its own best policy, run for real |
    """

    table: DataFrame
    intervals: dict[str, dict[str, Estimate]]
    best: str
    outcomes: dict[str, Outcome]

    @property
    def comparison(self) -> Comparison:
        """All rounds of all runs."""
        return sum((o.comparison for o in self.outcomes.values()), NOTHING)

    def summary(self) -> dict:
        """The object of `simspec demo --json`; policy and speedups are of the best recording."""
        comparison, best = self.comparison, self.outcomes[self.best]
        return {
            "replay_equal": comparison.equal,
            "lossless": comparison.lossless,
            "rounds_compared": comparison.rounds,
            "exceptions": len(comparison.exceptions),
            "text_flips": len(comparison.text_flips),
            "best_policy": best.policy,
            "best_recording": self.best,
            "speedup_simulated": best.summary()["speedup_simulated"],
            "speedup_measured": round(best.measured, 4),
            "device": best.device,
            "runs": {name: o.summary() for name, o in self.outcomes.items()},
        }


def recordings(folder: Path = TRACES) -> dict[str, Path]:
    """The bundled recordings by name."""
    paths = {p.stem: p for p in sorted(folder.glob("tiny-*.parquet"))}
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no tiny-*.parquet; run this from a checkout of the project"
        )
    return paths


def demo(
    prompts: int = 10,
    seed: int = 0,
    rounds: int = 10,
    progress: Progress = quiet,
    folder: Path = TRACES,
    threads: int = 1,
) -> Demo:
    """Sweeps the recordings of DRAFTERS at costs measured here, then runs each one's best policy.

    prompts: of each recording. rounds: of each cost measurement. folder: of the recordings.
    threads: of torch; 0: its own choice. ValueError for a negative number.
    """
    if threads < 0:
        raise ValueError(f"threads are {threads}, expected a number of threads, or 0")
    # With another job on a core, two threads wait for each other: decoding takes 6 times as long.
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        return _demo(prompts, seed, rounds, progress, folder)
    finally:
        torch.set_num_threads(before)


def _demo(prompts: int, seed: int, rounds: int, progress: Progress, folder: Path) -> Demo:
    paths = {
        name: path for name, path in recordings(folder).items() if name.split("-")[1] in DRAFTERS
    }
    traces = {name: load_trace(path) for name, path in paths.items()}
    pairs = {d: load_pair(TINY, d) for d in {t.meta.drafter for t in traces.values()}}
    costs: dict[str, CostModel] = {}
    for i, (name, trace) in enumerate(traces.items()):
        progress("measuring costs", i, len(traces))
        pair = pairs[trace.meta.drafter]
        settings = MeasureSettings(repeats=-(-rounds // 2), seconds=0)
        costs[name] = measure(pair.target, pair.drafter, rule_of(trace), trace.K, settings)
    progress("sweeping", 0, 1)
    policies = [*CANDIDATES, "oracle"]
    table = sweep(traces, policies, costs, replicates=2, seed=seed, progress=False)
    intervals = speedup_intervals(traces, policies, costs, 2)
    speed = table[table.policy != "oracle"].groupby(["trace", "policy"], sort=False).speedup.mean()
    outcomes: dict[str, Outcome] = {}
    for name, trace in traces.items():
        part = trace.select(evenly_spaced(trace.sequences, prompts))

        def labeled(label: str, done: int, total: int, note: str = "", name=name) -> None:
            progress(f"{name}: {label}", done, total, note)

        outcomes[name] = run_on(
            part, pairs[trace.meta.drafter], speed[name].idxmax(), costs[name], seed, labeled
        )
    best = speed.idxmax()
    return Demo(table, intervals, best[0], outcomes)


def draw(demonstration: Demo, path: Path) -> None:
    """Draws the modeled speedup of every policy on every recording, and what the runs measured."""
    outcomes = demonstration.outcomes.items()
    measured = {name: (o.policy, o.measured, None, None) for name, o in outcomes}
    draw_speedups(demonstration.intervals, measured, path)
