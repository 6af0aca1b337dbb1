"""Timings of a campaign: pass latencies, the race, scorecards, emulations, and their figures."""

from collections.abc import Sequence
from dataclasses import asdict

from real.bench.figures import draw_scorecard
from real.bench.scorecard import Scorecard, ScorecardRow
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.campaign.config import REQUIRED
from real.campaign.recordings import RULE, best_fixed, select_policies
from real.campaign.workspace import Workspace
from real.drafters import BUILTIN
from real.jobs import (
    EmulationSettings,
    LatencyFiles,
    RaceOutputs,
    RaceSettings,
    emulate_recording,
    race_recording,
    run_on,
)
from real.jobs import measure_latency as measure_target_latency
from real.measure.device_limits import host_wait
from real.measure.latency_grid import GridAxes, GridSettings
from real.model.random_models import read_target
from real.pair import DTYPES
from real.progress import relabel
from real.provenance import device_name
from simspec import policies
from simspec.reports.speedup_curve import plot_curves, speedup_curve

LAB, TUNED, EAGER = "lab", "lab-tuned", "lab-eager"
"""Latency grids of the trained target."""


def measure_latency(workspace: Workspace, name: str) -> dict:
    """Bf16: latencies of a model with random weights, at every width, batch and context.

    For the trained target's shape, TUNED tunes products by torch.compile, and EAGER runs eagerly.
    """
    config, path = workspace.config, workspace.out / "ladders" / f"{name}.json"
    ours = name.startswith(LAB)
    target = str(workspace.models / "target") if ours else dict(config.latency.models)[name]
    path.parent.mkdir(exist_ok=True)
    batches, contexts = config.latency.batches, config.latency.contexts
    if ours:
        batches, contexts = (1,), contexts[:2]
    settings = GridSettings(
        DTYPES["bfloat16"],
        workspace.device,
        config.latency.repeats,
        graphs=name != EAGER,
        mode="max-autotune-no-cudagraphs" if name == TUNED else None,
        drafters=config.latency.drafters,
        seed=workspace.seed,
    )
    axes = GridAxes(config.latency.widths, batches, contexts)
    grid = measure_target_latency(target, axes, settings, LatencyFiles(path), workspace.progress)
    plain = [cell for cell in grid.cells if cell.part == "target" and cell.width == 1]
    steps = {
        f"batch {c.batch}, context {c.context}": {
            "seconds": c.median_s,
            "floor": c.floor_s,
            "distance": c.distance,
        }
        for c in plain
    }
    speeds = {"bandwidth": grid.speeds.bandwidth.median, "rate": grid.speeds.rate.median}
    return (
        {
            "shape": read_target(target).name,
            "dtype": "bfloat16",
            "graphed": grid.graphed,
            "fused": grid.fused,
        }
        | speeds
        | {"plain": steps}
    )


def measure_host_wait(workspace: Workspace) -> dict:
    """Seconds of one host wait per drafted token, for both vocabularies."""
    vocab = workspace.config.training.vocab
    if workspace.checkpoint is not None:
        vocab = read_target(str(workspace.models / "target")).vocab
    sizes = {
        LAB: vocab,
        workspace.config.emulation.model: read_target(workspace.config.emulation.model).vocab,
    }
    waits = {
        name: host_wait(vocab, DTYPES["bfloat16"], workspace.device)
        for name, vocab in sizes.items()
    }
    return {
        name: {"vocab": sizes[name], "seconds": wait.median, "p10": wait.p10, "p90": wait.p90}
        for name, wait in waits.items()
    }


def race_transformers(workspace: Workspace) -> dict:
    """Bf16, greedy: our loop with every required drafter against transformers."""
    config = workspace.config
    wanted: list[str] = []
    raced = (*REQUIRED, "prompt_lookup")
    for drafter in raced:
        trace, cost = workspace.open_recording(drafter, "greedy")
        features = {name for name, _ in trace.meta.features}
        texts = [
            text for text in config.policies.chains if set(policies.parse(text).reads) <= features
        ]
        fixed = f"fixed:{max(1, best_fixed(trace, cost, workspace.seed))}"
        wanted += [
            f"{drafter}={text}"
            for text in (
                (fixed, *texts, config.policies.tree) if drafter == "model" else (fixed, "beta_ts")
            )
        ]
    paths = {drafter: workspace.trace(drafter, "greedy") for drafter in raced}
    settings = RaceSettings(
        contestants=wanted,
        rivals=config.race.rivals,
        prompts=config.race.prompts,
        repeats=config.race.repeats,
        costs=[f"{drafter}={path.with_suffix('.cost.json')}" for drafter, path in paths.items()],
        seed=workspace.seed,
        budget=config.race.budget,
        tune_prompts=config.race.tune_prompts,
    )
    (workspace.out / "figures").mkdir(exist_ok=True)
    outputs = RaceOutputs(
        workspace.out / "race.json",
        workspace.out / "figures" / "race.png",
        workspace.work / "race.json",
    )
    result, _ = race_recording(
        str(paths["model"]), workspace.model_settings, settings, outputs, workspace.progress
    )
    return {name: value for name, value in result.items() if name != "raw"}


def score_drafter(workspace: Workspace, drafter: str) -> dict:
    """Bf16: throughput predicted from other prompts against measured throughput.

    The best fixed length is selected on other prompts.
    """
    config, pair = workspace.config, workspace.pair(drafter, "bfloat16")
    trace, cost = workspace.open_recording(drafter, RULE)
    kept, _ = split_prompts(trace, config.scoring.prompts, workspace.seed)
    mine = set(kept.sequence.tolist())
    others = trace.select([s for s in range(trace.sequences) if int(trace.sequence[s]) not in mine])
    name, progress = (
        workspace.trace(drafter, RULE).stem,
        relabel(workspace.progress, f"scoring {drafter}"),
    )
    rows = score(
        name,
        trace,
        pair,
        select_policies(workspace, others, cost),
        cost,
        ScoreSettings(config.scoring.prompts, config.scoring.repeats, workspace.seed),
        progress,
    )
    return {
        "dtype": "bfloat16",
        "repeats": config.scoring.repeats,
        "rows": [asdict(row) for row in rows],
    }


def scorecard(workspace: Workspace, drafters: Sequence[str]) -> Scorecard | None:
    """The scorecard of all drafters that were scored; None where none was."""
    found = [workspace.result(f"score-{drafter}") for drafter in drafters]
    rows = [
        ScorecardRow(**(row | {n: tuple(row[n]) for n in ("phases", "phases_measured")}))
        for each in found
        if each
        for row in each["rows"]
    ]
    return (
        Scorecard(
            device_name(workspace.device),
            "bfloat16",
            workspace.config.scoring.repeats,
            workspace.seed,
            tuple(rows),
        )
        if rows
        else None
    )


def run_static_tree(workspace: Workspace, drafter: str) -> dict:
    """Bf16: runs one static tree, and plain decoding, on the scored prompts."""
    pair = workspace.pair(drafter, "bfloat16")
    whole, cost = workspace.open_recording(drafter, RULE)
    trace, _ = split_prompts(whole, workspace.config.scoring.prompts, workspace.seed)
    found = run_on(
        trace, pair, workspace.config.policies.tree, cost, workspace.seed, workspace.progress
    ).summary()
    return {"dtype": "bfloat16"} | {
        name: value for name, value in found.items() if name not in ("exceptions", "failures")
    }


def emulate_drafter(workspace: Workspace, drafter: str) -> dict:
    """Bf16: passes of the large model with random weights, recorded acceptances."""
    config = workspace.config
    trace, cost = workspace.open_recording(drafter, RULE)
    fixed = [f"fixed:{k}" for k in (2, 4, 6) if k <= trace.K]
    chosen = select_policies(workspace, trace, cost)[1:]
    settings = EmulationSettings(
        dict(config.emulation.drafters)[drafter],
        [*fixed, *chosen],
        config.emulation.prompts,
        cost=workspace.trace(drafter, RULE).with_suffix(".cost.json"),
        seed=workspace.seed,
    )
    return emulate_recording(
        str(workspace.trace(drafter, RULE)),
        config.emulation.model,
        workspace.model_settings,
        settings,
        workspace.progress,
    ).summary()


def draw_figures(workspace: Workspace) -> dict:
    """Draws speedup against K for recordings with costs, and the scorecard."""
    written, panels, drafters = [], {}, []
    for drafter in sorted(BUILTIN):
        path = workspace.trace(drafter, RULE)
        if path.exists() and path.with_suffix(".cost.json").exists():
            trace, cost = workspace.open_recording(drafter, RULE)
            longest = min(trace.K, cost.K)
            chosen = select_policies(workspace, trace, cost)[1:]
            drafters.append(drafter)
            panels[path.stem] = speedup_curve(
                trace, [*chosen, "oracle"], cost, seed=workspace.seed, longest=longest
            )
    (workspace.out / "figures").mkdir(exist_ok=True)
    if panels:
        plot_curves(panels, workspace.out / "figures" / "speedup.png")
        written.append("speedup.png")
    if card := scorecard(workspace, drafters):
        draw_scorecard(card, workspace.out / "figures" / "scorecard.png")
        written.append("scorecard.png")
    return {"files": written, "device": device_name(workspace.device)}
