"""An export: chosen by replay, checked by its engine's rules, and written with its origin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simspec.exports.choice import choose
from simspec.exports.evidence import gather
from simspec.exports.formats import FORMATS
from simspec.exports.provenance import provenance
from simspec.exports.request import Request, Settings
from simspec.output.files import check_output, replacing, write_json
from simspec.trace.recordings import cost_beside

SIDECAR = ".provenance.json"


@dataclass(frozen=True)
class Sources:
    """What is exported from: recordings, costs, and which cells of cost tables.

    | field | type | meaning |
    | --- | --- | --- |
    | paths | {name: Path} | recordings of one target and drafter |
    | cost | str or None | a cost file or ratio for all; None: each one's own |
    | batch | (int,) or None | batch sizes; None: those of the cost tables |
    | context | int or None | tokens before the round |
    | mixed | bool | allow costs of different origins |
    """

    paths: Mapping[str, Path]
    cost: str | None = None
    batch: Sequence[int] | None = None
    context: int | None = None
    mixed: bool = False


def write_export(
    name: str,
    sources: Sources,
    out: Path,
    policy: str | None = None,
    settings: Settings | None = None,
    level: float = 0.95,
    command: str = "",
) -> tuple[dict[str, Any], list[str]]:
    """(provenance, notes) of the document in `out`, with the provenance beside it.

    name: a key of FORMATS. The document passes its validator before anything is written.
    ValueError, one line, for what cannot be exported.
    """
    if name not in FORMATS:
        raise ValueError(f"format {name!r} is unknown, expected one of {', '.join(FORMATS)}")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number in (0, 1), such as 0.95")
    settings = settings or Settings()
    if settings.captured < 0 or settings.ngram < 1:
        raise ValueError(
            f"captured is {settings.captured} and ngram {settings.ngram}, expected at least 0 and 1"
        )
    sidecar = Path(f"{out}{SIDECAR}")
    files = list(sources.paths.values())
    if len({file.resolve() for file in files}) < len(files):
        raise ValueError("a recording is given twice, expected each once: its prompts count once")
    beside = [cost for file in files if (cost := cost_beside(file)) is not None]
    for path in (out, sidecar):
        check_output(path, *files, *beside, sources.cost or "")
    evidence, notes = gather(
        sources.paths, sources.cost, sources.batch, sources.context, sources.mixed
    )
    form = FORMATS[name]
    limits = replace(form.limits, captured=settings.captured)
    choice = choose(evidence, policy, limits, level)
    if not choice.chosen and choice.schedule is not None and not choice.schedule.single:
        notes.append(f"{policy} is cut where batch (K + 1) exceeds {settings.captured} rows")
    request = Request(evidence, choice, settings)
    text = form.export(request)
    form.validate(text, settings)
    origin = {"format": name, "engine_version": settings.engine_version, "command": command}
    origin |= provenance(text, evidence, choice, sources.paths, sources.cost, form.not_covered)
    if form.flags is not None:
        origin["flags"] = form.flags(request, out.name)
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    write_json(sidecar, origin)
    return origin, notes
