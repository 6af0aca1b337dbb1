"""InferenceX: the accepted length of a drafter by draft length, as YAML.

Reference: golden_al_distribution/*.yaml of InferenceX.
"""

from typing import Any

from simspec.engines.counts import origin_of
from simspec.engines.documents import (
    check_fields,
    check_integer,
    check_number,
    check_option,
    check_text,
    parse_yaml,
    shown,
)
from simspec.engines.draft_acceptance import acceptance_at
from simspec.engines.import_kinds import PooledCounts
from simspec.engines.request import MEASURED, ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source

KIND = "golden accepted lengths"
MODES = ("thinking_on", "thinking_off")
DIGITS = 2


def export(request: Request) -> str:
    """The YAML of one model: {mode: {K: accepted length, bonus included}}, one replay for each K.

    Every K from 1 to the deepest that is recorded and priced; two decimals, as InferenceX has.
    """
    import yaml

    check_option(request.settings.mode, "mode", MODES)
    traces = request.evidence.traces.values()
    curve = {
        k: round(acceptance_at(traces, k).mean_length, DIGITS)
        for k in range(1, request.evidence.K + 1)
    }
    text: str = yaml.safe_dump({request.evidence.target: {request.settings.mode: curve}})
    return text


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what InferenceX refuses, or changes without a word.

    | InferenceX would | refused here |
    | --- | --- |
    | refuse | another number of models than one, modes that are no object |
    | refuse | lengths outside [1, K + 1], K below 1 |
    | never find | unknown modes, a K that is text |
    | convert | accepted lengths that are text |
    | keep the last | a key that comes twice |
    """
    read(text)


def read(text: str) -> tuple[str, dict[str, dict[int, float]]]:
    """(model, {mode: {K: accepted length}}); ValueError as `validate`."""
    data = parse_yaml(text, KIND)
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError(f"{KIND} hold {shown(data)}, expected one model")
    ((model, modes),) = data.items()
    check_text(model, "the model's name")
    check_fields(modes, f"model {shown(model)}", (), MODES)
    if not modes:
        raise ValueError(f"model {shown(model)} has no mode, expected one of {', '.join(MODES)}")
    return model, {mode: _curve(curve, mode) for mode, curve in modes.items()}


def _curve(curve: Any, mode: str) -> dict[int, float]:
    if not isinstance(curve, dict) or not curve:
        raise ValueError(f"{mode} is {shown(curve)}, expected accepted lengths by K")
    return {
        check_integer(k, f"{mode}: K", 1): check_number(length, f"{mode}[{k}]", 1, k + 1)
        for k, length in curve.items()
    }


MEANS = "mean tokens a round, one run for each K (bonus token included)"
NO_COUNTS = "accepted lengths without counts, to two decimals: no intervals"
NO_DEPTHS = "each K is a separate run: differences between K are no marginals"


def read_golden_al(source: Source, options: ImportOptions) -> PooledCounts:
    """The accepted lengths of one mode; `options.mode` chooses where the file has both."""
    model, modes = read(source.text)
    if options.mode is None and len(modes) > 1:
        raise ValueError(
            f"the file holds {' and '.join(modes)}: choose with --thinking or --no-thinking"
        )
    mode = options.mode or next(iter(modes))
    if mode not in modes:
        raise ValueError(f"the file has no {mode}, expected {' or '.join(modes)}")
    return PooledCounts(
        origin_of(source), length_means=MEANS,
        withheld={"rounds": NO_COUNTS, "acceptance by depth": NO_DEPTHS}, lengths=modes[mode],
        notes=(f"{model[:80]}, {mode}",),
    )  # fmt: skip


EXPORTS = (
    ExportFormat(
        "golden-al",
        export,
        validate,
        ("InferenceX's prompts: its curves are of SPEED-Bench coding at temperature 1",),
        MEASURED,
    ),
)
IMPORTS = (ImportFormat("golden-al", read_golden_al, ("mode",)),)
