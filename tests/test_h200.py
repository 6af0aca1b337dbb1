"""What an H200 recorded, timed and ran: equal to the exhibit's, and told on its page."""

import json

import numpy as np
import pytest
from documents import ROOT

from simspec import load_trace

EXHIBIT = ROOT / "traces" / "smollm2"
FOLDER = EXHIBIT / "h200"
PAGE = ROOT / "docs" / "smollm2.md"


def told():
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def found(part):
    """The result of a stage, and of an H200."""
    record = json.loads((FOLDER / f"{part}.json").read_text())
    assert record["device"] == "NVIDIA H200"
    return record["found"]


def texts(trace):
    """{prompt, and for drawn texts the address of the draws: slice of its rows}."""
    drawn = trace.meta.rule != "greedy"
    return {
        (
            tuple(trace.prompt[trace.prompt_offset[s] : trace.prompt_offset[s + 1]].tolist()),
            int(trace.sequence[s]) if drawn else None,
        ): slice(trace.offset[s], trace.offset[s + 1])
        for s in range(trace.sequences)
    }


def shared(ours, theirs):
    """(number of shared texts, of their rows, of rows whose tokens or accepted lengths differ)."""
    here, there = texts(ours), texts(theirs)
    both = here.keys() & there.keys()
    K, rows, apart = min(ours.K, theirs.K), 0, 0
    for text in both:
        a, b = here[text], there[text]
        assert a.stop - a.start == b.stop - b.start
        token = ours.token[a] != theirs.token[b]
        run = np.minimum(ours.run[a], K) != np.minimum(theirs.run[b], K)
        rows, apart = rows + len(token), apart + int((token | run).sum())
    return len(both), rows, apart


def by_gpu(rule):
    return load_trace(FOLDER / f"smollm2-eagle-{rule}.parquet")


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_a_gpu_and_two_cores_record_the_same_rows(rule):
    """By the weights of the first training, whose recording on cores is kept without features."""
    ours, theirs = load_trace(FOLDER / "cores" / f"{rule}.parquet"), by_gpu(rule)
    assert theirs.meta.device == "NVIDIA H200"
    assert ours.meta.device.startswith("cpu")
    assert ours.meta.drafter_sha256 == theirs.meta.drafter_sha256
    count, rows, apart = shared(ours, theirs)
    assert apart == 0
    words = {
        "greedy": f"{rows:,} rows of {count} greedy texts",
        "coupled": f"and {rows:,} of the {count} sampled ones with the same draws",
    }
    assert words[rule] in told()


@pytest.mark.parametrize("drafter", ["glide", "eagle"])
def test_control_other_weights_record_other_rows_of_the_same_texts(drafter):
    ours, theirs = load_trace(EXHIBIT / "greedy" / f"{drafter}.parquet"), by_gpu("greedy")
    assert ours.meta.drafter_sha256 != theirs.meta.drafter_sha256
    count, rows, apart = shared(ours, theirs)
    assert count == 94
    assert apart > rows / 10
