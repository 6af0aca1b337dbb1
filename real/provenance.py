"""Provenance of a result: device, versions, revision and command line."""

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def check_device(device: str) -> None:
    """Raise ValueError for a device that is neither cpu nor an available CUDA device."""
    kind, _, index = device.partition(":")
    if device != "cpu" and (kind != "cuda" or (index != "" and not index.isdecimal())):
        raise ValueError(f"device {device!r} is unknown; expected cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device {device!r} asked for, but torch sees no CUDA device; use --device cpu"
        )
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device!r} asked for, but torch sees {torch.cuda.device_count()} CUDA "
            "devices; count from cuda:0"
        )


def multiplies_bfloat16(device: str | torch.device) -> bool:
    """False where bfloat16 is emulated: a CPU without AVX-512 takes some 30 times as long."""
    on_cpu = torch.device(device).type == "cpu"
    return not on_cpu or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def device_name(device) -> str:
    """Name of the GPU, or of the processor with the number of threads."""
    name = processor_name(device)
    if torch.device(device).type == "cuda":
        return name
    return f"cpu ({name}, {torch.get_num_threads()} threads)"


def processor_name(device) -> str:
    """Name of the GPU, or of the processor."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return model


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide numbers."""
    found = {"python": platform.python_version()}
    for name in ("simspec", "torch", "transformers", "tokenizers", "numpy", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def revision() -> str:
    """The git revision of this checkout, with '+' where it was edited; '' outside one.

    Asked once: a process runs the code that it has loaded.
    """
    described = "git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"
    try:
        head = subprocess.run(
            described, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip()


def environment(device) -> dict[str, object]:
    """Device, library versions and revision that a card's figures were made with."""
    return {"device": device_name(device), "versions": versions(), "git": revision()}


def argv() -> tuple[str, ...]:
    """The command line, its program without the folder."""
    return (Path(sys.argv[0]).name, *sys.argv[1:])
