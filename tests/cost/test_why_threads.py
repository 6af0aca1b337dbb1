"""Threads that ask why drafts are slow, by the numbers that they print (in stored excerpts).

docs/costs.md has the verdicts. Times in milliseconds, speeds in tokens a second.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from simspec import CostModel
from simspec.cost.why import DRAFTING, HOST, ROWS, split_rounds
from simspec.trace.trace import Rounds

PAGE = (Path(__file__).parents[2] / "docs" / "costs.md").read_text("utf-8")


def why(K, tokens, plain, whole, drafts=0.0, verify=None):
    """A round of K drafts that takes `whole`; verify None: its parts were not printed."""
    verify = whole if verify is None else verify
    drafted = np.linspace(0, drafts, K + 1)
    cost = CostModel(drafted, [plain, *[verify] * K], [0.0], whole - drafts - verify, plain)
    rounds = Rounds(*map(np.array, ([0, 1], [0], [K], [K], [0])))
    return split_rounds(f"K = {K}", rounds, tokens, cost)


PRINTED = {
    # "An extra verified position costs ~24% of a plain step"; drafts are those of rMLX#518, where
    # 52 of 86 rounds accept both drafts and the others one or none
    "rMLX#516": (2, (52 * 3 + 34) / 86, 30.77, 4.17 + 41.28, 4.17, 41.28, ROWS, 0.342),
    # its largest part is a replay of the accepted prefix, which "every partial round pays"
    "rMLX#518": (2, 2.2, 30.77, (34 * 76.68 + 52 * 46.09) / 86, 4.17, 41.28, HOST, 0.414),
    # "Draft generation alone costs more than a full plain decode step", then verification
    "PocketLLM#79": (7, 3.762, 27.95, 3.762 * 27.95 / 0.931, 39.03, 63.54, DRAFTING, 1.396),
}


@pytest.mark.parametrize("thread", PRINTED)
def test_the_part_that_a_thread_names_is_the_largest(thread):
    *printed, part, steps = PRINTED[thread]
    found = why(*printed)
    assert (found.largest, found.parts[part].value) == (part, pytest.approx(steps, abs=0.001))
    assert DRAFTING not in found.unknown


def test_vllm_20780_two_heads_differ_by_their_drafter():
    """At K = 3 EAGLE-3 commits 22% more tokens than EAGLE, in a round that takes 16% longer; the
    target's rows are the same, so that the difference is the drafter's."""
    printed = ((2.29, 4.29), (2.79, 4.09))  # accepted length, milliseconds a token
    one, three = (why(3, tokens, 7.07, tokens * each) for tokens, each in printed)
    assert (one.largest, one.unknown[0]) == (three.largest, three.unknown[0]) == (ROWS, DRAFTING)
    assert three.steps - one.steps == pytest.approx(0.22, abs=0.01)


def test_threads_that_print_less():
    # vllm#8439: 1000 tokens in 14.33 s plain, 947 in 15.32 s with n-grams; any tokens a round fit
    for tokens in (1.0, 6.0):
        found = why(5, tokens, 14_329 / 1000, tokens * 15_325 / 947)
        assert (found.speedup, found.unknown[0]) == (pytest.approx(0.885, abs=0.001), DRAFTING)
    # vllm#19254: in ten seconds 33,991 tokens, 8703 drafted by three, 5306 accepted: the 2.83
    # tokens that it prints are of passes with a draft, a tenth of all
    drafts, passes = 8703 / 3, 33_991 - 5306
    figures = 1 + 5306 / drafts, drafts / passes, 33_991 / passes
    assert figures == pytest.approx((2.83, 0.10, 1.18), abs=0.005)
    # sglang#6949: 21 plain and 30 drafted on one GPU, 61 and 59 on four. A round of T tokens takes
    # a plain steps and f seconds: T / 30 = a / 21 + f, T / 59 = a / 61 + f, whatever T
    for tokens in (1.5, 3.0):
        _, f = np.linalg.solve([[1 / 21, 1], [1 / 61, 1]], [tokens / 30, tokens / 59])
        assert f / (tokens / 59) == pytest.approx(0.49, abs=0.01)


def test_page_has_the_verdicts():
    rows = re.findall(r"^\| .*#\d+.*$", PAGE, re.MULTILINE)
    assert [re.findall(r"\w+#\d+", row) for row in rows] == [
        ["rMLX#516", "rMLX#518", "PocketLLM#79"],
        ["vllm#20780", "vllm#19254", "sglang#6949"],
        ["vllm#8439", "vllm#21278", "vllm#49369", "EAGLE#269"],
    ]
