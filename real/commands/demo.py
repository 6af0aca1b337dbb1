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

    The rounds are one statement, the seconds another. Exits with code 1 if rounds differ from the
    replay's, or seconds, on the device of the costs, beyond noise.

    Example: simspec demo --prompts 48
    """
    from real.provenance import device_name
    from real.rerun import run_on

    ModelSettings(threads=1).use_threads()  # two wait for each other where a core is busy
    rows, equal, unsettled = [], True, []
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
            unsettled += [f"{name}: {ran.doubt}"] if ran.doubt else []
            counts = compared.rounds, len(compared.exceptions), len(compared.failures)
            seconds = (None, None) if ran.doubt else (ran.simulated, ran.measured)
            rows.append((name, *means, best, *seconds, *counts))
    columns = ("simulated", "measured", "rounds", "exceptions", "failures")
    title = f"times plain decoding, replayed and simulated at costs of {cost.device}"
    table = frame(rows, ("recording", *means.index, "best", *columns), title=title)
    show(table, settings.as_json, replay_equal=equal, unsettled=unsettled, device=cost.device)
    if not settings.as_json:
        print_text("the rounds equal the replays'" if equal else "ROUNDS AND REPLAYS DIFFER")
        here = device_name("cpu")
        agree = "the seconds agree with the replays' within noise"
        if cost.device != here:
            agree = f"measured on {here}, so that these seconds are not compared with those costs"
        print_text("\n".join(unsettled) or agree)
    if not equal or unsettled:
        raise typer.Exit(1)
