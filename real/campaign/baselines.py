"""What a campaign's figures are held against: the card's own floor, and transformers on the same prompts."""

from real.bench.contestants import Checkpoints, all_contestants, load_pairs, requests_of
from real.bench.race import race
from real.bench.race_figure import draw_race
from real.bench.race_rows import race_rows
from real.bench.ranking import race_summary
from real.campaign.config import MUST
from real.campaign.experiments import best_fixed
from real.campaign.workspace import Folder
from real.files import replace_json
from real.measure.device_limits import host_wait
from real.measure.grid_settings import GridAxes, GridSettings
from real.measure.latency_grid import LatencyGrid
from real.measure.time_grid import measure_grid
from real.model.random_models import read_target
from real.pair import DTYPES
from real.progress import relabel
from real.provenance import device_name
from real.rerun import evenly_spaced
from simspec import policies

LAB, TUNED, EAGER = "lab", "lab-tuned", "lab-eager"
"""Ladders of the target that was trained, whatever its sizes."""


def climbed(folder: Folder, name: str) -> dict:
    """Bf16: passes of a large shape with random weights (or of the lab target's), at every width, batch and context, beside their floor.

    Of the lab target's shape TUNED has its products tuned by torch.compile, and EAGER issues kernel by kernel.
    """
    size, path = folder.size, folder.out / "ladders" / f"{name}.json"
    ours = name.startswith(LAB)
    shape = read_target(str(folder.models / "target") if ours else dict(size.ladders)[name])
    measured = LatencyGrid.from_json(path) if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    batches, contexts = (size.batches, size.contexts) if not ours else ((1,), size.contexts[:2])
    settings = GridSettings(
        DTYPES["bfloat16"],
        folder.device,
        size.climbs,
        graphs=name != EAGER,
        mode="max-autotune-no-cudagraphs" if name == TUNED else None,
        drafters=size.steps,
        seed=folder.seed,
    )
    found = measure_grid(
        shape,
        GridAxes(size.widths, batches, contexts),
        settings,
        measured,
        lambda grid: grid.to_json(path),
        relabel(folder.progress, f"timing {shape.name}"),
    )
    plain = [cell for cell in found.cells if cell.part == "target" and cell.width == 1]
    steps = {
        f"batch {c.batch}, context {c.context}": {
            "seconds": c.median_s,
            "floor": c.floor_s,
            "distance": c.distance,
        }
        for c in plain
    }
    speeds = {"bandwidth": found.speeds.bandwidth.median, "rate": found.speeds.rate.median}
    return (
        {"shape": shape.name, "dtype": "bfloat16", "graphed": found.graphed, "fused": found.fused}
        | speeds
        | {"plain": steps}
    )


def waited(folder: Folder) -> dict:
    """What one host wait a drafted token costs: of the lab's vocabulary, and of the driven shape's."""
    sizes = {"lab": folder.size.vocab, folder.size.shape: read_target(folder.size.shape).vocab}
    found = {
        name: host_wait(vocab, DTYPES["bfloat16"], folder.device) for name, vocab in sizes.items()
    }
    return {
        name: {"vocab": sizes[name], "seconds": each.median, "p10": each.p10, "p90": each.p90}
        for name, each in found.items()
    }


def raced(folder: Folder) -> dict:
    """Bf16, greedy: our loop with every must drafter against transformers on the same prompts, checkpoints and device."""
    size, wanted, told = folder.size, [], {}
    for drafter in (*MUST, "prompt_lookup"):
        trace, cost = folder.opened(drafter, "greedy")
        shown, told[drafter] = {name for name, _ in trace.meta.features}, cost
        texts = [text for text in size.policies if set(policies.parse(text).reads) <= shown]
        fixed = f"fixed:{max(1, best_fixed(trace, cost, folder.seed))}"
        wanted += [
            f"{drafter}={text}"
            for text in ((fixed, *texts, size.tree) if drafter == "model" else (fixed, "beta_ts"))
        ]
    trace, _ = folder.opened("model", "greedy")
    trace = trace.select(evenly_spaced(trace.sequences, size.raced))
    checkpoints = Checkpoints(folder.models, folder.device, "bfloat16")
    made = load_pairs(checkpoints, trace, wanted, size.engine)
    running = all_contestants(checkpoints, trace, made, wanted, size.rivals, told, folder.seed)
    progress = relabel(folder.progress, "racing")
    requests = requests_of(trace, size.race_budget)
    ran = race(running, requests, size.laps, folder.seed, folder.device, progress)
    found = race_rows(ran, trace.meta.tasks)
    about = {
        "recording": folder.trace("model", "greedy").stem,
        "device": device_name(folder.device),
        "dtype": "bfloat16",
    }
    said = race_summary(
        ran,
        found,
        trace.meta.tasks,
        about | {"engine": size.engine, "prompts": trace.sequences, "repeats": size.laps},
    )
    replace_json(folder.out / "race.json", said)
    (folder.out / "figures").mkdir(exist_ok=True)
    draw_race(found, about["device"], folder.out / "figures" / "race.png")
    return {name: value for name, value in said.items() if name != "raw"}
