"""Racing the decode loop against transformers on a recording's prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from real.bench.contestant import PLAIN
from real.bench.contestants import (
    Checkpoints,
    all_contestants,
    load_pairs,
    parse_contestant,
    requests_of,
)
from real.bench.hf_generate import HF_METHODS, parse_hf_method
from real.bench.race import race
from real.bench.race_figure import draw_race
from real.bench.race_rows import RaceRow, race_rows
from real.bench.ranking import race_summary
from real.decode.engine import engines_of
from real.jobs.models import ModelSettings, check_models
from real.jobs.recordings import open_recording, policy_cost_of
from real.pair import Pair, check_pair
from real.progress import Progress, quiet, relabel
from real.provenance import argv, device_name, revision, versions
from simspec import CostModel, Trace
from simspec.files import check_output, write_json
from simspec.rng import check_seed

POLICIES = (
    "fixed:1", "fixed:2", "fixed:4", "beta_ts", "cali_ts", "confidence:0.5", "static:2x1x1",
)  # fmt: skip
"""Policies of the drafter `model` that race where no contestant is named."""


@dataclass(frozen=True)
class RaceSettings:
    """Who races on what.

    | field | meaning |
    | --- | --- |
    | contestants | drafter=policy of this project |
    | rivals | transformers' ways to generate, `HF_METHODS`; ("none",): no rival |
    | prompts, repeats | prompts of the recording (0: all), runs of every contestant on each |
    | costs | drafter=COST.json that its policies observe |
    | seed | of the order and the policies |
    """

    contestants: Sequence[str] = tuple(f"model={policy}" for policy in POLICIES)
    rivals: Sequence[str] = HF_METHODS
    prompts: int = 12
    repeats: int = 3
    costs: Sequence[str] = ()
    seed: int = 0


def race_recording(
    name: str,
    models: ModelSettings,
    settings: RaceSettings,
    out: Path | None = None,
    plot: Path | None = None,
    progress: Progress = quiet,
) -> tuple[dict, list[RaceRow]]:
    """(summary, rows) of a race on the prompts of the recording `name`; `out` gets the summary."""
    check_models(models)
    if settings.repeats < 1:
        raise ValueError(f"--repeats is {settings.repeats}, expected at least 1")
    check_seed(settings.seed)
    contestants = list(dict.fromkeys(settings.contestants))
    rivals = _rivals(settings.rivals)
    drafters = {parse_contestant(text)[0] for text in contestants}
    path, trace = open_recording(name, settings.prompts)
    inputs: list[str | Path] = [path, *(text.partition("=")[2] for text in settings.costs)]
    outputs = [output for output in (out, plot) if output is not None]
    for i, output in enumerate(outputs):
        check_output(output, *inputs, *outputs[:i])
    costs = {trace.meta.drafter: policy_cost_of(path, None, trace.K)}
    costs |= _costs(settings.costs, drafters)
    checkpoints = Checkpoints(models.folder, models.device, models.dtype, models.target)
    loaded = load_pairs(checkpoints, trace, contestants, models.engine)
    check_pair(trace, loaded[PLAIN], name)
    runs = race(
        all_contestants(checkpoints, trace, loaded, contestants, rivals, costs, settings.seed),
        requests_of(trace),
        settings.repeats,
        settings.seed,
        models.device,
        relabel(progress, f"racing on {name}"),
    )
    ranked = race_rows(runs, trace.meta.tasks)
    about = _about(name, trace, models, settings, loaded)
    result = race_summary(runs, ranked, trace.meta.tasks, about)
    if out is not None:
        write_json(out, result)
    if plot is not None:
        draw_race(ranked, result["device"], plot)
    return result, ranked


def _rivals(names: Sequence[str]) -> list[str]:
    rivals = list(dict.fromkeys(names))
    if "none" in rivals and len(rivals) > 1:
        raise ValueError(
            f"rivals are {', '.join(rivals)}; expected none alone, or the others without it"
        )
    rivals = [] if rivals == ["none"] else rivals
    for text in rivals:
        parse_hf_method(text)
    return rivals


def _costs(texts: Sequence[str], drafters: set[str]) -> dict[str, CostModel]:
    costs = {}
    for text in texts:
        drafter, equals, file = text.partition("=")
        if not equals or drafter not in drafters:
            raise ValueError(
                f"--cost is {text!r}; "
                f"expected drafter=COST.json, of a drafter among {', '.join(sorted(drafters))}"
            )
        costs[drafter] = CostModel.from_json(file)
    return costs


def _about(
    name: str,
    trace: Trace,
    models: ModelSettings,
    settings: RaceSettings,
    loaded: Mapping[str, Pair],
) -> dict:
    return {
        "recording": name,
        "target": loaded[PLAIN].name,
        "device": device_name(models.device),
        "dtype": models.dtype,
        "engine": models.engine,
        "engines": {
            drafter: engines_of(pair.target, pair.drafter)
            for drafter, pair in loaded.items()
            if drafter != PLAIN
        },
        "rule": trace.meta.rule,
        "temperature": trace.meta.temperature,
        "prompts": trace.sequences,
        "repeats": settings.repeats,
        "seed": settings.seed,
        "ids": list(trace.meta.ids),
        "matmul": torch.get_float32_matmul_precision(),
        "versions": versions(),
        "git": revision(),
        "argv": list(argv()),
    }
