"""The demo: sweep the bundled recordings, pick a policy, run it for real, compare with the replay."""

from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame

from real.equality import NOTHING, Comparison, compare
from real.files import replacing
from real.measure import measure
from real.pair import TINY, load_pair, rerun, rule_of, seconds
from simspec import CostModel, load_trace, policies, replay, sweep

TRACES = Path(__file__).parent.parent / "traces"
CANDIDATES = (
    "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6", "fixed:8",
    "beta_ts", "beta_ts:censored", "confidence:0.3", "confidence:0.5", "confidence:0.7", "hf_heuristic",
)  # fmt: skip


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    | field | meaning |
    | --- | --- |
    | table | the sweep of all recordings, oracle included |
    | best | the (recording, policy) of the largest modelled speedup among CANDIDATES |
    | simulated, measured | its speedup on the prompts that were run: modelled, and by the clock |
    | comparison | rounds of all runs against their replays |
    | runs | one row a recording: policy, speedups, rounds, flips |
    | device | where it ran |
    """

    table: DataFrame
    best: tuple[str, str]
    simulated: float
    measured: float
    comparison: Comparison
    runs: DataFrame
    device: str

    def summary(self) -> dict:
        """The object that `simspec demo --json` prints."""
        return {
            "replay_equal": self.comparison.equal,
            "lossless": not any(f.text for f in self.comparison.failures),
            "rounds_compared": self.comparison.rounds,
            "exceptions": len(self.comparison.exceptions),
            "text_flips": len(self.comparison.text_flips),
            "best_policy": self.best[1],
            "best_recording": self.best[0],
            "speedup_simulated": round(self.simulated, 4),
            "speedup_measured": round(self.measured, 4),
            "device": self.device,
            "runs": self.runs.to_dict(orient="records"),
        }


def recordings(folder: Path = TRACES) -> dict[str, Path]:
    """The bundled recordings by name."""
    found = {p.stem: p for p in sorted(folder.glob("tiny-*.parquet"))}
    if not found:
        raise FileNotFoundError(f"{folder} holds no tiny-*.parquet; run this from a checkout of the project")
    return found


def demo(prompts: int = 24, seed: int = 0, repeats: int = 10, tell=lambda remark, done, of: None, folder: Path = TRACES) -> Demo:
    """Sweeps every bundled recording at costs measured here, then runs each one's best policy on `prompts` of its prompts."""
    traces = {name: load_trace(path) for name, path in recordings(folder).items()}
    pairs = {d: load_pair(TINY, d) for d in {t.meta.drafter for t in traces.values()}}
    costs: dict[str, CostModel] = {}
    for i, (name, trace) in enumerate(traces.items()):
        tell("measuring costs", i, len(traces))
        pair = pairs[trace.meta.drafter]
        costs[name] = measure(pair.target, pair.drafter, rule_of(trace), trace.K, repeats=repeats)
    tell("sweeping", 0, 1)
    table = sweep(traces, [*CANDIDATES, "oracle"], costs, replicates=2, seed=seed, progress=False)
    speed = table[table.policy != "oracle"].groupby(["trace", "policy"], sort=False).speedup.mean()
    total, rows, outcome = NOTHING, [], {}
    for i, (name, trace) in enumerate(traces.items()):
        chosen = speed[name].idxmax()
        policy, cost = policies.parse(chosen), costs[name]
        # spread over the tasks: recordings list them one after another
        part = trace.select([int(s) for s in _spread(trace.sequences, prompts)])
        ran, plain = rerun(pairs[trace.meta.drafter], part, [policy], seed, cost, lambda d, of: tell(f"running {name}", d, of))
        replayed = replay(part, policy, seed=seed, cost=cost)
        found = compare(part, policy, replayed, ran)
        tokens = sum(len(r.token) for r in ran)
        outcome[name] = (
            float(part.rows * cost.baseline / cost.seconds(replayed).sum()),
            seconds(plain) / sum(len(r.token) for r in plain) * tokens / seconds(ran),
        )
        rows.append(
            {
                "recording": name,
                "policy": chosen,
                "simulated": round(outcome[name][0], 4),
                "measured": round(outcome[name][1], 4),
                "rounds": found.rounds,
                "exceptions": len(found.exceptions),
                "failures": len(found.failures),
            }
        )
        total += found
    best = speed.idxmax()
    return Demo(table, best, *outcome[best[0]], total, DataFrame(rows), costs[best[0]].device)


def _spread(count: int, wanted: int) -> list[int]:
    wanted = min(wanted, count)
    return [i * count // wanted for i in range(wanted)]


def draw(found: Demo, path: Path) -> None:
    """Plots the modelled speedup of every policy on every recording, and what the runs measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    means = found.table.groupby(["trace", "policy"], sort=False).speedup.mean()
    names = list(dict.fromkeys(found.table.policy))
    for i, name in enumerate(dict.fromkeys(found.table.trace)):
        axes.plot(names, [means[name, p] for p in names], "o-", color=f"C{i}", ms=3, lw=0.9, label=name)
        run = found.runs[found.runs.recording == name].iloc[0]
        axes.plot([run.policy], [run.measured], "*", color=f"C{i}", ms=12, mec="black", mew=0.6)
    axes.plot([], [], "*", color="white", mec="black", ms=12, label="measured run of its best")
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_ylabel("speedup over plain decoding")
    axes.tick_params(axis="x", rotation=40)
    axes.legend(fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
