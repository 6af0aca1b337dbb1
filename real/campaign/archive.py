"""What a campaign brings home: a bundle of recordings, costs and reports that is small enough to keep, and the rest beside it."""

import io
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

from real.campaign.workspace import Folder
from real.files import replace_json, replacing
from real.record.data_card import card
from simspec import Trace, load_trace

LARGEST, FILES = 16_000_000, 8
"""Bytes that a file may have which travels, and how many may."""
THINNED = ((), ("entropy",), ("entropy", "theta"))
"""Features that the bundle's recordings go without, the first that fits; whole they are in recordings.tar."""


def without(trace: Trace, names: tuple[str, ...]) -> Trace:
    """The recording without these features; its draw addresses stay, so that it replays as before."""
    meta = trace.meta
    kept = [i for i, (feature, _) in enumerate(meta.features) if feature not in names]
    predictors = {
        feature: sha256 for feature, sha256 in meta.predictors.items() if feature not in names
    }
    meta = replace(meta, features=tuple(meta.features[i] for i in kept), predictors=predictors)
    return replace(trace, feature=trace.feature[:, :, kept], meta=meta)


def pack(folder: Folder, results: Path) -> list[Path]:
    """Writes what travels into `results`, flat: bundle.tar, the report, figures, the log; recordings.tar where the bundle's were thinned.

    ValueError where the bundle or a file is too large even so; the others are written all the same.
    """
    results.mkdir(parents=True, exist_ok=True)
    made = []
    for path in (
        folder.out / "REPORT.md",
        folder.out / "report.json",
        *sorted((folder.out / "figures").glob("*.png")),
    ):
        if path.exists():
            with replacing(results / path.name) as temporary:
                shutil.copyfile(path, temporary)
            made.append(results / path.name)
    if logs := sorted((folder.out / "log").glob("*.txt")):
        with replacing(results / "log.txt") as temporary:
            temporary.write_text(
                "\n".join(f"== {path.stem}\n{path.read_text(encoding='utf-8')}" for path in logs),
                encoding="utf-8",
            )
        made.append(results / "log.txt")
    for names in THINNED:
        _bundle(folder, results / "bundle.tar", names)
        if (results / "bundle.tar").stat().st_size <= folder.size.bytes:
            break
    made.append(results / "bundle.tar")
    if names or any((folder.out / "traces").glob("*-trees.parquet")):
        whole = [
            (f"traces/{p.name}", p.read_bytes())
            for p in sorted((folder.out / "traces").glob("*"))
            if p.is_file()
        ]
        _tar(results / "recordings.tar", whole)
        made.append(results / "recordings.tar")
    if (size := (results / "bundle.tar").stat().st_size) > folder.size.bytes:
        raise ValueError(
            f"bundle.tar has {size / 1e6:.1f} MB, expected {folder.size.bytes / 1e6:.1f} at most: record fewer prompts"
        )
    if large := [path for path in made if path.stat().st_size > LARGEST]:
        raise ValueError(
            f"{large[0].name} is larger than {LARGEST / 1e6:.0f} MB; record fewer prompts"
        )
    if len(made) > FILES:
        raise ValueError(f"{len(made)} files to travel; expected {FILES} at most")
    return made


def _bundle(folder: Folder, path: Path, names: tuple[str, ...]) -> None:
    held, thin = [], folder.out / "thin"
    for trace in sorted((folder.out / "traces").glob("*.parquet")):
        if trace.stem.endswith("-trees"):
            continue
        described = trace.with_suffix(".json")
        if names:
            recorded = without(load_trace(trace), names)
            thin.mkdir(exist_ok=True)
            recorded.save(thin / trace.name)
            replace_json(thin / described.name, card(thin / trace.name, recorded))
            trace, described = thin / trace.name, thin / described.name
        held += [(f"traces/{p.name}", p.read_bytes()) for p in (trace, described) if p.exists()]
    shutil.rmtree(thin, ignore_errors=True)
    beside = [
        *(folder.out / "traces").glob("*.cost.json"),
        *(folder.out / "parts").glob("*.json"),
        *folder.models.rglob("card.json"),
    ]
    beside += [*(folder.out / "ladders").glob("*.json")]
    beside += [
        p
        for p in (
            folder.out / name for name in ("campaign.json", "report.json", "REPORT.md", "race.json")
        )
        if p.exists()
    ]
    held += [(str(p.relative_to(folder.out)), p.read_bytes()) for p in beside]
    _tar(path, held)


def _tar(path: Path, files: list[tuple[str, bytes]]) -> None:
    """The same files make the same bytes: no times, no owners."""
    with replacing(path) as temporary, tarfile.open(temporary, "w") as tar:
        for name, held in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(held)
            tar.addfile(info, io.BytesIO(held))
