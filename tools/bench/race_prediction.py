"""Predicted beside measured speedups of a race: its prompts replayed, and its own seconds.

Usage: python tools/bench/race_prediction.py traces/smollm2/measured/race.json

Predicted are the rounds of the race's prompts, cut to its budget, at the costs of the recording.
They hold no prompt. So measured seconds are less the prompt's pass: the call for one token less
one plain step, which plain decoding takes for each further token. The last column is end to end.
"""

import json
import sys
from pathlib import Path

import numpy as np

from real.bench.race_rows import mean_of_ratios
from simspec import load_trace
from simspec.cost.table import load_cost
from simspec.evaluate.evaluation import evaluate
from simspec.output.table import markdown_table
from simspec.trace.recordings import cost_beside

HEADINGS = "policy", "predicted [95%]", "measured [95%]", "predicted over measured", "end to end"


def columns(raw: dict) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, seconds) float64 [repeats, prompts]."""
    return np.array(raw["tokens"], float), np.array(raw["seconds"], float)


def prompt_seconds(plain: dict) -> np.ndarray:
    """Seconds of each prompt's pass, float64 [prompts]: a call for one token less a plain step."""
    tokens, seconds = (column.mean(axis=0) for column in columns(plain))
    first = np.array(plain["first"], float)
    return first - (seconds - first) / np.maximum(tokens - 1, 1)


def rows(path: Path) -> list[tuple[str, ...]]:
    """A row a policy of ours."""
    report = json.loads(path.read_text(encoding="utf-8"))
    recording = Path(report["recording"])
    place = list(load_trace(recording).meta.ids)
    trace = load_trace(recording).select([place.index(name) for name in report["ids"]])
    trace = trace.shorten(report["budget"])
    raw = report["raw"]
    plain, prompt = columns(raw["plain"]), prompt_seconds(raw["plain"])
    found = []
    for name in raw:
        drafter, _, policy = name.partition("=")
        if drafter != trace.meta.drafter:
            continue
        predicted = evaluate(trace, [policy], load_cost(cost_beside(recording))).speedup(policy)
        own = columns(raw[name])
        measured = mean_of_ratios(own[0], own[1] - prompt, plain[0], plain[1] - prompt)
        whole = mean_of_ratios(*own, *plain)
        figures = [f"{x.value:.2f} [{x.low:.2f}, {x.high:.2f}]" for x in (predicted, measured)]
        over = f"{predicted.value / measured.value:.3f}"
        found.append((policy, *figures, over, f"{whole.value:.2f}"))
    return found


if __name__ == "__main__":
    print(markdown_table(HEADINGS, rows(Path(sys.argv[1]))))
