"""Weights kept small in the repository: name.safetensors as name.safetensors.xz, read as if it were the file itself."""

import lzma
from pathlib import Path

from real.files import replacing

MOST = 16  # bytes out of one byte in: weights give 1.5, a file made to fill the memory thousands
# lp and pb: the two bytes of a bfloat16 differ in kind.
_FORM = {"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1, "dict_size": 1 << 20}


def pack(path: Path) -> Path:
    """Puts path.xz in the place of `path`, two thirds of its size for bfloat16; ValueError where it would not be read back."""
    content, packed = Path(path).read_bytes(), _packed(path)
    made = lzma.compress(content, format=lzma.FORMAT_XZ, filters=[_FORM])
    if _content(made, packed) != content:
        raise ValueError(f"{path} does not come back as it was; leave it as it is")
    with replacing(packed) as temporary:
        temporary.write_bytes(made)
    Path(path).unlink()
    return packed


def content(path: str | Path) -> bytes:
    """The bytes of `path`, or those that path.xz holds where it alone is there; OSError for neither, ValueError for a damaged one."""
    packed = _packed(path)
    if Path(path).exists() or not packed.exists():
        return Path(path).read_bytes()
    return _content(packed.read_bytes(), packed)


def is_there(path: str | Path) -> bool:
    """Whether `path` can be read, packed or plain."""
    return Path(path).exists() or _packed(path).exists()


def weights_in(folder: str | Path) -> list[Path]:
    """The .safetensors files of a folder in name order, packed ones by the name that they go by."""
    plain, packed = (Path(folder).glob(f"*.safetensors{suffix}") for suffix in ("", ".xz"))
    return sorted({*plain, *(path.with_suffix("") for path in packed)})


def _packed(path: str | Path) -> Path:
    return Path(path).with_name(Path(path).name + ".xz")


def _content(held: bytes, path: Path) -> bytes:
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 28)
    try:
        out = reader.decompress(held, MOST * len(held) + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is damaged or no .xz file: {error}; fetch it again") from error
    if len(out) > MOST * len(held):
        raise ValueError(
            f"{path} holds more than {MOST} times its size, expected weights; fetch it again"
        )
    if not reader.eof or reader.unused_data:
        raise ValueError(f"{path} is cut short or has bytes behind its end; fetch it again")
    return out
