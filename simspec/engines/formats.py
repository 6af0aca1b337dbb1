"""The exchange formats by name: write a setting with its provenance, read a file."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

from simspec.cost.model import CostModel
from simspec.engines.choice import Choice, Evidence, choose, gather
from simspec.engines.import_kinds import Import
from simspec.engines.request import ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, read_source
from simspec.evaluate.evaluation import covers
from simspec.output.files import LONGEST_REASON, check_output, replacing, write_json
from simspec.plugins import plugins
from simspec.trace.recordings import cost_beside

NOT_COVERED = (
    "time outside rounds: prefill, scheduling, sampling settings of the server, network",
    "sequences of a batch that draft unalike: each is replayed alone, at the whole batch's costs",
    "lengths chosen on other prompts: the gain is counted on the prompts that chose them",
    "other prompts, temperatures, targets and drafters than those recorded",
)


def simspec_version() -> str:
    """The installed version, 'unknown' where simspec runs without being installed."""
    try:
        return version("simspec")
    except PackageNotFoundError:
        return "unknown"


def provenance(
    text: str,
    evidence: Evidence,
    choice: Choice,
    paths: Mapping[str, Path],
    cost: str | None,
    not_covered: Sequence[str],
) -> dict[str, Any]:
    """Provenance as plain data for JSON; files by name and SHA-256, never by their folder.

    | key | meaning |
    | --- | --- |
    | simspec | version |
    | document_sha256 | of the exported text |
    | target, drafter | of the recordings |
    | predicted | by batch size: policy, and speedup over plain decoding with its interval |
    | level, covers | of the intervals; prompts, and prices where all costs hold replicates |
    | length_chosen | whether replay chose the lengths |
    | recordings | name, sha256, rule, temperature, K, prompts, tokens, device |
    | costs | name, sha256, device, origin; or the ratio |
    | not_covered | what the prediction leaves out |
    """
    return {
        "simspec": simspec_version(),
        "document_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "target": evidence.target,
        "drafter": evidence.drafter,
        "predicted": [
            {"batch": size, "policy": policy, "speedup": gain.to_dict()}
            for size, policy, gain in zip(evidence.batch, choice.policies, choice.gains)
        ],
        "level": choice.gains[0].level,
        "covers": covers(cost for costs in evidence.costs.values() for cost in costs),
        "length_chosen": choice.chosen,
        "recordings": [_recording(evidence, name, paths[name]) for name in evidence.traces],
        "costs": _costs(evidence, paths, cost),
        "not_covered": [*not_covered, *NOT_COVERED],
    }


def _recording(evidence: Evidence, name: str, path: Path) -> dict[str, Any]:
    trace = evidence.traces[name]
    return {
        "name": path.name,
        "sha256": _file_hash(path),
        "rule": trace.meta.rule,
        "temperature": trace.meta.temperature,
        "K": trace.K,
        "prompts": trace.sequences,
        "tokens": trace.rows,
        "device": trace.meta.device,
    }


def _costs(evidence: Evidence, paths: Mapping[str, Path], cost: str | None) -> list[dict[str, Any]]:
    sources: dict[str, CostModel] = {}
    for name, path in paths.items():
        sources.setdefault(cost or str(cost_beside(path) or 0.1), evidence.costs[name][0])
    return [_cost(source, model) for source, model in sources.items()]


def _cost(source: str, model: CostModel) -> dict[str, Any]:
    try:
        return {"ratio": float(source)}
    except ValueError:
        return {
            "name": Path(source).name,
            "sha256": _file_hash(Path(source)),
            "device": model.device,
            "origin": None if model.origin is None else model.origin.to_dict(),
        }


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in _blocks(file):
            digest.update(block)
    return digest.hexdigest()


def _blocks(file: Any) -> Iterable[bytes]:
    return iter(lambda: file.read(1 << 20), b"")


EXPORTS: dict[str, ExportFormat] = {
    made.name: made
    for file in plugins("simspec.engines", "EXPORTS", besides=("formats",)).values()
    for made in file.EXPORTS
}
"""Every format that is written, by name."""

IMPORTS: dict[str, ImportFormat] = {
    made.name: made
    for file in plugins("simspec.engines", "IMPORTS", besides=("formats",)).values()
    for made in file.IMPORTS
}
"""Every format that is read, by name."""

SIDECAR = ".provenance.json"
MEASURED_HERE = ("llamacpp", "transformers", "vllm")
"""Engines whose costs `simspec engine measure` measures."""


def price_notes(costs: Iterable[CostModel], engine: str) -> list[str]:
    """A note where these costs are not the engine's own; none where they are, or for engine ""."""
    priced = {cost.origin.engines.get("target", "") if cost.origin else "" for cost in costs}
    others = sorted(priced - {name for name in priced if name.split(" ")[0] == engine})
    if not engine or not others:
        return []
    named = ", ".join(name or "costs of no engine" for name in others)
    remedy = (
        f"`simspec engine measure {engine}` measures {engine}'s own"
        if engine in MEASURED_HERE
        else f"confirm the setting on {engine}"
    )
    return [f"priced on {named}, not on {engine}, whose best draft length may differ: {remedy}"]


@dataclass(frozen=True)
class Sources:
    """Inputs of an export: recordings, costs, and cells of cost tables.

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
    """(provenance, notes) of the document in `out`, with the provenance next to it.

    name: a key of EXPORTS. The document passes its validator before anything is written.
    ValueError, one line, for what cannot be exported.
    """
    if name not in EXPORTS:
        raise ValueError(f"format {name!r} is unknown, expected one of {', '.join(EXPORTS)}")
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
    form = EXPORTS[name]
    limits = replace(form.limits, captured=settings.captured)
    choice = choose(evidence, policy, limits, level)
    if not choice.chosen and choice.schedule is not None and not choice.schedule.single:
        notes.append(f"{policy} is cut where batch (K + 1) exceeds {settings.captured} rows")
    origin, own = write_choice(name, evidence, choice, sources, out, settings, command)
    return origin, notes + own


def write_choice(
    name: str,
    evidence: Evidence,
    choice: Choice,
    sources: Sources,
    out: Path,
    settings: Settings,
    command: str = "",
) -> tuple[dict[str, Any], list[str]]:
    """(provenance, notes) of the document of this choice in `out`; as `write_export`."""
    form, sidecar = EXPORTS[name], Path(f"{out}{SIDECAR}")
    notes = price_notes((c for costs in evidence.costs.values() for c in costs), form.engine)
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


def read_import(
    format: str, path: str | PathLike[str], options: ImportOptions | None = None
) -> Import:
    """Contents of the file; ValueError, one line with the file, where it is not of this format."""
    if format not in IMPORTS:
        near = get_close_matches(format, IMPORTS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"format {format!r} is unknown: {hint}expected one of {', '.join(IMPORTS)}"
        )
    options = options or ImportOptions()
    for field in fields(options):
        stated = getattr(options, field.name) != field.default
        if stated and field.name not in IMPORTS[format].options:
            raise ValueError(f"format {format} does not read {field.name}: leave that option out")
    source = read_source(format, path)
    try:
        return IMPORTS[format].read(source, options)
    except (ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise ValueError(f"{Path(path)}: {reason}") from None
