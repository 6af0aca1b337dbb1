"""A large file carried in pieces over several calls, and put together where they arrive.

python tools/pieces.py split model.gguf lab/pieces
python tools/pieces.py join lab/pieces work/pieces model.gguf
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from real.files import replace_json, replacing
from real.model.stored_weights import sha256

PIECE = 13_000_000
"""Bytes of a piece, all but the last: SmolLM2 in four bits is eight, half of them 52 MB."""
MANIFEST = "pieces.json"
_HASH = re.compile("[0-9a-f]{64}")

app = typer.Typer(help="Carry a large file in pieces.", no_args_is_help=True)


class PiecesError(ValueError):
    """Pieces that are missing, damaged, or of another file."""


def split(source: Path, folder: Path, size: int = PIECE) -> list[Path]:
    """Writes a file as pieces of at most `size` bytes with their manifest; the pieces.

    | file | what |
    | --- | --- |
    | NAME.00, NAME.01, ... | the pieces |
    | pieces.json | name, bytes and SHA-256 of the file; bytes and SHA-256 of each piece |

    Pieces that exist already are kept. PiecesError for an empty or missing file.
    """
    if not source.is_file() or not source.stat().st_size:
        raise PiecesError(f"{source} is no file with content; expected the file to carry")
    if size < 1:
        raise PiecesError(f"a piece of {size} bytes; expected at least 1")
    whole = hashlib.sha256()
    pieces: list[dict] = []
    written: list[Path] = []
    with open(source, "rb") as file:
        while data := file.read(size):
            whole.update(data)
            path = folder / f"{source.name}.{len(pieces):02d}"
            pieces.append({"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
            written.append(path)
            if not _is_piece(path, pieces[-1]):
                with replacing(path) as temporary:
                    temporary.write_bytes(data)
    replace_json(
        folder / MANIFEST,
        {
            "name": source.name,
            "bytes": source.stat().st_size,
            "sha256": whole.hexdigest(),
            "pieces": pieces,
        },
    )
    return written


def join(arrived: Path, store: Path, out: Path) -> list[str]:
    """Keeps the pieces in `arrived` in `store`; writes `out` once all are there.

    Returns the names of the pieces still missing, [] once `out` is written. A second call
    continues. PiecesError for a damaged piece, manifest or result, and for pieces of another file.
    """
    manifest = _read_manifest(arrived / MANIFEST)
    if (store / MANIFEST).exists() and _read_manifest(store / MANIFEST) != manifest:
        raise PiecesError(
            f"{store} holds pieces of another file; delete it, or name another folder"
        )
    if out.exists() and sha256(out) == manifest["sha256"]:
        return []
    replace_json(store / MANIFEST, manifest)
    missing = []
    for name, piece in _named(manifest):
        if _is_piece(store / name, piece):
            continue
        if not (arrived / name).exists():
            missing.append(name)
        elif not _is_piece(arrived / name, piece):
            raise PiecesError(f"{arrived / name} is damaged; split the file again")
        else:
            with replacing(store / name) as temporary:
                shutil.copyfile(arrived / name, temporary)
    if missing:
        return missing
    with replacing(out) as temporary:
        with open(temporary, "wb") as file:
            for name, _ in _named(manifest):
                file.write((store / name).read_bytes())
        if sha256(temporary) != manifest["sha256"]:
            raise PiecesError(f"the pieces in {store} do not make {manifest['name']}; split again")
    return []


def _named(manifest: dict) -> Iterator[tuple[str, dict]]:
    for i, piece in enumerate(manifest["pieces"]):
        yield f"{manifest['name']}.{i:02d}", piece


def _is_piece(path: Path, piece: dict) -> bool:
    return (
        path.is_file() and path.stat().st_size == piece["bytes"] and sha256(path) == piece["sha256"]
    )


def _read_manifest(path: Path) -> dict:
    """The manifest, its names and sizes checked."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        name, pieces = manifest["name"], manifest["pieces"]
        sizes = [piece["bytes"] for piece in pieces]
        hashes = [manifest["sha256"], *(piece["sha256"] for piece in pieces)]
        plain = isinstance(name, str) and name == Path(name).name and not name.startswith(".")
        sized = all(type(size) is int and size > 0 for size in sizes) and sizes
        if not (plain and sized and sum(sizes) == manifest["bytes"]):
            raise ValueError("names or sizes do not agree")
        if not all(isinstance(text, str) and _HASH.fullmatch(text) for text in hashes):
            raise ValueError("a hash is no SHA-256")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise PiecesError(
            f"{path} is no manifest of pieces ({reason}); split the file again"
        ) from None
    return manifest


@app.command("split")
def split_command(
    source: Annotated[Path, typer.Argument(help="The file to carry.")],
    folder: Annotated[Path, typer.Argument(help="Where its pieces go.")],
) -> None:
    """Cut a file into pieces of 16 MB.

    Example: python tools/pieces.py split model.gguf lab/pieces
    """
    written = _or_exit(lambda: split(source, folder))
    print(f"{len(written)} pieces in {folder}: " + " ".join(path.name for path in written))


@app.command("join")
def join_command(
    arrived: Annotated[Path, typer.Argument(help="Folder with the pieces of this call.")],
    store: Annotated[Path, typer.Argument(help="Folder that keeps pieces between calls.")],
    out: Annotated[Path, typer.Argument(help="The file, written once all pieces are there.")],
) -> None:
    """Keep the pieces that arrived, and put the file together once all have.

    Exits with 3 while pieces are missing.

    Example: python tools/pieces.py join lab/pieces out/gpu/pieces out/gpu/model.gguf
    """
    missing = _or_exit(lambda: join(arrived, store, out))
    if missing:
        print(f"{out.name}: missing " + " ".join(missing))
        raise typer.Exit(3)
    print(f"{out.name}: complete")


def _or_exit(job):
    try:
        return job()
    except (ValueError, OSError) as error:
        typer.echo(" ".join(str(error).split()), err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
