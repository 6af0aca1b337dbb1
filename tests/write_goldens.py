"""Writes one recording and cost of each kind in today's schema: python tests/write_goldens.py

Goldens of a version that has been released are never written again: a new schema gets new files,
and the reader goes on reading the old ones, or says which version does.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from cost_replicates import replicated

from simspec import CostModel, Trace, replay, synthetic
from simspec.cost.table import CostTable
from simspec.policies import parse
from simspec.trace.file import ARRAYS, SCHEMA

GOLDENS = Path(__file__).parent / "goldens"
POLICIES = ("fixed:2", "beta_ts", "hf_heuristic:1")


def traces() -> dict[str, Trace]:
    """A recording of each rule, with all optional columns and metadata somewhere."""
    plain = synthetic.iid(0.6, 2, 6, 3, seed=4, confidence=True)
    meta = replace(
        plain.meta, rule="greedy", target="target", drafter="drafter", sources=("made up, CC0",),
        versions={"simspec": "0.1.0"}, notes="a golden",
    )  # fmt: skip
    parts = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    rank = np.where(np.arange(3) < plain.run[:, None], 0, 2).astype(np.uint8)
    greedy = Trace(
        **parts
        | {"meta": meta, "rank": rank, "margin": np.arange(12, dtype=np.uint8)}
        | {"draft_margin": rank, "feature_margin": rank + 1}
    )
    order = np.where(rank == 0, np.arange(3), 255).astype(np.uint8)
    order = np.maximum.accumulate(order, axis=1)
    tree = replace(
        meta, rule="coupled", temperature=0.7, seed=3, tree=(2, 3), top_k=40, batch=2,
        chat={"template": "plain", "sha256": "0" * 64, "system": ""},
    )  # fmt: skip
    coupled = Trace(**parts | {"meta": tree, "order": order})
    drawn = replace(meta, rule="rejection", temperature=1.0, top_p=0.9)
    ratio = np.linspace(0, 1, 36, dtype=np.float32).reshape(12, 3)
    rejection = Trace(**parts | {"meta": drawn, "run": np.zeros(12, np.uint8), "ratio": ratio})
    ratio, above = np.resize(np.float32([1.875, 0.625, 0.75]), (12, 3)), dict(largest_ratio=4.0)
    block = replace(rejection, meta=replace(drawn, rule="block", **above), ratio=ratio)
    return {"greedy": greedy, "coupled": coupled, "rejection": rejection, "block": block}


def contents(trace: Trace) -> dict:
    """What a reader must find: metadata, arrays and the rounds of three policies."""
    arrays = {
        name: None if (array := getattr(trace, name)) is None else array.tolist() for name in ARRAYS
    }
    rounds = {}
    for text in POLICIES:
        replayed = replay(trace, parse(text), seed=1)
        rounds[text] = np.stack((replayed.row, replayed.drafted, replayed.accepted), 1).tolist()
    return {"meta": json.loads(trace.meta.to_json()), "arrays": arrays, "rounds": rounds}


def main() -> None:
    """Writes the files of this schema that are not there yet."""
    GOLDENS.mkdir(exist_ok=True)
    for name, trace in traces().items():
        path = GOLDENS / f"recording-{SCHEMA}-{name}.parquet"
        if not path.exists():
            trace.save(path)
            path.with_suffix(".json").write_text(json.dumps(contents(trace)) + "\n")
    cost = CostModel([0, 1, 3], [4, 5, 5.5, 6], [0, 0.5], 0.25, 3.5, name="golden", device="cpu")
    if not (path := GOLDENS / "cost-model.json").exists():
        cost.to_json(path)
    if not (path := GOLDENS / "cost-table.json").exists():
        CostTable((1, 4), (128,), ((cost,), (replace(cost, overhead=0.5),)), "golden").to_json(path)
    if not (path := GOLDENS / "cost-replicates.json").exists():
        replicated(cost, R=3).to_json(path)


if __name__ == "__main__":
    main()
