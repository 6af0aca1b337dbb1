"""Plain steps of our engine beside released ones: the page says what the run recorded."""

import json

import numpy as np
from documents import ROOT

from simspec.numerics.stats import replicated

FILE = ROOT / "traces" / "smollm2" / "measured" / "plain_step.json"
LARGEST = 1.15
"""Of our seconds over an engine's, beyond which speedups over our plain step flatter."""


def test_the_page_says_what_was_measured():
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    seconds = {name: np.array(rows) for name, rows in stored["seconds"].items()}
    assert stored["threads"] == 1
    assert {rows.shape for rows in seconds.values()} == {(3, 8)}  # repeats, prompts
    page = " ".join((ROOT / "docs" / "engines.md").read_text(encoding="utf-8").split())
    told = []
    for engine, name in (("vllm", "vLLM's"), ("transformers", "transformers'")):
        ratio = replicated(seconds["simspec prepacked"].mean(0) / seconds[engine].mean(0))
        told.append(f"{ratio.text()} of {name}")
        assert ratio.high < LARGEST
    assert f"one thread, in turn with theirs: {told[0]} seconds, {told[1]}" in page
