"""Predicting runs from replays and from costs of other prompts, and running them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from real.bench.saved import load_rows, save_rows
from real.bench.scorecard import Scorecard, ScorecardRow
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.model.stored_weights import sha256
from real.model_settings import ModelSettings, check_models, open_recording, policy_cost_of
from real.progress import Progress, quiet, relabel
from real.provenance import device_name
from real.rerun import recorded_rule
from simspec import Trace, policies
from simspec.numerics.rng import check_seed
from simspec.output.files import check_output

POLICIES = ("fixed:0", "fixed:1", "fixed:2", "fixed:4", "beta_ts", "confidence:0.5", "cost_ts")
"""Policies that are scored where none is named and the recording has what they read."""


@dataclass(frozen=True)
class ScoringSettings:
    """Settings of the scoring of each recording.

    | field | meaning |
    | --- | --- |
    | policies | name[:arg,...]; None: those of `POLICIES` whose features are recorded |
    | prompts, repeats | prompts to score (as many others give the costs), runs of every policy |
    | cost | a cost file that policies observe |
    | seed | of the prompts, the order of runs and the policies |
    | save | rows of finished recordings, .json; a second call continues there |
    | budget | most new tokens of a prompt; 0: as recorded |
    """

    policies: Sequence[str] | None = None
    prompts: int = 20
    repeats: int = 5
    cost: Path | None = None
    seed: int = 0
    save: Path | None = None
    budget: int = 0


def score_recordings(
    names: Sequence[str],
    models: ModelSettings,
    settings: ScoringSettings,
    plot: Path | None = None,
    progress: Progress = quiet,
) -> Scorecard:
    """The scorecard of these recordings; a figure of it goes to `plot`."""
    check_models(models)
    check_seed(settings.seed)
    for name, least in (("repeats", 1), ("budget", 0)):
        if (value := getattr(settings, name)) < least:
            raise ValueError(f"--{name} is {value}, expected at least {least}")
    recordings = {name: open_recording(name) for name in names}
    inputs = [settings.cost or "", *(path for path, _ in recordings.values())]
    if plot is not None:
        check_output(plot, settings.save or "", *inputs)
    wanted = {name: _scored(trace, settings) for name, (_, trace) in recordings.items()}
    rows: dict[str, Sequence[ScorecardRow]] = {}
    if settings.save is not None:
        check_output(settings.save, *inputs)
        hashes = {name: sha256(path) for name, (path, _) in recordings.items()}
        saved = _saved_settings(models, settings, hashes)
        rows.update(load_rows(settings.save, saved))
    for name, (path, trace) in recordings.items():
        if name in rows:
            continue
        pair = models.load_for(trace, name)
        rows[name] = score(
            name,
            trace.shorten(settings.budget) if settings.budget else trace,
            pair,
            wanted[name],
            policy_cost_of(path, settings.cost, trace.K, wanted[name]),
            ScoreSettings(settings.prompts, settings.repeats, settings.seed),
            relabel(progress, f"running {name}"),
        )
        if settings.save is not None:
            save_rows(settings.save, saved, rows)
    scorecard = Scorecard(
        device_name(models.device),
        models.dtype,
        settings.repeats,
        settings.seed,
        tuple(row for name in recordings for row in rows[name]),
    )
    if plot is not None:
        from real.bench.figures import draw_scorecard

        draw_scorecard(scorecard, plot)
    return scorecard


def _scored(trace: Trace, settings: ScoringSettings) -> list[str]:
    """The policies to score on a recording; ValueError where one, or the split, cannot be."""
    recorded_rule(trace)
    split_prompts(trace, settings.prompts, settings.seed)
    if settings.policies is None:
        recorded = {feature for feature, _ in trace.meta.features}
        return [text for text in POLICIES if set(policies.parse(text).reads) <= recorded]
    for text in settings.policies:
        trace.features(policies.parse(text).reads)
    return list(settings.policies)


def _saved_settings(models: ModelSettings, settings: ScoringSettings, hashes: dict) -> dict:
    """Settings with which all rows of a file must have been made."""
    return {
        "device": device_name(models.device),
        "dtype": models.dtype,
        "engine": models.engine,
        "prompts": settings.prompts,
        "repeats": settings.repeats,
        "budget": settings.budget,
        "seed": settings.seed,
        "cost": str(settings.cost),
        "bundle": str(models.models),
        "target": str(models.target),
        "policies": None if settings.policies is None else list(settings.policies),
        "recordings": hashes,
    }
