"""The files that a campaign keeps: an archive of recordings, costs and reports, and the rest."""

import io
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

from real.campaign.workspace import Workspace
from real.files import replace_json, replacing
from real.record.data_card import card
from simspec import Trace, load_trace

LARGEST, FILES = 16_000_000, 8
"""Largest size of a kept file, and the number of files."""
FEATURES_LEFT_OUT = ((), ("entropy",), ("entropy", "theta"))
"""Features left out of the archived recordings, the first that fits; recordings.tar is complete."""


def without_features(trace: Trace, names: tuple[str, ...]) -> Trace:
    """The recording without these features; it keeps its draw addresses and replays as before."""
    meta = trace.meta
    kept = [i for i, (feature, _) in enumerate(meta.features) if feature not in names]
    predictors = {
        feature: sha256 for feature, sha256 in meta.predictors.items() if feature not in names
    }
    meta = replace(meta, features=tuple(meta.features[i] for i in kept), predictors=predictors)
    return replace(trace, feature=trace.feature[:, :, kept], meta=meta)


def pack(workspace: Workspace, results: Path) -> list[Path]:
    """Writes bundle.tar, the report, figures and the log into `results`; the files.

    recordings.tar is added where features were left out. ValueError where a file is too large
    even so; the others are written.
    """
    results.mkdir(parents=True, exist_ok=True)
    written = []
    for path in (
        workspace.out / "REPORT.md",
        workspace.out / "report.json",
        *sorted((workspace.out / "figures").glob("*.png")),
    ):
        if path.exists():
            with replacing(results / path.name) as temporary:
                shutil.copyfile(path, temporary)
            written.append(results / path.name)
    if logs := sorted((workspace.out / "log").glob("*.txt")):
        with replacing(results / "log.txt") as temporary:
            temporary.write_text(
                "\n".join(f"== {path.stem}\n{path.read_text(encoding='utf-8')}" for path in logs),
                encoding="utf-8",
            )
        written.append(results / "log.txt")
    for names in FEATURES_LEFT_OUT:
        _write_archive(workspace, results / "bundle.tar", names)
        if (results / "bundle.tar").stat().st_size <= workspace.config.archive_bytes:
            break
    written.append(results / "bundle.tar")
    if names or any((workspace.out / "traces").glob("*-trees.parquet")):
        whole = [
            (f"traces/{p.name}", p.read_bytes())
            for p in sorted((workspace.out / "traces").glob("*"))
            if p.is_file()
        ]
        _tar(results / "recordings.tar", whole)
        written.append(results / "recordings.tar")
    if (size := (results / "bundle.tar").stat().st_size) > workspace.config.archive_bytes:
        raise ValueError(
            f"bundle.tar has {size / 1e6:.1f} MB, "
            f"expected {workspace.config.archive_bytes / 1e6:.1f} at most: record fewer prompts"
        )
    if large := [path for path in written if path.stat().st_size > LARGEST]:
        raise ValueError(
            f"{large[0].name} is larger than {LARGEST / 1e6:.0f} MB; record fewer prompts"
        )
    if len(written) > FILES:
        raise ValueError(f"{len(written)} files to keep; expected {FILES} at most")
    return written


def _write_archive(workspace: Workspace, path: Path, names: tuple[str, ...]) -> None:
    held, thin = [], workspace.out / "thin"
    for trace in sorted((workspace.out / "traces").glob("*.parquet")):
        if trace.stem.endswith("-trees"):
            continue
        described = trace.with_suffix(".json")
        if names:
            recorded = without_features(load_trace(trace), names)
            thin.mkdir(exist_ok=True)
            recorded.save(thin / trace.name)
            replace_json(thin / described.name, card(thin / trace.name, recorded))
            trace, described = thin / trace.name, thin / described.name
        held += [(f"traces/{p.name}", p.read_bytes()) for p in (trace, described) if p.exists()]
    shutil.rmtree(thin, ignore_errors=True)
    beside = [
        *(workspace.out / "traces").glob("*.cost.json"),
        *(workspace.out / "parts").glob("*.json"),
        *workspace.models.rglob("card.json"),
    ]
    beside += [*(workspace.out / "ladders").glob("*.json")]
    beside += [
        p
        for p in (
            workspace.out / name
            for name in ("campaign.json", "report.json", "REPORT.md", "race.json")
        )
        if p.exists()
    ]
    held += [(str(p.relative_to(workspace.out)), p.read_bytes()) for p in beside]
    _tar(path, held)


def _tar(path: Path, files: list[tuple[str, bytes]]) -> None:
    """Writes files without times and owners: the same files give the same bytes."""
    with replacing(path) as temporary, tarfile.open(temporary, "w") as tar:
        for name, held in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(held)
            tar.addfile(info, io.BytesIO(held))
