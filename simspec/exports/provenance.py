"""Provenance: where an exported document comes from, and what it does not cover."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simspec.cost.model import CostModel
from simspec.exports.choice import Choice
from simspec.exports.evidence import Evidence
from simspec.reports.intervals import covers, interval_data
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
    """As plain data for JSON; files by name and SHA-256, never by their folder.

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
            {"batch": size, "policy": policy, "speedup": interval_data(gain)}
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
