"""Timings of a campaign: pass latencies, the race, scorecards, emulations, and their figures."""

from collections.abc import Sequence
from dataclasses import asdict

from real import drafters
from real.bench.contestants import Checkpoints, HfModels, load_pairs, our_contestants, requests_of
from real.bench.emulation import emulate, emulation_passes
from real.bench.figures import draw_race, draw_scorecard
from real.bench.hf_generate import other_prompts, resolve, tune, with_plain
from real.bench.race import race
from real.bench.race_rows import race_rows, race_summary
from real.bench.recorded_drafter import SequenceSettings
from real.bench.scorecard import Scorecard, ScorecardRow
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.campaign.config import REQUIRED
from real.campaign.recordings import RULE, best_fixed, select_policies, select_prompts
from real.campaign.workspace import Workspace
from real.drafters import BUILTIN
from real.files import replace_json
from real.jobs import run_on
from real.measure.device_limits import host_wait
from real.measure.latency_grid import GridAxes, GridSettings, LatencyGrid
from real.measure.time_grid import measure_grid
from real.model.random_models import check_room, random_decoder, read_shape, read_target
from real.pair import DTYPES
from real.progress import relabel
from real.provenance import device_name
from simspec import CostModel, policies
from simspec.reports.speedup_curve import plot_curves, speedup_curve

LAB, TUNED, EAGER = "lab", "lab-tuned", "lab-eager"
"""Latency grids of the trained target."""


def measure_latency(workspace: Workspace, name: str) -> dict:
    """Bf16: latencies of a model with random weights, at every width, batch and context.

    For the trained target's shape, TUNED tunes products by torch.compile, and EAGER runs eagerly.
    """
    config, path = workspace.config, workspace.out / "ladders" / f"{name}.json"
    ours = name.startswith(LAB)
    shape = read_target(
        str(workspace.models / "target") if ours else dict(config.latency.models)[name]
    )
    measured = LatencyGrid.from_json(path) if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    batches, contexts = (
        (config.latency.batches, config.latency.contexts)
        if not ours
        else ((1,), config.latency.contexts[:2])
    )
    settings = GridSettings(
        DTYPES["bfloat16"],
        workspace.device,
        config.latency.repeats,
        graphs=name != EAGER,
        mode="max-autotune-no-cudagraphs" if name == TUNED else None,
        drafters=config.latency.drafters,
        seed=workspace.seed,
    )
    grid = measure_grid(
        shape,
        GridAxes(config.latency.widths, batches, contexts),
        settings,
        measured,
        lambda grid: grid.to_json(path),
        relabel(workspace.progress, f"timing {shape.name}"),
    )
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
        {"shape": shape.name, "dtype": "bfloat16", "graphed": grid.graphed, "fused": grid.fused}
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
    costs: dict[str, CostModel] = {}
    for drafter in (*REQUIRED, "prompt_lookup"):
        trace, cost = workspace.open_recording(drafter, "greedy")
        features, costs[drafter] = {name for name, _ in trace.meta.features}, cost
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
    whole, _ = workspace.open_recording("model", "greedy")
    trace = select_prompts(whole, config.race.prompts)
    others = other_prompts(whole, trace, config.race.tune_prompts)
    checkpoints = Checkpoints(workspace.models, workspace.device, "bfloat16")
    pairs = load_pairs(checkpoints, trace, wanted, config.engine)
    contestants = our_contestants(trace, pairs, wanted, costs, workspace.seed)
    rivals = with_plain(config.race.rivals)
    models = HfModels.load(checkpoints, rivals)
    tuning = tune(
        rivals,
        lambda names: models.contestants(others, names),
        requests_of(others, config.race.budget),
        others.meta.ids,
        workspace.seed,
        relabel(workspace.progress, "tuning transformers"),
    )
    contestants += models.contestants(trace, resolve(rivals, tuning))
    requests = requests_of(trace, config.race.budget)
    progress = relabel(workspace.progress, "racing")
    runs = race(
        contestants, requests, config.race.repeats, workspace.seed, workspace.device, progress
    )
    rows = race_rows(runs, trace.meta.tasks)
    about = {
        "recording": workspace.trace("model", "greedy").stem,
        "device": device_name(workspace.device),
        "dtype": "bfloat16",
    }
    result = race_summary(
        runs,
        rows,
        trace.meta.tasks,
        about
        | {
            "engine": config.engine,
            "prompts": trace.sequences,
            "repeats": config.race.repeats,
            "tuning": {method: asdict(found) for method, found in tuning.items()},
        },
    )
    replace_json(workspace.out / "race.json", result)
    (workspace.out / "figures").mkdir(exist_ok=True)
    draw_race(rows, about["device"], workspace.out / "figures" / "race.png")
    return {name: value for name, value in result.items() if name != "raw"}


def score_drafter(workspace: Workspace, drafter: str) -> dict:
    """Bf16: throughput predicted from other prompts against measured throughput.

    The best fixed length is selected on other prompts.
    """
    config, pair, made = workspace.config.scoring, workspace.pair(drafter, "bfloat16"), []
    for rule in config.rules:
        trace, cost = workspace.open_recording(drafter, rule)
        trace = trace.shorten(config.budget) if config.budget else trace
        kept, _ = split_prompts(trace, config.prompts, workspace.seed)
        mine = set(kept.sequence.tolist())
        others = [s for s in range(trace.sequences) if int(trace.sequence[s]) not in mine]
        made += score(
            workspace.trace(drafter, rule).stem,
            trace,
            pair,
            select_policies(workspace, trace.select(others), cost),
            cost,
            ScoreSettings(config.prompts, config.repeats, workspace.seed),
            relabel(workspace.progress, f"scoring {drafter} {rule}"),
        )
    return {"dtype": "bfloat16", "repeats": config.repeats, "rows": [asdict(row) for row in made]}


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
    whole, cost = workspace.open_recording(drafter, RULE)
    trace, spec = (
        select_prompts(whole, config.emulation.prompts),
        dict(config.emulation.drafters)[drafter],
    )
    shape = read_shape(config.emulation.model)
    room = int(max(trace.prompt_offset[1:] - trace.prompt_offset[:-1])) + int(trace.budget.max())
    check_room(
        [shape, *drafters.drafter_shapes(spec, shape)], DTYPES["bfloat16"], room, workspace.device
    )
    decoder = random_decoder(shape, DTYPES["bfloat16"], workspace.device, workspace.seed)
    made = drafters.random_drafter(spec, decoder, shape, int(trace.depth.max()), workspace.seed)
    fixed = [policies.BUILTIN["fixed"](k) for k in (2, 4, 6) if k <= trace.K]
    asked = [*fixed, *select_policies(workspace, whole, cost)[1:]]
    label = {
        "text": "random",
        "acceptance": workspace.trace(drafter, RULE).stem,
        "target": shape.name,
        "drafter": spec,
        "weights": "random",
    }
    label |= {"dtype": "bfloat16", "engine": config.engine}
    passes = emulation_passes(config.engine, trace)
    progress = relabel(workspace.progress, f"emulating {shape.name} {drafter}")
    settings = SequenceSettings(seed=workspace.seed)
    return (
        emulate(decoder, made, trace, asked, cost, settings, progress, passes)
        .labeled(label)
        .summary()
    )


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
