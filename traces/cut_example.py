"""Cuts the small recording that the wheel carries out of this folder; `make example` runs it.

The first prompts of each task, without the heaviest feature. A selection keeps its draw addresses,
so it replays as it does in the whole recording.
"""

import shutil
from collections import Counter
from pathlib import Path

from real.campaign.archive import without
from simspec import load_trace

HERE = Path(__file__).parent
RECORDING = "tiny-early_exit-coupled"
PER_TASK = 4
LEFT_OUT = ("theta_low_rank",)


def cut(folder: Path) -> Path:
    """Writes the example and its costs into `folder`, in place of an earlier one; its file."""
    trace = load_trace(HERE / f"{RECORDING}.parquet")
    seen: Counter[str] = Counter()
    selected = []
    for s, task in enumerate(trace.task):
        if seen[task] < PER_TASK:
            selected.append(s)
        seen[task] += 1
    for old in (*folder.glob("*.parquet"), *folder.glob("*.json")):
        old.unlink()
    path = folder / f"{RECORDING}-{len(selected)}.parquet"
    without(trace.select(selected), LEFT_OUT).save(path, small=True)
    shutil.copyfile(HERE / f"{RECORDING}.cost.json", path.with_suffix(".cost.json"))
    return path


if __name__ == "__main__":
    print(f"wrote {cut(HERE.parent / 'simspec' / 'example')}")
