"""Cuts the small recording of the wheel (simspec/example) out of a bundled one: `make example`."""

import shutil
from dataclasses import replace
from pathlib import Path

import simspec

ROOT = Path(__file__).parent.parent
SOURCE = "tiny-early_exit-coupled"
PROMPTS_PER_TASK = 4
DROPPED_FEATURE = "theta_low_rank"
"""The feature that would make the file too large."""


def cut(trace: simspec.Trace) -> simspec.Trace:
    """The first prompts of each task, without the dropped feature; each replays as in the whole."""
    tasks = trace.task
    prompts = [s for s in range(trace.sequences) if tasks[:s].count(tasks[s]) < PROMPTS_PER_TASK]
    trace = trace.select(prompts)
    names = [name for name, _ in trace.meta.features]
    columns = [i for i, name in enumerate(names) if name != DROPPED_FEATURE]
    meta = replace(
        trace.meta,
        features=tuple(trace.meta.features[i] for i in columns),
        predictors={k: v for k, v in trace.meta.predictors.items() if k != DROPPED_FEATURE},
    )
    return replace(trace, feature=trace.feature[:, :, columns], meta=meta)


def main() -> None:
    example = cut(simspec.load_trace(ROOT / "traces" / f"{SOURCE}.parquet"))
    folder = ROOT / "simspec" / "example"
    for old in [*folder.glob("*.parquet"), *folder.glob("*.json")]:
        old.unlink()
    name = f"{SOURCE}-{example.sequences}"
    example.save(folder / f"{name}.parquet", small=True)
    shutil.copyfile(ROOT / "traces" / f"{SOURCE}.cost.json", folder / f"{name}.cost.json")


if __name__ == "__main__":
    main()
