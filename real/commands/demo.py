"""The command `simspec demo`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from real.commands.options import show_progress
from real.model_settings import ModelSettings, evenly_spaced, open_recording, policy_cost_of
from real.progress import relabel
from simspec import sweep
from simspec.cost.gate import Claim, check_claims
from simspec.output.frames import frame, show
from simspec.output.terminal import print_text
from simspec.settings import Settings, command, option
from simspec.trace.recordings import recordings

PANEL = "Run and verify"
POLICIES = ("fixed:1", "fixed:2", "fixed:4", "beta_ts", "cost_ts", "confidence:0.5", "oracle")
SHOWN = ("tiny-model-greedy", "tiny-model-coupled", "tiny-early_exit-greedy")
"""Of a checkout; elsewhere the recording in the wheel of the embedded models is shown."""


@dataclass(frozen=True)
class Demo(Settings):
    """How much of the bundled recordings is run."""

    prompts: Annotated[int, option("Run of each recording.", ge=1, le=1_000_000)] = 10
    as_json: Annotated[bool, option("Print one JSON object on stdout.", "--json")] = False


@command
def demo(settings: Demo) -> None:
    """Sweep bundled recordings at their costs, and run the best policies on the embedded models.

    Exits with code 1 if rounds differ from the replay's. `simspec run --compare` measures seconds.

    Example: simspec demo --prompts 48
    """
    from real.rerun import run_on

    ModelSettings(threads=1).use_threads()  # two wait for each other where a core is busy
    rows, equal = [], True
    with show_progress() as progress:
        shown = [name for name in SHOWN if name in recordings()]
        for place in shown or ModelSettings().folder.glob("*.parquet"):
            path, trace = open_recording(str(place))
            name = path.stem
            pair = ModelSettings().load_for(trace, name)
            cost = policy_cost_of(path, None, trace.K)
            found = sweep(trace, POLICIES, cost, replicates=2, progress=False)
            found = found.groupby("policy", sort=False)[["speedup", "committed_per_round"]].mean()
            check_claims([Claim(*row) for row in found.itertuples()], cost, cost.name)
            means = found.speedup
            best = means.drop("oracle").idxmax()
            part = trace.select(evenly_spaced(trace.sequences, settings.prompts))
            ran = run_on(part, pair, best, cost, 0, relabel(progress, f"running {best} on {name}"))
            compared, equal = ran.comparison, equal and ran.equal
            counts = compared.rounds, len(compared.exceptions), len(compared.failures)
            rows.append((name, *means, best, *counts))
    title = f"times plain decoding, replayed at costs of {cost.device}; rounds of the best, run"
    columns = ("recording", *means.index, "best", "rounds", "exceptions", "failures")
    show(frame(rows, columns, title=title), settings.as_json, replay_equal=equal)
    if not settings.as_json:
        print_text("the rounds equal the replays'" if equal else "ROUNDS AND REPLAYS DIFFER")
    if not equal:
        raise typer.Exit(1)
