"""Timing policies on a model of any size with random weights and recorded acceptances."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from real.bench.emulation import Emulation
from real.bench.recorded_sequence import SequenceSettings
from real.bench.trace_driven import emulate, emulation_passes
from real.drafters import drafter_shapes, random_drafter
from real.jobs.models import ModelSettings, check_models, dtype_of
from real.jobs.recordings import open_recording, policy_cost_of
from real.model.random_models import check_room, random_decoder, read_shape
from real.progress import Progress, quiet, relabel
from simspec.numerics.rng import check_seed

POLICIES = ("fixed:1", "fixed:2", "fixed:4", "beta_ts")
"""Policies that are timed where none is named."""


@dataclass(frozen=True)
class EmulationSettings:
    """What is emulated on which recording.

    | field | meaning |
    | --- | --- |
    | drafter | early_exit[:LAYERS], model:SHAPE, eagle, medusa or prompt_lookup |
    | policies | name[:arg,...] as in `simspec sweep` |
    | prompts | so many of the recording's prompts, spread over the tasks; 0: all |
    | context | tokens of every prompt; None: as recorded |
    | cost | a cost file that policies observe |
    | seed | of weights, prompts and policies |
    """

    drafter: str = "early_exit"
    policies: Sequence[str] = POLICIES
    prompts: int = 12
    context: int | None = None
    cost: Path | None = None
    seed: int = 0


def emulate_recording(
    name: str,
    shape: str,
    models: ModelSettings,
    settings: EmulationSettings,
    progress: Progress = quiet,
) -> Emulation:
    """Times policies on a model of that shape; each round accepts what the recording `name` says.

    Of `models` only device, dtype and engine are used: weights are random.
    """
    check_models(models)
    check_seed(settings.seed)
    path, trace = open_recording(name, settings.prompts)
    policy_cost = policy_cost_of(path, settings.cost, trace.K)
    model, dtype, context = read_shape(shape), dtype_of(models.dtype), settings.context
    longest = int(np.diff(trace.prompt_offset).max()) if context is None else context
    capacity = longest + int(trace.budget.max())
    check_room([model, *drafter_shapes(settings.drafter, model)], dtype, capacity, models.device)
    decoder = random_decoder(model, dtype, models.device, settings.seed)
    drafter = random_drafter(
        settings.drafter, decoder, model, int(trace.depth.max()), settings.seed
    )
    label = {
        "text": "random",
        "acceptance": name,
        "target": model.name,
        "drafter": settings.drafter,
        "weights": "random",
        "rule": "greedy",
        "dtype": models.dtype,
        "engine": models.engine,
        "prompts": trace.sequences,
        "context": context or "as recorded",
    }
    emulation = emulate(
        decoder,
        drafter,
        trace,
        settings.policies,
        policy_cost,
        SequenceSettings(context, settings.seed),
        relabel(progress, f"emulating {model.name}"),
        emulation_passes(models.engine, trace, context),
    )
    return emulation.labeled(label)
