"""The pair that people run: its recordings, and the page of its figures."""

import json
import lzma
from collections import Counter

import msgspec
import numpy as np
import pytest
from documents import ROOT

import simspec
from real.audit.runs import load_run
from real.contest import Runs, compared, predictions, speedup_measured
from real.engines.compare import compare_rows
from real.engines.measure import speedup_table
from real.engines.rows import read_rows
from real.rerun import parse_runnable
from simspec import CostModel, Rounds, load_trace
from simspec.cost.table import load_cost
from simspec.numerics import stats
from simspec.policies import make, parse
from simspec.replay.evaluation import halves
from simspec.replay.metrics import by_prompt
from simspec.trace.acceptance import repeated_ngrams

FOLDER = ROOT / "traces" / "coder"
PAGE = (ROOT / "docs" / "coder.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
RULES = "entropy", "confidence:0.8"
SETS = "code", "functions", "math", "chat", "summary", "sql"


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_recordings_hold_one_set_of_clean_texts(rule):
    traces = [load_trace(path) for path in sorted((FOLDER / rule).glob("*.parquet"))]
    drafters = {"model", "prompt_lookup", "suffix"} | ({"eagle"} if rule == "coupled" else set())
    assert {trace.meta.drafter for trace in traces} == drafters
    prompts = (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    for trace in traces:
        assert (trace.meta.rule, Counter(trace.task)) == (rule, dict.fromkeys(SETS, 22))
        assert [*trace.meta.ids] == [json.loads(line)["id"] for line in prompts]
        np.testing.assert_array_equal(trace.token, traces[0].token)
        texts = np.split(trace.token, trace.offset[1:-1])
        assert max(repeated_ngrams([text]) for text in texts) < 0.5


def of_task(trace, task):
    kept = [s for s in range(trace.sequences) if task in ("all", trace.task[s])]
    return trace.select(kept)


def first_accepted(trace):
    tried = trace.depth > 0
    return (trace.run[tried] > 0).mean()


def tuned(trace, cost, texts):
    """float64[S]: seconds of each prompt by the policy that is best on the other half of them."""
    seconds = np.empty((len(texts), trace.sequences))
    for row, policy in zip(seconds, (make(parse(text), trace, cost.at(1)) for text in texts)):
        rounds = simspec.replay(trace, policy, 0, cost.at(1))
        row[:] = by_prompt(cost.at(1).reading(policy.reads).seconds(rounds), rounds)
    found = np.empty(trace.sequences)
    for fit, rest in halves(trace):
        found[rest] = seconds[seconds[:, fit].sum(axis=1).argmin(), rest]
    return found


def run_rounds(run, trace):
    """The rounds of a saved run, whose texts are those of the trace."""
    rounds = [np.array(sequence.rounds) for sequence in run.sequences]
    offset = np.cumsum([0, *map(len, rounds)])
    position, computed, drafted, accepted = np.concatenate(rounds).T
    row = position + np.repeat(trace.offset[:-1], np.diff(offset))
    return Rounds(offset, row, computed, drafted, accepted)


def test_float32_rounds_equal_their_replays(tmp_path):
    rounds, prompts, ran_by = 0, 0, set()
    for packed in sorted((FOLDER / "measured").glob("float32-*.jsonl.xz")):
        path = tmp_path / packed.stem
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        run, rule = load_run(path), packed.name.split("-")[1]
        trace = load_trace(FOLDER / rule / "model.parquet")
        place = trace.sequence.tolist()
        trace = trace.select([place.index(sequence.sequence) for sequence in run.sequences])
        texts = np.split(trace.token, trace.offset[1:-1])
        assert [sequence.token for sequence in run.sequences] == [tuple(text) for text in texts]
        ran, cost = run_rounds(run, trace), CostModel.from_ratio(0.1, trace.K)
        own, other = (
            simspec.replay(trace, make(parse(text), trace, cost))
            for text in (run.header.policy, "fixed:2")
        )
        assert (run.header.dtype, ran == own, ran == other) == ("float32", True, False)
        rounds, prompts = rounds + len(ran), prompts + len(run.sequences)
        ran_by.add((run.header.policy, rule))
    assert ran_by == {("fixed:1", "coupled"), ("confidence:0.8", "greedy")}
    assert f"In float32 {rounds:,} rounds of {prompts} prompts" in WORDS


def test_page_has_the_figures_of_the_audit():
    found = json.loads((FOLDER / "measured" / "forced-bfloat16.json").read_text())
    ties = found["divergences"]
    assert (found["policy"], found["dtype"], found["failures"]) == ("confidence:0.8", "bfloat16", 0)
    assert f"{found['equal']} of {found['rounds']} rounds" in WORDS
    assert f"{len(ties)} of {found['tokens']:,} tokens" in WORDS
    assert {tie["gap"] for tie in ties} == {0.0}


@pytest.mark.docs
def test_page_has_the_figures_of_the_recordings():
    rows = [line.strip("| \n").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    header, _, *rows = rows
    rows = rows[: 1 + len(SETS)]
    assert [row[0] for row in rows] == ["all", *sorted(SETS)]
    greedy, coupled = (
        load_trace(FOLDER / rule / "model.parquet") for rule in ("greedy", "coupled")
    )
    cost = load_cost(FOLDER / "greedy" / "model.cost.json")
    policies = [f"fixed:{k}" for k in range(9)] + ["entropy", "cost_ts", "beta_ts", "oracle"]
    lengths = tuned(greedy, cost, [f"fixed:{k}" for k in range(13)])
    thresholds = tuned(greedy, cost, [f"confidence:{t / 100}" for t in range(30, 98, 4)])
    for task, a1, a1_coupled, best, *speedups in rows:
        trace = of_task(greedy, task)
        table = simspec.sweep(trace, policies, cost, replicates=3, progress=False)
        found = table.groupby("policy", sort=False).speedup.mean().to_list()
        mine = np.array([task in ("all", name) for name in greedy.task])
        plain = cost.at(1).baseline * np.diff(greedy.offset)[mine].sum()
        held_out = (plain / seconds[mine].sum() for seconds in (lengths, thresholds))
        expected = [max(found[:9]), *found[9:], *held_out]
        assert found[int(best)] == max(found[:9])
        shown = [first_accepted(trace), first_accepted(of_task(coupled, task)), *expected]
        printed = [float(cell) for cell in (a1, a1_coupled, *speedups)]
        assert np.abs(np.array(printed) - shown).max() <= 0.0051, (task, shown)


@pytest.mark.docs
def test_page_has_the_figures_of_the_runs():
    """Predicted at the costs beside the recording, measured in the kept repeats."""
    saved = json.loads((FOLDER / "measured" / "compare-greedy-model.json").read_text())
    asked, runs = saved["settings"], msgspec.convert(saved["runs"], list[Runs])
    trace = load_trace(FOLDER / "greedy" / "model.parquet")
    ran = [trace.meta.ids.index(name) for name in asked["ids"]]
    trace = trace.select(ran).shorten(asked["budget"])
    cost = load_cost(FOLDER / "greedy" / "model.cost.json").at(1)
    chosen = [make(parse_runnable(run.name, trace), trace, cost) for run in runs[1:]]
    predicted = predictions(trace, chosen, cost, asked["seed"])
    table = compared(trace, runs, predicted, cost).set_index("contestant").iloc[1:]
    for run, (name, row) in zip(runs[1:], table.iterrows()):
        over = "1.00" if name == "fixed:2" else speedup_measured(run, runs[1]).text()
        assert f"| `{name}` | {row.predicted.text()} | {row.measured.text()} | {over} |" in WORDS
    off = np.median([abs(error.value) for error in table.error])
    assert f"off by {off:.1%} in the median" in WORDS
    assert f"{table.equal.min()} to {table.equal.max()} of the {trace.sequences} texts" in WORDS


def decode_seconds(rows, name):
    """float64[P]: from the first token to the last of each prompt under a length or policy."""
    held = {row.request.id: row.finished for row in rows if (row.policy or row.k) == name}
    return np.array([held[at].seconds - held[at].first_seconds for at in sorted(held)])


@pytest.mark.docs
def test_page_has_the_figures_of_vllm():
    """Predicted along the texts that vLLM wrote without drafts, at the costs of other prompts."""
    folder = FOLDER / "engines"
    cost, texts = (
        load_cost(folder / "vllm-model.cost.json"),
        load_trace(folder / "vllm-texts.parquet"),
    )
    recorded = load_trace(FOLDER / "greedy" / "model.parquet")
    off, off_recorded = [], []
    for name, shown in (("vllm-model", (1, 2, 3)), ("vllm-hosted", (2, 3, *RULES))):
        about, rows = read_rows(folder / f"{name}.rows.jsonl.xz")
        along, other = (speedup_table(about, rows, cost, trace) for trace in (texts, recorded))
        off += [abs(row.error) for row in along.rows if row.k]
        off_recorded += [abs(row.error) for row in other.rows if row.k]
        for at in shown:
            row, how = along.row(at), f"with `{at}`" if at in RULES else f"at K = {at}"
            assert f"{row.measured_interval.text()} {how} ({row.predicted:.2f})" in WORDS
    assert f"off by {np.median(off):.1%} in the median and {max(off):.1%} at most" in WORDS
    assert f"is off by {np.median(off_recorded):.1%}." in WORDS
    seconds = {at: decode_seconds(rows, at) for at in (2, 3, RULES[1])}  # of those that it hosts
    over = [stats.ratio(seconds[k], seconds[RULES[1]]).text() for k in (2, 3)]
    assert f"{over[0]} times as fast as K = 2, and {over[1]} times as K = 3" in WORDS


def test_page_has_the_figures_of_other_engines():
    own, p_min = "confidence:0.8", "confidence:0.8,inclusive=false"
    words = {2: "at K = 2 (", 4: "at K = 4 (", own: "with its own threshold of 0.8 (",
             "confidence:0.4": "with 0.4 (", p_min: "with `p_min` 0.8, where "}  # fmt: skip
    others = []
    for engine in ("llamacpp", "transformers"):
        about, rows = read_rows(FOLDER / "engines" / f"{engine}-model.rows.jsonl.xz")
        cost = load_cost(FOLDER / "engines" / f"{engine}-model.cost.json")
        texts = load_trace(FOLDER / "engines" / f"{engine}-texts.parquet")
        table = speedup_table(about, rows, cost, texts)
        for row in (row for row in table.rows if row.name in words):
            assert f"{row.measured_interval.text()} {words[row.name]}{row.predicted:.2f}" in WORDS
        differ = compare_rows(about, rows, texts).differences
        assert all(isinstance(d.k, str) for d in differ if d.kind == "passes")
        others.append([sum(d.kind == kind for d in differ) for kind in ("text", "passes")])
    assert others == [[5, 5], [13, 3]]
    off = [abs(row.error) for row in table.rows if row.k]
    assert f"off by {np.median(off):.1%} in the median and {max(off):.1%} at most. 13 of" in WORDS
    over = stats.ratio(*(decode_seconds(rows, at) for at in (4, "confidence:0.4"))).text()
    assert f"{over} times as fast as K = 4" in WORDS
