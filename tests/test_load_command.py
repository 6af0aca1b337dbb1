"""simspec load: rows, the rate at which drafting stops paying, refusals, and the page's figures."""

import json
import re
import shlex
from dataclasses import replace

import pytest
from documents import ROOT, printed_by, stale_tables
from numba.core import config
from shell import refused, simspec

from simspec import load_trace, synthetic
from simspec.cost.batch import TokenCost, parse_terms
from simspec.replay.load import Server
from simspec.replay.load_metrics import Counting
from simspec.reports.batches import BatchPlan, batch_rows, crossings
from simspec.reports.load import LoadPlan, LoadRuns, best_policy

TRACE = synthetic.iid(0.7, 20, 40, 4, seed=4, confidence=True)
COST = TokenCost(10e-3, 1e-3, step=1e-3, draft=0.8e-3).cost(4)
NAMES = ("plain", "fixed:1", "fixed:4", "confidence:0.5", "schedule:1=4/5=0")


def test_drafting_stops_paying_where_a_scan_says():
    server, counting = Server(32, 512, False), Counting(0.2)
    names = (*NAMES[:3], NAMES[-1])
    plan = LoadPlan(names, (1.0, 200.0), server, None, 200, counting=counting, replicates=2)
    runs = LoadRuns(TRACE, COST, plan)
    rows = runs.rows()
    crossing = runs.crossing(rows)
    assert best_policy(rows, 1.0) == "fixed:4"
    assert best_policy(rows, 200.0) in ("plain", NAMES[-1])
    assert 1.0 < crossing.last < crossing.first < 200.0
    assert crossing.first - crossing.last < 199 / 2**7
    at = replace(plan, rates=(crossing.last, crossing.first))
    rows = [row for row in LoadRuns(TRACE, COST, at).rows() if row.policy != NAMES[-1]]
    assert best_policy(rows, crossing.last) == crossing.last_policy != "plain"
    assert best_policy(rows, crossing.first) == "plain"


def test_threads_do_not_change_results():
    plan = LoadPlan(NAMES, (5.0, 20.0), Server(8), None, 60, 2.0, replicates=2)
    one, two = (LoadRuns(TRACE, COST, plan, jobs=jobs).rows() for jobs in (1, 2))
    assert one == two
    assert {row.policy.partition(",")[0] for row in one} == set(NAMES)
    assert one[0].figures["latency_mean"].covers == ("replications",)


def test_command_prints_rows_crossing_and_picture(tmp_path):
    TRACE.save(tmp_path / "t.parquet")
    COST.to_json(tmp_path / "t.cost.json")
    options = ("load", "t.parquet", "--requests", 60, "--replicates", 2, "--slots", 16)
    out, _ = simspec(*options, "--ttft", 1, "--plot", "p.svg", cwd=tmp_path)
    assert "drafting pays up to" in out
    assert "goodput/s" in out
    assert 1000 < (tmp_path / "p.svg").stat().st_size < 60_000
    out, _ = simspec(
        *options, "--json", "--rate", 2, "--policy", "plain", "--policy", NAMES[-1], cwd=tmp_path
    )
    report = json.loads(out)
    assert [row["policy"] for row in report["rows"]] == ["plain", NAMES[-1]]
    figure = report["rows"][0]["figures"]["tpot_p99"]
    assert figure["low"] <= figure["value"] <= figure["high"]
    assert len(report["rows"][0]["batch_by_time"]) == 20
    (tmp_path / "times.txt").write_text("0\n0.5\n0.5\n2\n")
    out, _ = simspec(*options, "--arrivals", "times.txt", "--warm-up", 0, "--json", cwd=tmp_path)
    assert json.loads(out)["rows"][0]["rate"] > 0
    out, _ = simspec(*options, "--rate", 2, "--best", "--markdown", "--terms",
                     "pass=10,token=0.5,draft=1", cwd=tmp_path)  # fmt: skip
    assert out.startswith("**t.parquet**\n\n| requests/s |")


@pytest.mark.parametrize(
    "options, words",
    [
        (("--rate", "0"), "expected requests a second > 0"),
        (("--rate", "inf"), "expected requests a second > 0"),
        (("--rate", "1", "--rate", "1"), "each once"),
        (("--requests", "0"), "requests is 0"),
        (("--requests", "2000000"), "requests is 2000000"),
        (("--slots", "0"), "slots is 0"),
        (("--slots", "5000"), "expected 1 to 4096"),
        (("--tokens", "1000000"), "tokens is 1000000"),
        (("--burst", "0.5"), "burst is 0.5"),
        (("--warm-up", "0.5"), "warm-up is 0.5"),
        (("--ttft", "0"), "expected more than 0"),
        (("--replicates", "0"), "replicates is 0"),
        (("--by", "speed"), "--by is 'speed'"),
        (("--policy", "schedule:2=1"), "growing numbers of requests from 1"),
        (("--policy", "schedule:1=x"), "is no schedule"),
        (("--policy", "schedule:1=9"), "drafts 9 tokens, the recording has 4"),
        (("--policy", "static:2"), "expected a policy of chains"),
        (("--plot", "p.gif"), "ends in .png or .svg"),
        (("--terms", "token=1"), "pass is missing"),
        (("--terms", "pass=1", "--cost", "0.1"), "give one"),
        (("--jobs", "0"), "--jobs is 0"),
        (("--arrivals", "absent"), "absent: no arrival times"),
        (("--cluster", "nowhere"), "nowhere"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, words):
    TRACE.save(tmp_path / "t.parquet")
    refused(tmp_path, "load", "t.parquet", *options, words=words)


PAGE = ROOT / "docs" / "load.md"


@pytest.mark.skipif(config.DISABLE_JIT, reason="takes minutes when interpreted")
@pytest.mark.docs
def test_page_shows_todays_figures():
    text = PAGE.read_text(encoding="utf-8")
    assert not stale_tables(PAGE, "load")
    (command,) = re.findall(r"table: simspec (load .*?) --best --markdown", text)
    report = json.loads(printed_by(*shlex.split(command), "--json"))
    most, crossing = report["capacity"], report["crossing"]["first"]
    assert f"up to {crossing:.0f} requests/s, {100 * crossing / most:.0f}% of" in text
    assert f"at most ({most:.0f})" in text
    options = "--requests 20000 --rate 100 --rate 140 --policy plain --policy fixed:1"
    terms = re.findall(r"--terms \S+", command)[0]
    longer = shlex.split(f"load tiny-eagle-coupled {terms} {options} --json")
    first = json.loads(printed_by(*longer))["crossing"]["first"]
    assert f"runs of 20,000\nrequests up to {first:.0f}." in text
    trace = load_trace(ROOT / "traces" / "tiny-eagle-coupled.parquet")
    cost = parse_terms(terms.split()[1]).cost(trace.K, 0)
    plan = BatchPlan((1, 256))
    (crossed,) = crossings(trace, cost, plan, batch_rows(trace, cost, plan))
    assert f"as a batch: {crossed.last.batch} full slots" in text
    assert (ROOT / "docs" / "load.svg").stat().st_size < 40_000


@pytest.mark.skipif(config.DISABLE_JIT, reason="takes minutes when interpreted")
@pytest.mark.docs
def test_page_s_schedule_is_as_good_as_the_best_length():
    text = PAGE.read_text(encoding="utf-8")
    (schedule,) = re.findall(r"--policy (schedule:\S+)`", text)
    (terms,) = re.findall(r"--terms (\S+)", text)
    rates = (5, 20, 40, 60, 80, 100, 110, 120, 130, 140, 150)
    plan = LoadPlan(("plain", *(f"fixed:{K}" for K in range(1, 8)), schedule), rates)
    trace = load_trace(ROOT / "traces" / "tiny-eagle-coupled.parquet")
    runs = LoadRuns(trace, parse_terms(terms).cost(trace.K, 0, "stated"), plan)
    more = []
    rows = runs.rows()
    for rate in rates:
        latency = {
            row.policy: row.figures["latency_mean"].value for row in rows if row.rate == rate
        }
        own = latency.pop(schedule)
        more.append(own / min(latency.values()) - 1)
    assert max(more) < 1e-3
    assert f"up to {-100 * min(more):.1f}% less" in text
    assert "never 0.1% more" in text
