"""The command `simspec demo`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from real.commands.options import show_progress
from real.model_settings import ModelSettings, evenly_spaced, open_recording, policy_cost_of
from real.progress import relabel
from simspec import sweep
from simspec.output.frames import frame, show
from simspec.output.terminal import print_text
from simspec.settings import Settings, command, option
from simspec.trace.recordings import recordings

PANEL = "Run and verify"
POLICIES = ("fixed:1", "fixed:2", "fixed:4", "beta_ts", "cost_ts", "confidence:0.5", "oracle")
# Of a checkout; a wheel has one recording, which is shown there.
SHOWN = ("tiny-model-greedy", "tiny-model-coupled", "tiny-early_exit-greedy")


@dataclass(frozen=True)
class Demo(Settings):
    """How much of the bundled recordings is run."""

    prompts: Annotated[int, option("Run of each recording.", ge=1, le=1_000_000)] = 10
    as_json: Annotated[bool, option("Print one JSON object on stdout.", "--json")] = False


@command
def demo(settings: Demo) -> None:
    """Sweep bundled recordings at their costs, and run the best policies on the embedded models.

    Exits with code 1 if a run and its replay differ.

    Example: simspec demo --prompts 48
    """
    from real.rerun import run_on

    ModelSettings(threads=1).use_threads()  # two wait for each other where a core is busy
    rows, equal = [], True
    with show_progress() as progress:
        for name in [name for name in SHOWN if name in recordings()] or recordings():
            path, trace = open_recording(name)
            pair = ModelSettings().load_for(trace, name)
            cost = policy_cost_of(path, None, trace.K)
            means = sweep(trace, POLICIES, cost, replicates=2, progress=False)
            means = means.groupby("policy", sort=False).speedup.mean()
            best = means.drop("oracle").idxmax()
            part = trace.select(evenly_spaced(trace.sequences, settings.prompts))
            ran = run_on(part, pair, best, cost, 0, relabel(progress, f"running {best} on {name}"))
            found, equal = ran.comparison, equal and ran.equal
            counts = found.rounds, len(found.exceptions), len(found.failures)
            rows.append((name, *means, best, ran.simulated, ran.measured, *counts))
    columns = ("simulated", "measured", "rounds", "exceptions", "failures")
    table = frame(rows, ("recording", *means.index, "best", *columns), title="times plain decoding")
    show(table, settings.as_json, replay_equal=equal, device=cost.device)
    if not settings.as_json:
        print_text("the runs did what the replays said" if equal else "RUNS AND REPLAYS DIFFER")
    if not equal:
        raise typer.Exit(1)
