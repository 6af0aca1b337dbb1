"""Racing the decode loop against transformers on a recording's prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from real.bench.contestants import (
    Checkpoints,
    HfModels,
    check_plans,
    load_pairs,
    our_contestants,
    parse_contestant,
    requests_of,
)
from real.bench.figures import draw_race
from real.bench.hf_generate import (
    HF_METHODS,
    candidates,
    check_methods,
    other_prompts,
    resolve,
    tune,
    with_plain,
)
from real.bench.race import PLAIN, Contestant, race
from real.bench.race_rows import RaceRow, race_rows, race_summary
from real.bench.saved import RaceFile
from real.decode.engine import engines_of
from real.model.stored_weights import sha256
from real.model_settings import ModelSettings, check_models, open_recording, policy_cost_of
from real.pair import Pair, check_drafter, check_pair
from real.progress import Progress, quiet, relabel
from real.provenance import argv, device_name, revision, versions
from simspec import CostModel, Trace, load_trace
from simspec.numerics.rng import check_seed
from simspec.output.files import check_output, write_json

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
    | budget | most new tokens of a prompt; 0: as recorded |
    | tune_prompts | other prompts that transformers' draft lengths are tuned on |
    | control | race plain decoding under a second name too |
    """

    contestants: Sequence[str] = tuple(f"model={policy}" for policy in POLICIES)
    rivals: Sequence[str] = HF_METHODS
    prompts: int = 20
    repeats: int = 5
    costs: Sequence[str] = ()
    seed: int = 0
    budget: int = 0
    tune_prompts: int = 5
    control: bool = False


@dataclass(frozen=True)
class RaceOutputs:
    """Files of a race: its summary, its figure, and finished repeats to continue from."""

    out: Path | None = None
    plot: Path | None = None
    save: Path | None = None

    def check(self, *inputs: str | Path) -> None:
        """ValueError where one cannot be written, or would overwrite another or an input."""
        named = [path for path in (self.out, self.plot, self.save) if path is not None]
        for i, path in enumerate(named):
            check_output(path, *inputs, *named[:i])


def race_recording(
    name: str,
    models: ModelSettings,
    settings: RaceSettings,
    outputs: RaceOutputs = RaceOutputs(),  # noqa: B008
    progress: Progress = quiet,
) -> tuple[dict, list[RaceRow]]:
    """(summary, rows) of a race on prompts of the recording `name`.

    Transformers' draft lengths are tuned first, on other prompts of the recording.
    """
    check_models(models)
    _check(settings)
    contestants = list(dict.fromkeys(settings.contestants))
    rivals = _rivals(settings.rivals)
    drafters = {parse_contestant(text)[0] for text in contestants}
    path, trace = open_recording(name, settings.prompts)
    outputs.check(path, *(text.partition("=")[2] for text in settings.costs))
    costs, own = _costs(settings.costs, drafters), trace.meta.drafter
    if own not in costs:
        pairs = map(parse_contestant, contestants)
        raced = [policy for drafter, policy in pairs if drafter == own]
        costs[own] = policy_cost_of(path, None, trace.K, raced)
    check_plans(trace, contestants, costs, settings.seed)
    others = None
    if any(candidates(rival) != [rival] for rival in rivals):
        others = other_prompts(load_trace(path), trace, settings.tune_prompts)
    saved = _saved_settings(models, settings, trace, sha256(path))
    kept = RaceFile(outputs.save, saved, revision())
    checkpoints = Checkpoints(models.folder, models.device, models.dtype, models.target)
    loaded = load_pairs(checkpoints, trace, contestants, models.engine)
    check_pair(trace, loaded[PLAIN], name)
    for pair in loaded.values():
        check_drafter(trace, pair, name)
    racing = our_contestants(trace, loaded, contestants, costs, settings.seed, settings.control)
    if rivals:
        hf = HfModels.load(checkpoints, rivals)
        label = relabel(progress, f"tuning transformers on {name}")
        racing += _tuned(rivals, hf, trace, others, settings, kept, label)
    runs = race(
        racing,
        requests_of(trace, settings.budget or None),
        settings.repeats,
        settings.seed,
        models.device,
        relabel(progress, f"racing on {name}"),
        kept=kept,
    )
    ranked = race_rows(runs, trace.meta.tasks)
    about = _about(name, trace, models, settings, loaded)
    about["git"] = ", ".join(kept.revisions)
    about["tuning"] = {method: asdict(found) for method, found in (kept.tuning or {}).items()}
    result = race_summary(runs, ranked, trace.meta.tasks, about)
    if outputs.out is not None:
        write_json(outputs.out, result)
    if outputs.plot is not None:
        draw_race(ranked, result["device"], outputs.plot)
    return result, ranked


def _check(settings: RaceSettings) -> None:
    least = {"repeats": 1, "budget": 0, "tune_prompts": 1}
    for field, bound in least.items():
        if (value := getattr(settings, field)) < bound:
            option = field.replace("_", "-")
            raise ValueError(f"--{option} is {value}, expected at least {bound}")
    check_seed(settings.seed)


def _tuned(
    rivals: Sequence[str],
    models: HfModels,
    raced: Trace,
    others: Trace | None,
    settings: RaceSettings,
    kept: RaceFile,
    progress: Progress,
) -> list[Contestant]:
    """Transformers' contestants, with the draft lengths that are fastest on `others`."""
    if kept.tuning is None and others is not None:
        kept.save_tuning(
            tune(
                rivals,
                lambda names: models.contestants(others, names),
                requests_of(others, settings.budget or None),
                others.meta.ids,
                settings.seed,
                progress,
            )
        )
    chosen = resolve(rivals, kept.tuning or {})
    return models.contestants(raced, chosen)


def _rivals(names: Sequence[str]) -> list[str]:
    rivals = list(dict.fromkeys(names))
    if "none" in rivals and len(rivals) > 1:
        raise ValueError(
            f"rivals are {', '.join(rivals)}; expected none alone, or the others without it"
        )
    rivals = [] if rivals == ["none"] else with_plain(rivals)
    check_methods(rivals)
    return rivals


def _saved_settings(
    models: ModelSettings, settings: RaceSettings, trace: Trace, recording: str
) -> dict:
    """Settings that finished repeats in a file must have been made with."""
    chosen = {
        name: list(v) if isinstance(v, tuple | list) else v for name, v in vars(settings).items()
    }
    return chosen | {
        "recording": recording,
        "ids": list(trace.meta.ids),
        "device": device_name(models.device),
        "dtype": models.dtype,
        "engine": models.engine,
        "models": str(models.models),
        "target": str(models.target),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    """Versions of what decides numbers; scikit-learn adapts transformers' confidence threshold."""
    found = find_spec("sklearn") is not None
    return versions() | {"scikit-learn": version("scikit-learn") if found else "not installed"}


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
        "budget": settings.budget,
        "repeats": settings.repeats,
        "seed": settings.seed,
        "ids": list(trace.meta.ids),
        "matmul": torch.get_float32_matmul_precision(),
        "versions": _versions(),
        "argv": list(argv()),
    }
