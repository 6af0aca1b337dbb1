"""The exhibit of a real model: its recordings, its costs, and the page that shows them."""

import json
from dataclasses import replace
from itertools import combinations
from math import hypot
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from documents import ROOT, TABLES, stale_tables

from simspec import load_trace, replay
from simspec.cost.table import load_cost
from simspec.policies.fixed import fixed
from simspec.trace.recordings import cost_beside

FOLDER = ROOT / "traces" / "smollm2"
PAGE = ROOT / "docs" / "smollm2.md"
RULES = "greedy", "coupled", "rejection"
DRAFTERS = "eagle", "early_exit", "glide", "medusa", "model", "prompt_lookup"
RESUMES = "early_exit"
"""Its verification skips layers that its drafts have run: it has passes of its own."""


def path_of(rule, drafter):
    return FOLDER / rule / f"{drafter}.parquet"


def cost_of(rule, drafter):
    return load_cost(cost_beside(path_of(rule, drafter)))


@pytest.mark.parametrize("rule", RULES)
def test_recordings_hold_one_set_of_texts(rule):
    traces = {drafter: load_trace(path_of(rule, drafter)) for drafter in DRAFTERS}
    first = traces["prompt_lookup"]
    tasks = list(first.meta.tasks)
    counts = {task: tasks.count(task) for task in tasks}
    assert counts == {"chat": 20, "math": 20, "code": 20, "summary": 19, "reading": 18}
    for drafter, trace in traces.items():
        assert trace.meta.drafter == drafter
        assert trace.meta.rule == rule
        assert trace.meta.target.endswith("a672150fb4f9")
        assert trace.meta.chat["template"] == "tokenizer"
        assert set(trace.budget.tolist()) == {128}
        np.testing.assert_array_equal(trace.token, first.token)
        np.testing.assert_array_equal(trace.prompt, first.prompt)


def in_plain_steps(cost, j):
    """(verify[j] / plain, half-width of its 95% interval)."""
    # 2% where a cell had too few rounds for an interval
    width = cost.precision.half_width
    widths = (
        (width["verify"][j] or 0.02 * cost.verify[j]) / cost.verify[j],
        (width["baseline"] or 0.02 * cost.baseline) / cost.baseline,
    )
    ratio = cost.verify[j] / cost.baseline
    return ratio, ratio * hypot(*widths)


@pytest.mark.parametrize("rule", RULES)
def test_costs_of_a_sitting_price_verification_alike(rule):
    costs = [cost_of(rule, drafter) for drafter in DRAFTERS if drafter != RESUMES]
    for a, b in combinations(costs, 2):
        for j in range(min(a.K, b.K) + 1):
            (ours, wide), (theirs, also_wide) = in_plain_steps(a, j), in_plain_steps(b, j)
            assert abs(ours - theirs) <= hypot(wide, also_wide), (a.name, b.name, j)


def test_all_costs_are_of_one_sitting():
    origins = [cost_of(rule, drafter).origin for rule in RULES for drafter in DRAFTERS]
    assert all(origin.known for origin in origins)
    assert len({(o.device, o.threads, o.dtype, o.sitting) for o in origins}) == 1
    assert {o.engines["target"] for o in origins} == {"prepacked"}


def test_warnings_of_engines_costs_are_on_their_page():
    page = " ".join((ROOT / "docs" / "engines.md").read_text(encoding="utf-8").split())
    files = sorted((FOLDER / "engines").glob("*.cost.json"))
    assert len(files) >= 3
    for path in files:
        for warning in load_cost(path).warnings:
            assert warning in page, path


CARDS = sorted(set((FOLDER / "drafters").glob("*.json")) - {FOLDER / "drafters/self_skip.json"})


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_table_of_trained_drafters_is_that_of_their_cards(path):
    card = json.loads(path.read_text())
    figures = card["evaluation"]
    lengths = [
        f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        for row in (figures["trained"]["accepted_length"], figures["beats_trigram"])
    ]
    trained = f"{card['parameters']['trained'] / 1e6:.1f} M"
    cells = f"`{path.stem}`", str(card["steps"]), f"{card['tokens']:,}", trained, *lengths
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")
    assert figures["beats_untrained"]["longer"]
    assert figures["beats_untrained"]["low"] > 0
    assert figures["untrained"]["accepted_length"]["value"] <= 0.03
    assert "Untrained, each accepts 0.03 at most." in PAGE.read_text(encoding="utf-8")


def test_layers_that_glide_reads_were_compared_at_one_budget():
    """Of 500 steps on the same sequences; the interval tells of no difference."""
    card = json.loads((FOLDER / "measured" / "glide-15.json").read_text())
    assert card["asked"]["settings"]["reads"] == [15]
    (against,) = card["against"].items()
    assert (against[0], card["steps"]) == ("glide-29", 500)
    gain = against[1]["difference"]
    told = f"{gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}] more than the last layer's"
    assert told in " ".join(PAGE.read_text(encoding="utf-8").split())
    assert gain["low"] < 0 < gain["high"]


@pytest.mark.docs
@pytest.mark.parametrize("command", ["sweep"])
def test_tables_are_current(command):
    assert stale_tables(PAGE, command) == []


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.docs
def test_tables_of_drafters_have_all_of_a_rule(rule):
    files = " ".join(str(path_of(rule, drafter).relative_to(ROOT)) for drafter in DRAFTERS)
    assert f"sweep --report drafters {files} --markdown" in TABLES["commands"](PAGE)


def test_gains_at_other_costs_are_told():
    """EAGLE at K = 2: costs as measured, free drafts, verification for a plain step, and both."""
    trace, cost = load_trace(path_of("greedy", "eagle")), cost_of("greedy", "eagle")
    free = {"draft": 0 * cost.draft, "catch_up": [0.0], "precision": None}
    flat = {"verify": np.full_like(cost.verify, cost.baseline), "precision": None}
    rounds = replay(trace, fixed(2))
    plain = trace.rows * cost.baseline
    changes = {}, free, flat, free | flat
    gains = [plain / replace(cost, **change).seconds(rounds).sum() for change in changes]
    told = "At K = 2 `eagle` gains {:.2f}, {:.2f} if drafts were free, {:.2f} if verification cost "
    told += "a plain step, {:.2f} if both."
    assert told.format(*gains) in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_draft_vocabularies_are_measured():
    report = json.loads((FOLDER / "measured" / "draft_vocabularies.json").read_text())
    by_size = {Path(row["recording"]).stem: row for row in report["rows"]}
    rows = [by_size[f"eagle-{size}"] for size in (4096, 8192, 16384, 49152)]
    lengths = [f"{row['accepted'][0]:.3f}" for row in rows]
    told = f"accepted lengths of {', '.join(lengths[:3])} and {lengths[3]} at K = 4"
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert told in page
    assert rows[3]["step"] / rows[1]["step"] == pytest.approx(3, abs=0.2)


def test_race_of_trees_and_lookahead_is_measured_and_told():
    report = json.loads((FOLDER / "measured" / "race_eagle.json").read_text())
    assert report["measurement"]
    assert report["impossible"] == []
    rows = {row["contestant"]: row for row in report["rows"] if row["group"] == "all"}
    rows.pop("plain")
    told = [f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in rows.values()]
    passes = [f"{row['per_pass']:.2f}" for row in rows.values()]
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert list(rows) == ["eagle=fixed:2", "eagle=static:2x1", "eagle=cape", "lookahead=fixed:2"]
    assert all(row["low"] < 1 and row["equal"] == report["prompts"] for row in rows.values())
    assert (
        f"`fixed:2` {told[0]} times plain, `static:2x1` {told[1]}, `cape` {told[2]}, lookahead "
        f"{told[3]}, at {', '.join(passes[:3])} and {passes[3]} tokens a pass"
    ) in page


@pytest.mark.parametrize("name", ["eagle", "eagle_float64", "float64"])
def test_rounds_that_were_compared_are_told(name):
    report = json.loads((FOLDER / "measured" / f"equality_{name}.json").read_text())
    assert report["failures"] == 0
    told = f"(../traces/smollm2/measured/equality_{name}.json) | "
    line = next(x for x in PAGE.read_text(encoding="utf-8").splitlines() if told in x)
    counts = (report[key] for key in ("rounds", "exceptions", "tokens", "flips"))
    assert line.endswith("| {:,}, {} | {:,}, {} |".format(*counts))


SCORECARDS = sorted((FOLDER / "measured").glob("scorecard-*.json"))


def test_scorecards_are_measurements_and_their_errors_are_told():
    """Rounds are the replay's in every cell, and the page says the largest and the median error."""
    reports = [json.loads(path.read_text()) for path in SCORECARDS]
    assert len(reports) == 6
    assert all(report["measurement"] and report["good"] for report in reports)
    rows = [row for report in reports for row in report["rows"] if row["error"] is not None]
    assert all(row["tau"] == pytest.approx(row["tau_measured"], rel=1e-12) for row in rows)
    errors = sorted(abs(row["error"]) for row in rows)
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    told = f"Over the {len(rows)} policies errors are {median(errors):.1%} in the median, "
    assert f"{told}{errors[-1]:.1%} at most" in page
    assert median(errors) < 0.03


def run_speedups(name, cost, recording=None):
    """{draft length or policy: its speedups} of a run of engines at these costs."""
    from real.engines.measure import speedup_table
    from real.engines.rows import read_rows

    folder = FOLDER / "engines"
    about, rows = read_rows(folder / f"{name}.rows.jsonl.xz")
    priced = load_cost(folder / f"{cost}.cost.json")
    return {row.name: row for row in speedup_table(about, rows, priced, recording).rows}


@pytest.mark.docs
def test_sentences_on_engines_say_what_the_runs_say():
    """The first lines of README and the remarks on docs/engines.md, from rows and costs."""
    from real.engines.rows import read_rows
    from real.engines.summary import run_summary, summary_frame
    from simspec.output.frames import markdown

    folder = FOLDER / "engines"
    page = " ".join((ROOT / "docs" / "engines.md").read_text(encoding="utf-8").split())
    head = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    vllm = run_summary(folder / "vllm-ngram.rows.jsonl.xz")
    best, figures = vllm.drafting, []
    for value, interval in (
        (best.measured, best.measured_interval),
        (best.predicted, best.predicted_interval),
    ):
        figures.append(f"{value:.2f} [{interval.low:.2f}, {interval.high:.2f}]")
    assert f"n-gram drafts of K = {best.k} decode SmolLM2-135M {figures[0]} times" in head
    assert f"on {vllm.prompts} prompts; {figures[1]} predicted; all" in head
    assert f"all {vllm.passes:,} passes equal the replay" in head
    assert (vllm.differ, vllm.table.confirmed) == (0, True)

    rows = read_rows(folder / "vllm-ngram.rows.jsonl.xz")[1]
    decoded = [row.finished for row in rows if row.k == best.k]
    tokens = sum(len(finished.tokens) - 1 for finished in decoded)
    passes = sum(len(finished.passes) - 1 for finished in decoded)
    assert f"They do: {best.measured:.2f} at {tokens / passes:.2f}." in page

    recording, errors = load_trace(folder / "six_tasks.parquet"), []
    for engine in ("vllm", "llamacpp", "transformers"):
        summary = run_summary(folder / f"{engine}-ngram.rows.jsonl.xz")
        assert markdown(summary_frame([summary])).splitlines()[-1] in head
        errors += summary.errors
        drafting = run_summary(folder / f"{engine}-model.rows.jsonl.xz", recording)
        errors += drafting.errors
        assert summary.table.confirmed
        assert drafting.table.confirmed
    _, rows = read_rows(folder / "llamacpp-model.rows.jsonl.xz")
    plain = [s for row in rows if row.k == 0 for s in row.finished.pass_seconds[1:]]
    assert f"Its plain passes took {1000 * np.mean(plain):.1f} ms here" in page
    own = run_speedups("vllm-own", "vllm-ngram")[5]
    low, high = own.measured_interval.low, own.measured_interval.high
    assert f"measure {own.measured:.2f} [{low:.2f}, {high:.2f}]. The proposer" in page
    hosted = {
        str(name).partition(":")[0]: f"{row.measured:.2f}"
        for name, row in run_speedups("vllm-hosted", "vllm-model", recording).items()
    }
    vllm_s = run_speedups("vllm-model", "vllm-model", recording)[1].measured
    assert (
        f"16 prompts measure {hosted['1']} at K = 1 ({vllm_s:.2f} by vLLM's own), `beta_ts` "
        f"{hosted['beta_ts']}, `cost_ts` {hosted['cost_ts']}, `confidence:0.4` "
        f"{hosted['confidence']}, `cali_ts` {hosted['cali_ts']}." in page
    )
    assert f"Over {len(errors)} draft lengths errors are" in head
    told = f"{np.median(errors):.1%} in the median, {np.quantile(errors, 0.9):.1%} at the 90th"
    assert told in head


def with_interval(row, digits):
    """A row's measured speedup and its interval, as the pages write them."""
    low, high = row.measured_interval.low, row.measured_interval.high
    return f"{row.measured:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


@pytest.mark.docs
def test_speedups_in_sentences_are_those_of_the_tables_of_the_site():
    page = " ".join((ROOT / "docs" / "engines.md").read_text(encoding="utf-8").split())
    alone = [row.error for k, row in run_speedups("vllm-ngram", "vllm-ngram").items() if k]
    told = f"{-max(alone):.1%}".rstrip("%"), f"{-min(alone):.1%}"
    assert f"predicted speedups are {' to '.join(told)} below measured ones" in page
    four, sixteen = (run_speedups(f"vllm-batch-{n}", "vllm-batch") for n in (4, 16))
    assert (
        f"With 4 in flight K = 1 measures {with_interval(four[1], 3)} ({four[1].predicted:.3f} "
        f"predicted) and K = 3 {with_interval(four[3], 3)} ({four[3].predicted:.3f}), with 16 in "
        f"flight {sixteen[1].measured:.3f} ({sixteen[1].predicted:.3f}) and "
        f"{sixteen[3].measured:.3f} ({sixteen[3].predicted:.3f}, {sixteen[3].error:.0%} too fast)"
    ) in page
    scheduled = max(run_speedups("vllm-schedule", "vllm-batch").values(), key=lambda row: row.k)
    low, high = scheduled.predicted_interval.low, scheduled.predicted_interval.high
    told = f"{scheduled.predicted:.3f} [{low:.3f}, {high:.3f}] predicted"
    assert f"{told}, {with_interval(scheduled, 3)} measured" in page
    inside = run_speedups("vllm-policies", "vllm-ngram")
    assert (
        f"no policy beats K = 5, {with_interval(inside[5], 2)} measured; `cost_ts` has "
        f"{inside['cost_ts'].measured:.2f}, `goodput` {inside['goodput'].measured:.2f}, K = 8 "
        f"{inside[8].measured:.2f} and `beta_ts` {inside['beta_ts'].measured:.2f}, each predicted "
        f"within {max(abs(row.error) for row in inside.values()):.1%}"
    ) in page
    recording = load_trace(FOLDER / "engines" / "six_tasks.parquet")
    vllm, llamacpp, transformers = (
        run_speedups(f"{name}-model", f"{name}-model", recording)[1]
        for name in ("vllm", "llamacpp", "transformers")
    )
    assert (
        f"measures {vllm.measured:.2f} on vLLM, {llamacpp.measured:.2f} on llama.cpp and "
        f"{transformers.measured:.2f} on transformers ({vllm.predicted:.2f}, "
        f"{llamacpp.predicted:.2f} and {transformers.predicted:.2f} predicted)"
    ) in page


@pytest.mark.docs
def test_counts_in_sentences_are_those_of_the_tables_of_the_site():
    from real.engines.compare import compare_rows
    from real.engines.rows import read_rows

    page = " ".join((ROOT / "docs" / "engines.md").read_text(encoding="utf-8").split())
    recording = load_trace(FOLDER / "engines" / "six_tasks.parquet")

    def counted(*names):
        texts = passes = 0
        for name in names:
            for path in sorted((FOLDER / "engines").glob(f"{name}.rows.jsonl.xz")):
                about, rows = read_rows(path)
                result = compare_rows(about, rows, recording)
                assert not result.differences, path
                texts, passes = texts + len(rows), passes + result.passes
        return texts, passes

    for names in ("exact-*", "policies-*"):
        texts, passes = counted(names)
        assert f"all {texts:,} texts and {passes:,} passes equal the replay" in page.lower()
    _, passes = counted("vllm-model", "llamacpp-model", "transformers-model")
    assert f"all {passes:,} passes equal the replay" in page
