"""The JSON file of rounds, sums and settings that are no recording."""

import re
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from simspec.engines.documents import Fields, json_rows
from simspec.engines.import_kinds import (
    BatchTier,
    CensoredRounds,
    DepthCounts,
    EngineSettings,
    ExactImport,
    Import,
    Origin,
    PooledCounts,
)
from simspec.engines.import_report import ELSEWHERE, NO_ACCEPTANCE
from simspec.engines.source import ImportFormat, ImportOptions, Source
from simspec.output.files import check_output, write_json

SCHEMA = "simspec-import-1"
ORIGIN = ("format", "file", "sha256")
COUNTS = ("requests", "rounds", "drafted", "accepted", "draft_length")
NUMBERS = ("length", "length_per_request")
Summary = CensoredRounds | PooledCounts | EngineSettings
KINDS = {CensoredRounds: "censored", PooledCounts: "pooled", EngineSettings: "settings"}


def write_summary(result: Summary, path: str | PathLike[str]) -> None:
    """Writes the import as one JSON object, completely or not at all.

    | kind     | keys next to schema, kind, format, file, sha256, notes                          |
    | -------- | ------------------------------------------------------------------------------- |
    | censored | requests: list of {id, drafted, accepted}, one entry a round in both lists      |
    | pooled   | the fields of `PooledCounts`; by_depth: list of {K, clusters, tried, accepted}  |
    | settings | method; tiers: list of {first, last, lengths, policy}                           |
    """
    data: dict[str, Any] = {"schema": SCHEMA, "kind": KINDS[type(result)]}
    data |= {name: getattr(result.origin, name) for name in ORIGIN} | {"notes": list(result.notes)}
    if isinstance(result, CensoredRounds):
        spans = [slice(*pair) for pair in zip(result.offset, result.offset[1:])]
        data["requests"] = [
            {"id": name}
            | {key: getattr(result, key)[span].tolist() for key in ("drafted", "accepted")}
            for name, span in zip(result.ids, spans)
        ]
    elif isinstance(result, EngineSettings):
        data |= {"method": result.method, "tiers": [asdict(tier) for tier in result.tiers]}
    else:
        data |= {name: getattr(result, name) for name in (*COUNTS, *NUMBERS, "length_means")}
        data["withheld"] = dict(result.withheld)
        data["marginals"] = [{"K": K, "rates": list(r)} for K, r in result.marginals.items()]
        data["lengths"] = [{"K": K, "length": length} for K, length in result.lengths.items()]
        data["by_depth"] = [
            {"K": K, "clusters": counts.clusters, "tried": counts.tried.tolist(),
             "accepted": counts.accepted.tolist()}
            for K, counts in result.by_depth.items()
        ]  # fmt: skip
    write_json(path, data)


def read_summary(source: Source, options: ImportOptions) -> Summary:
    """The import that `write_summary` wrote, checked as any other file."""
    rows = json_rows(source.text)
    if len(rows) != 1 or rows[0].values.get("schema") != SCHEMA:
        raise ValueError(f"no {SCHEMA} is there, expected what simspec import --out wrote")
    (row,) = rows
    origin = Origin(*(row.name(name) for name in ORIGIN))
    notes = _texts(row, "notes")
    if row.name("kind") == "settings":
        return EngineSettings(
            origin, _text(row, "method"), tuple(_tier(item) for item in row.inners("tiers")), notes
        )
    if row.name("kind") == "censored":
        requests = row.inners("requests")
        drafted = [request.wholes("drafted") for request in requests]
        accepted = [request.wholes("accepted") for request in requests]
        if [len(d) for d in drafted] != [len(a) for a in accepted]:
            raise ValueError("drafted and accepted differ in length in some request")
        offset = np.concatenate(([0], np.cumsum([len(d) for d in drafted]))).astype(np.int64)
        empty = np.zeros(0, np.int64)
        return CensoredRounds(
            origin, tuple(request.name("id") for request in requests), offset,
            np.concatenate([empty, *drafted]), np.concatenate([empty, *accepted]), notes,
        )  # fmt: skip
    withheld = row.inner("withheld").values
    counts: dict[str, Any] = {name: row.whole(name) for name in COUNTS if name in row}
    counts |= {name: row.number(name) for name in NUMBERS if name in row}
    lengths = row.inners("lengths") if "lengths" in row else []
    return PooledCounts(
        origin, **counts, length_means=_text(row, "length_means"),
        by_depth={item.whole("K", 1): _counts(item) for item in row.inners("by_depth")},
        withheld={str(key): str(reason) for key, reason in withheld.items()},
        marginals={m.whole("K", 1): tuple(m.numbers("rates")) for m in row.inners("marginals")},
        lengths={item.whole("K", 1): item.number("length") for item in lengths},
        notes=notes,
    )  # fmt: skip


def _counts(item: Fields) -> DepthCounts:
    tables = []
    for key in ("tried", "accepted"):
        rows = item.values.get(key)
        if type(rows) is not list:
            raise item.error(key, rows, "a list of lists")
        tables.append([Fields({key: row}, item.place).wholes(key) for row in rows])
    if len({len(row) for table in tables for row in table}) != 1:
        raise ValueError(f"{item.place}: tried and accepted expect rows of one length")
    return DepthCounts(
        np.array(tables[0]), np.array(tables[1]), item.values.get("clusters") is True
    )


def _tier(item: Fields) -> BatchTier:
    last = item.whole("last", 1) if "last" in item else None
    lengths = tuple(map(int, item.wholes("lengths")))
    return BatchTier(item.whole("first", 1), last, lengths, _text(item, "policy"))


def _text(row: Fields, key: str) -> str:
    value = row.values.get(key)
    return value if type(value) is str else ""


def _texts(row: Fields, key: str) -> tuple[str, ...]:
    items = row.values.get(key)
    if type(items) is not list or not all(type(item) is str for item in items):
        raise row.error(key, items, "a list of texts")
    return tuple(items)


IMPORTS = (ImportFormat("simspec", read_summary),)


def chosen_drafter(result: Import, drafter: str | None) -> Import:
    """The import with this drafter only, with all for None; ValueError where it is not there."""
    if drafter is None:
        return result
    if not isinstance(result, ExactImport) or drafter not in result.traces:
        names = ", ".join(result.traces) if isinstance(result, ExactImport) else "no names"
        raise ValueError(f"drafter {drafter!r} is not in the file, which has {names}")
    notes = tuple(note for note in result.notes if note.startswith(f"{drafter}: "))
    return replace(result, traces={drafter: result.traces[drafter]}, notes=notes)


def write_import(result: Import, path: Path, *inputs: Path) -> list[Path]:
    """The files written: of several drafters, NAME-DRAFTER.parquet each.

    ValueError where the path's ending is not of the kind: rounds and sums are no recording.
    """
    if not isinstance(result, ExactImport):
        if path.suffix == ".parquet":
            why = NO_ACCEPTANCE if isinstance(result, EngineSettings) else ELSEWHERE
            raise ValueError(f"{path} would be a recording, expected a .json: {why}")
        write_summary(result, path)
        return [path]
    if path.suffix != ".parquet":
        raise ValueError(f"{path} would hold a recording, expected a name that ends in .parquet")
    paths = {name: path for name in result.traces}
    if len(paths) > 1:
        if odd := [name for name in paths if not re.fullmatch(r"[\w-]{1,80}", name)]:
            raise ValueError(
                f"drafter {odd[0][:80]!r} is no part of a file's name, expected letters, digits, _ "
                "and -: choose one with --drafter"
            )
        paths = {name: path.with_name(f"{path.stem}-{name}.parquet") for name in paths}
    for part in paths.values():
        check_output(part, *inputs)
    for name, trace in result.traces.items():
        trace.save(paths[name])
    return list(paths.values())
