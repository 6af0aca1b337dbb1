"""Drops the prompts of recordings that a file of prompts does not hold, and renews their cards.

Usage: python tools/keep_prompts.py traces/smollm2/prompts.jsonl traces/smollm2/*/*.parquet

Sequences keep the addresses of their draws, so that their replays stay what they were.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from real.files import replace_json
from real.record.settings import card
from simspec import load_trace


def main(prompts: Path, recordings: list[Path]) -> None:
    rows = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    source = {row["id"]: row["source"] for row in rows}
    for path in recordings:
        trace = load_trace(path)
        kept = [s for s, name in enumerate(trace.meta.ids) if name in source]
        if len(kept) < trace.sequences:
            dropped = trace.sequences - len(kept)
            trace = trace.select(kept)
            sources = tuple(sorted({source[name] for name in trace.meta.ids}))
            note = (
                f"{dropped} of {dropped + len(kept)} recorded prompts dropped: leaking or looping"
            )
            replace(trace, meta=replace(trace.meta, sources=sources, notes=note)).save(path, True)
            replace_json(path.with_suffix(".json"), card(path, load_trace(path)))
        print(f"{path}: {len(kept)} prompts, {trace.rows} tokens")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
