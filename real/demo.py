"""The demo: sweep the bundled recordings, pick a policy, run it for real, compare with the replay."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pandas import DataFrame

from real.equality import NOTHING, Comparison
from real.files import replacing
from real.jobs import Outcome, run_on
from real.measure import MeasureSettings, measure
from real.pair import TINY, load_pair, rule_of, spread
from real.progress import Progress, quiet
from simspec import CostModel, load_trace, sweep

TRACES = Path(__file__).parent.parent / "traces"
DRAFTERS = ("model", "early_exit")
"""Those whose recordings the demo runs: two that differ in what a draft costs; every other one would take as long again."""
CANDIDATES = (
    "fixed:0", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6", "fixed:8",
    "beta_ts", "cost_ts", "confidence:0.3", "confidence:0.5", "confidence:0.7", "hf_heuristic",
)  # fmt: skip


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    | field | meaning |
    | --- | --- |
    | table | the sweep of these recordings, oracle included |
    | best | the recording on which some policy of CANDIDATES has the largest modelled speedup |
    | outcomes | recording -> its own best policy, run for real |
    """

    table: DataFrame
    best: str
    outcomes: dict[str, Outcome]

    @property
    def comparison(self) -> Comparison:
        """All rounds of all runs."""
        return sum((o.comparison for o in self.outcomes.values()), NOTHING)

    def summary(self) -> dict:
        """The object that `simspec demo --json` prints; policy and speedups are those of the best recording."""
        found, best = self.comparison, self.outcomes[self.best]
        return {
            "replay_equal": found.equal,
            "lossless": found.lossless,
            "rounds_compared": found.rounds,
            "exceptions": len(found.exceptions),
            "text_flips": len(found.text_flips),
            "best_policy": best.policy,
            "best_recording": self.best,
            "speedup_simulated": round(best.simulated, 4),
            "speedup_measured": round(best.measured, 4),
            "device": best.device,
            "runs": {name: o.summary() for name, o in self.outcomes.items()},
        }


def recordings(folder: Path = TRACES) -> dict[str, Path]:
    """The bundled recordings by name."""
    found = {p.stem: p for p in sorted(folder.glob("tiny-*.parquet"))}
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no tiny-*.parquet; run this from a checkout of the project"
        )
    return found


def demo(
    prompts: int = 10,
    seed: int = 0,
    rounds: int = 10,
    progress: Progress = quiet,
    folder: Path = TRACES,
) -> Demo:
    """Sweeps the recordings of DRAFTERS at costs measured here, then runs each one's best policy on `prompts` of its prompts."""
    # Where another job holds a core, two threads wait for each other: decoding then takes 6 times as long as on one.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _demo(prompts, seed, rounds, progress, folder)
    finally:
        torch.set_num_threads(threads)


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
        settings = MeasureSettings(rounds=rounds, repeats=1)
        costs[name] = measure(pair.target, pair.drafter, rule_of(trace), trace.K, settings)
    progress("sweeping", 0, 1)
    table = sweep(traces, [*CANDIDATES, "oracle"], costs, replicates=2, seed=seed, progress=False)
    speed = table[table.policy != "oracle"].groupby(["trace", "policy"], sort=False).speedup.mean()
    outcomes: dict[str, Outcome] = {}
    for name, trace in traces.items():
        part = trace.select(spread(trace.sequences, prompts))

        def labeled(label: str, done: int, total: int, note: str = "", name=name) -> None:
            progress(f"{name}: {label}", done, total, note)

        outcomes[name] = run_on(
            part, pairs[trace.meta.drafter], speed[name].idxmax(), costs[name], seed, labeled
        )
    best = speed.idxmax()
    return Demo(table, best[0], outcomes)


def draw(found: Demo, path: Path) -> None:
    """Plots the modelled speedup of every policy on every recording, and what the runs measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    means = found.table.groupby(["trace", "policy"], sort=False).speedup.mean()
    names = list(dict.fromkeys(found.table.policy))
    for i, name in enumerate(dict.fromkeys(found.table.trace)):
        axes.plot(
            names, [means[name, p] for p in names], "o-", color=f"C{i}", ms=3, lw=0.9, label=name
        )
        run = found.outcomes[name]
        axes.plot([run.policy], [run.measured], "*", color=f"C{i}", ms=12, mec="black", mew=0.6)
    axes.plot(
        [], [], "*", color="white", mec="black", ms=12, label="its best, run on some of the prompts"
    )
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_ylabel("speedup over plain decoding")
    for label in axes.get_xticklabels():
        label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.legend(fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
