"""Cuts the small recordings of the wheels out of bundled ones: `make example`.

The first prompts of each task; each replays as in the whole recording.
"""

import shutil
from pathlib import Path

import simspec

ROOT = Path(__file__).parent.parent
CUTS = {"coder/greedy/model": "simspec/example", "tiny-model-greedy": "real/tiny"}
"""{recording: folder of its first prompts}: `load_example`'s, and that of `simspec demo`."""
PROMPTS_PER_TASK = 4


def cut(trace: simspec.Trace) -> simspec.Trace:
    """The first prompts of each task."""
    tasks = trace.task
    return trace.select(
        [s for s in range(trace.sequences) if tasks[:s].count(tasks[s]) < PROMPTS_PER_TASK]
    )


def main() -> None:
    for source, folder in CUTS.items():
        for old in [*(ROOT / folder).glob("*.parquet"), *(ROOT / folder).glob("*.cost.json")]:
            old.unlink()
        example = cut(simspec.load_trace(ROOT / "traces" / f"{source}.parquet"))
        name = f"{source.replace('/', '-')}-{example.sequences}"
        example.save(ROOT / folder / f"{name}.parquet", small=True)
        shutil.copyfile(
            ROOT / "traces" / f"{source}.cost.json", ROOT / folder / f"{name}.cost.json"
        )


if __name__ == "__main__":
    main()
