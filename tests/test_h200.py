"""What an H200 recorded, timed and ran: equal to the exhibit's, and told on its page."""

import json
from statistics import median

import numpy as np
import pytest
from documents import ROOT

from simspec import load_trace, replay
from simspec.cost.table import load_cost
from simspec.policies.fixed import fixed

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


def test_costs_of_the_gpu_are_told_and_price_as_the_scorecard_predicts():
    cost = load_cost(FOLDER / "smollm2-eagle-greedy.cost.json")
    step = (cost.draft[16] - cost.draft[1]) / 15
    plain, wide, draft, first = (
        f"{1e3 * x:.2f}" for x in (cost.baseline, cost.verify[16], step, cost.draft[1])
    )
    assert (
        f"A plain pass takes {plain} ms, one of 17 rows {wide}, a draft step {draft}, the first "
        f"{first}."
    ) in told()
    trace = load_trace(FOLDER / "smollm2-eagle-greedy.parquet")
    gain = trace.rows * cost.baseline / cost.seconds(replay(trace, fixed(2))).sum()
    (row,) = (
        row
        for row in found("score-eagle")["rows"]
        if (row["policy"], row["recording"]) == ("fixed:2", "smollm2-eagle-greedy")
    )
    assert gain == pytest.approx(row["speedup"], rel=0.1)  # of all prompts, and of 20
    assert f"{row['speedup']:.2f}" == f"{row['speedup_measured']:.2f}"
    figures = [f"{row[name]:.2f}" for name in ("speedup_measured", "measured_low", "measured_high")]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "EAGLE gained {} [{}, {}], as predicted".format(*figures) in readme


def test_race_on_the_gpu_is_told_beside_its_prediction():
    """Predicted by recordings in float32 of the same prompts, and the race's own prompt passes."""
    race = json.loads((FOLDER / "race.json").read_text())
    assert race["measurement"]
    assert (race["device"], race["dtype"]) == ("NVIDIA H200", "bfloat16")
    rows = {row["contestant"]: row for row in race["rows"] if row["group"] == "all"}
    assert {row["equal"] for row in rows.values()} == {race["prompts"]}
    ngram = [rows[f"prompt_lookup=fixed:{K}"] for K in (4, 8, 12)]
    best, eagle = (
        f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        for row in (ngram[2], rows["eagle=fixed:2"])
    )
    cost = load_cost(FOLDER / "smollm2-prompt_lookup-greedy.cost.json")
    assert cost.origin.device == race["device"]
    trace = load_trace(EXHIBIT / "greedy" / "prompt_lookup.parquet").shorten(race["budget"])
    trace = trace.select([trace.meta.ids.index(name) for name in race["ids"]])
    rounds = replay(trace, fixed(12))
    prompts = race["prompts"] * rows["plain"]["first"]
    plain, drafted = trace.rows * cost.baseline, cost.seconds(rounds).sum()
    assert (
        f"n-grams gained {ngram[0]['speedup']:.2f}, {ngram[1]['speedup']:.2f} and {best} at K = 4, "
        f"8 and 12, `eagle` of the second training {eagle} at K = 2. Predicted at K = 12 are "
        f"{(prompts + plain) / (prompts + drafted):.2f}: {ngram[2]['per_pass']:.2f} tokens a pass "
        f"were {trace.rows / len(rounds):.2f} in float32."
    ) in told()
    assert f"n-grams {ngram[2]['speedup']:.2f};" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_errors_of_predictions_are_told():
    score = found("score-eagle")
    assert (score["dtype"], score["repeats"]) == ("bfloat16", 5)
    errors = [abs(row["error"]) for row in score["rows"] if row["error"] is not None]
    assert (
        f"Over these {len(errors)} policies errors are {median(errors):.1%} in the median, "
        f"{max(errors):.1%} at most."
    ) in told()
    cost = load_cost(FOLDER / "smollm2-eagle-greedy.cost.json")
    told_seconds = f"takes {1e3 * cost.feature:.2f} ms a draft step, more than the step."
    assert f"Reading the confidence {told_seconds}" in told()
    assert cost.feature > (cost.draft[16] - cost.draft[1]) / 15


def test_losslessness_on_the_gpu_is_told():
    equal, audit, forced = (found(f"{name}-eagle") for name in ("equal", "audit", "forced"))
    assert (equal["dtype"], equal["tf32"], equal["exceptions"]) == ("float32", False, 0)
    assert f"{equal['rounds']:,} rounds in float32 equal their replays." in told()
    rules = audit["rules"].values()
    assert audit["dtype"] == "bfloat16"
    assert all(rule["clean"] and not rule["alarms"] for rule in rules)
    apart, tokens = (sum(rule[key] for rule in rules) for key in ("divergences", "tokens"))
    assert (
        f"In bfloat16 {apart} of {tokens:,} tokens are not the target's pick, none beyond rounding."
    ) in told()
    assert all(rule["failures"] == 0 for rule in forced["rules"].values())


def test_the_report_says_what_is_missing():
    report = json.loads((FOLDER / "report.json").read_text())
    states = [part for part in report["parts"] if part["rank"] == "required"]
    done = [part["part"] for part in states if part["state"] == "done"]
    assert not report["complete"]
    seconds = {}
    for part in done:
        found(part)
        seconds[part] = json.loads((FOLDER / f"{part}.json").read_text())["seconds"]
    page = " ".join((ROOT / "docs" / "gpu_campaign.md").read_text(encoding="utf-8").split())
    assert f"ran {len(done)} of {len(states)} required stages" in page
    assert f"in {sum(seconds.values()):.0f} s ([results]" in page
    lines = (FOLDER / "second_training.txt").read_text().splitlines()
    (again,) = (line.split()[3] for line in lines if line.startswith("drafter-eagle"))
    both = f"{seconds['drafter-eagle']:.0f} and {float(again):.0f} s of an H200"
    assert both in told()
