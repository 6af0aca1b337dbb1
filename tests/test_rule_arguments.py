"""Arguments of the field's rules, what they need of recordings and costs, and their page."""

import re

import numpy as np
import pytest
from documents import ROOT, TABLES, printed_by, stale_tables

from simspec import CostModel, PolicyError, replay, synthetic
from simspec.policies import BATCH_KINDS, KINDS, fixed, make


@pytest.mark.parametrize(
    "text",
    [
        *(f"ema_tiers:{bad}" for bad in (
            "3/1", "a/b", "1//3", "1/1", "256", "1.5", "true", "start=2", "start=1.0", "weight=2",
            "interval=0", "warmup=-1", "down=x", "up=999", "scope=prompt",
        )),
        *(f"throughput_aware:{bad}" for bad in (
            "harmonic", "lengths=0/1", "lengths=", "start=2", "window=0", "interval=0.5", "scope=1",
        )),
        *(f"goodput:{bad}" for bad in (
            "clock", "weight=-1", "prior=2", "window=0", "cooldown=-1", "shortest=256", "c=-1",
            "scope=x",
        )),
        *(f"kill_switch:{bad}" for bad in (
            "-1", "256", "2.0", "window=0", "threshold=2", "scope=x",
        )),
        *(f"in_a_row:{bad}" for bad in (
            "0", "shortest=-1", "longest=x", "shortest=3,longest=2", "bias=-1", "wasteful=2",
            "scope=x",
        )),
        *(f"ucb:{bad}" for bad in ("ucb2", "arms=4/3", "exploration=-1", "scope=x")),
        *(f"exp3:{bad}" for bad in ("4/3", "rate=-1", "rate=x", "scope=x")),
        *(f"adaptive_confidence:{bad}" for bad in (
            "2", "x", "weight=-1", "samples=-1", "scope=x", "K=-1",
        )),
        *(f"tapout:{bad}" for bad in ("2", "exploration=-1", "blend=2", "scope=x")),
    ],
)  # fmt: skip
def test_invalid_rules_are_refused_in_one_line(text):
    with pytest.raises(PolicyError) as caught:
        make(text, synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.1, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["throughput_aware:lengths=5/7", "ucb:arms=5/6", "exp3:arms=5"])
def test_lengths_beyond_the_recording_are_dropped_or_refused(text):
    trace, cost = synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.1, 6)
    with pytest.raises(PolicyError, match="here drafts reach 4: take shorter lengths"):
        make(text, trace, cost)
    assert replay(trace, make("ucb:arms=1/5/6", trace, cost), 0, cost) == replay(trace, fixed(1))


@pytest.mark.parametrize("text", ["throughput_aware", "ucb", "exp3", "goodput"])
def test_planned_rules_refuse_costs_that_they_cannot_divide_by(text):
    trace = synthetic.iid(0.5, 1, 8, 4)
    with pytest.raises(PolicyError, match="prices drafts up to 2, .* plans up to .: measure"):
        make(text, trace, CostModel.from_ratio(0.1, 2))
    with pytest.raises(PolicyError, match="a round of 0 drafted tokens is free"):
        make(text, trace, CostModel(np.arange(5.0), np.zeros(5), [0.0], 0.0, 1.0))


def named(text):
    """Policies in the first column of tables."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)[:`]", row.split("|")[1])}


@pytest.mark.docs
def test_tables_of_the_policies_page_have_a_row_for_every_policy():
    page = ROOT / "docs" / "policies.md"
    declared = KINDS | BATCH_KINDS
    assert {kind.group for kind in declared.values()} == {
        command.split()[2] for command in TABLES["commands"](page)
    }
    assert named(printed_by("policies", "--markdown")) == set(declared)
    assert stale_tables(page, "policies") == []
