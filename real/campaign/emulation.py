"""Recorded acceptances on a large model with random weights."""

from real import drafters
from real.bench.recorded_sequence import SequenceSettings
from real.bench.trace_driven import emulate, emulation_passes
from real.campaign.recordings import RULE
from real.campaign.selection import select_policies, select_prompts
from real.campaign.workspace import Workspace
from real.model.random_models import check_room, random_decoder, read_shape
from real.pair import DTYPES
from real.progress import relabel
from simspec import policies


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
