"""Compressed weights: name.safetensors stored as name.safetensors.xz and read in its place."""

import lzma
from pathlib import Path

from real.files import replacing

MAX_RATIO = 16  # of decompression: weights give 1.5, a malicious file thousands
# lp and pb: the two bytes of a bfloat16 have different distributions
_FORM = {"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1, "dict_size": 1 << 20}


def compress(path: Path) -> Path:
    """Replaces `path` by path.xz, two thirds of its size for bfloat16; ValueError where it does not
    read back."""
    original, packed = Path(path).read_bytes(), _packed(path)
    compressed = lzma.compress(original, format=lzma.FORMAT_XZ, filters=[_FORM])
    if _decompressed(compressed, packed) != original:
        raise ValueError(f"{path} does not read back unchanged; leave it uncompressed")
    with replacing(packed) as temporary:
        temporary.write_bytes(compressed)
    Path(path).unlink()
    return packed


def read_bytes(path: str | Path) -> bytes:
    """The bytes of `path`, or of path.xz decompressed; OSError without either, ValueError for a
    damaged one."""
    packed = _packed(path)
    if Path(path).exists() or not packed.exists():
        return Path(path).read_bytes()
    return _decompressed(packed.read_bytes(), packed)


def weights_exist(path: str | Path) -> bool:
    """Whether `path` or path.xz exists."""
    return Path(path).exists() or _packed(path).exists()


def weight_files(folder: str | Path) -> list[Path]:
    """The .safetensors files of a folder in name order; compressed ones without .xz."""
    plain, packed = (Path(folder).glob(f"*.safetensors{suffix}") for suffix in ("", ".xz"))
    return sorted({*plain, *(path.with_suffix("") for path in packed)})


def _packed(path: str | Path) -> Path:
    return Path(path).with_name(Path(path).name + ".xz")


def _decompressed(compressed: bytes, path: Path) -> bytes:
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 28)
    try:
        out = reader.decompress(compressed, MAX_RATIO * len(compressed) + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is damaged or no .xz file: {error}; fetch it again") from error
    if len(out) > MAX_RATIO * len(compressed):
        raise ValueError(
            f"{path} decompresses to more than {MAX_RATIO} times its size, expected weights; "
            "fetch it again"
        )
    if not reader.eof or reader.unused_data:
        raise ValueError(f"{path} is truncated or has trailing bytes; fetch it again")
    return out
