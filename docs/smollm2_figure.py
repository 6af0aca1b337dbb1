"""The page's picture: modeled speedups of SmolLM2's recordings, and stars for measured runs.

`python docs/smollm2_figure.py` writes traces/smollm2/speedups.png. Modeled are all prompts at the
bundled costs; a star is the race on some of them (traces/smollm2/measured).
"""

import json
from pathlib import Path

from PIL import Image

from real.bench.figures import Measured, draw_speedups, speedup_intervals
from simspec import CostModel, load_trace

FOLDER = Path(__file__).parent.parent / "traces" / "smollm2"
PANELS = {
    "eagle, greedy": "greedy/eagle",
    "prompt_lookup, greedy": "greedy/prompt_lookup",
    "eagle, sampled": "coupled/eagle",
    "prompt_lookup, sampled": "coupled/prompt_lookup",
}
"""Title: recording."""
RACED = {"prompt_lookup, greedy": ("race", "prompt_lookup=cost_ts")}
"""Title: its race, and the contestant of that race."""
POLICIES = (
    "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:8", "beta_ts", "cost_ts",
    "hf_heuristic", "oracle",
)  # fmt: skip


def measured(race: str, contestant: str) -> Measured:
    """The speedup of a contestant over plain decoding on all prompts of a race."""
    report = json.loads((FOLDER / "measured" / f"{race}.json").read_text(encoding="utf-8"))
    (row,) = (
        row for row in report["rows"] if (row["contestant"], row["group"]) == (contestant, "all")
    )
    return contestant.partition("=")[2], row["speedup"], row["low"], row["high"]


def main() -> None:
    """Draws the picture."""
    traces = {title: load_trace(FOLDER / f"{name}.parquet") for title, name in PANELS.items()}
    costs = {
        title: CostModel.from_json(FOLDER / f"{name}.cost.json") for title, name in PANELS.items()
    }
    stars = {title: measured(*race) for title, race in RACED.items()}
    path = FOLDER / "speedups.png"
    draw_speedups(speedup_intervals(traces, POLICIES, costs), stars, path)
    with Image.open(path) as drawn:
        fewer = drawn.convert("RGB").quantize(64)  # a third of the size
    fewer.save(path, optimize=True)


if __name__ == "__main__":
    main()
