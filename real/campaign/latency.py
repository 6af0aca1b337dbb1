"""Pass latencies of a campaign, beside the floor of the device."""

from real.campaign.workspace import Workspace
from real.measure.device_limits import host_wait
from real.measure.grid_settings import GridAxes, GridSettings
from real.measure.latency_grid import LatencyGrid
from real.measure.time_grid import measure_grid
from real.model.random_models import read_target
from real.pair import DTYPES
from real.progress import relabel

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
