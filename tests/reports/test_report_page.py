"""simspec report: a page that stands alone, and a recommendation that follows from its figures."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from pages import Document, faults_of
from shell import command
from strategies import joined

from simspec import CostModel, replay, synthetic
from simspec.policies import fixed
from simspec.reports.comparison import Question
from simspec.reports.page import all_figures, engine_lines, figures_of, page_of, recommend

QUICK = Question(resamples=199)
CHEAP, DEAR = CostModel.from_ratio(0.05, 6), CostModel.from_ratio(3.0, 6)


def recording(drafter="eagle", rate=0.7, **meta):
    trace = synthetic.iid(rate, 12, 60, 6)
    return replace(trace, meta=replace(trace.meta, drafter=drafter, **meta))


def report(traces, policies, jobs=1):
    return page_of(list(all_figures(traces, CHEAP, policies, 1, QUICK, jobs)), QUICK)


@pytest.fixture(scope="module")
def html():
    traces = {"a.parquet": recording(), "b.parquet": recording("model", 0.5)}
    return report(traces, ("beta_ts", "fixed:3"))


def test_page_fits_a_phone_and_a_dark_screen(html):
    assert faults_of(html) == []


BROKEN = [
    ("--quiet: #6b7480", "--quiet: #8b94a0", "quiet on paper: 3.0"),
    ("--second: #f0965a", "--second: #804020", "second on paper"),
    ('<div class="scroll"', "<div", "outside a box"),
    ("</main>", "", "closes another element"),
    ("initial-scale=1", "initial-scale=2", "is missing"),
    ("minmax(min(310px, 100%), 1fr)", "minmax(410px, 1fr)", "wider than a phone"),
    ("svg { width: 100%", "svg { width: 500px", "width: 500px is fixed"),
    ("overflow-wrap: break-word", "", "a long name"),
    ("<main>", '<main><img src="https://example.com/a.png">', "https://"),
]


@pytest.mark.parametrize(("old", "new", "said"), BROKEN)
def test_control_a_broken_page_is_found(html, old, new, said):
    assert old in html
    assert any(said in fault for fault in faults_of(html.replace(old, new)))


def test_a_table_wider_than_a_phone_says_that_it_scrolls(html):
    drafters, shares = re.findall(r'<div class="scroll"([^>]*)><table>', html)[:2]
    assert ["data-wide" in box for box in (drafters, shares)] == [True, False]
    assert re.search(r'\[data-wide\]::before \{ content: "Swipe the table', html)


def test_page_needs_nothing_from_outside(html):
    page = Document(html)
    assert all(reference.startswith(("#", "data:")) for reference in page.references)
    assert "script" not in page.tags
    assert "@import" not in html
    left = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.findall(r"https?://|url\((?!#)", left)


def test_ids_are_unique_and_inner_references_have_their_element(html):
    page = Document(html)
    assert len(page.ids) == len(set(page.ids))
    wanted = {r[1:] for r in page.references if r.startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", html))
    assert wanted
    assert wanted <= set(page.ids)


def test_charts_have_no_color_of_their_own(html):
    charts = "".join(re.findall(r"<svg.*?</svg>", html, re.S))
    assert re.findall(r"#[0-9a-f]{6}\b", charts) == []
    assert "var(--ink)" in charts
    assert charts.count("<svg") == Document(html).tags.count("figure")
    assert not re.search(r"<svg[^>]* width=", charts)


def test_recommendation_comes_first_and_names_the_fastest(html):
    text = " ".join(Document(html).text)
    sentence = re.search(r"Draft (\d) tokens? with (\w+)", text)
    assert sentence[2] == "eagle"
    assert text.index(sentence[0]) < text.index("Drafters")
    own = figures_of("a.parquet", recording(), CHEAP, ("beta_ts",), 1, QUICK)
    assert int(sentence[1]) == own.best_k


def test_figures_agree_with_each_other():
    asked = replace(QUICK, level=0.8)
    found = figures_of("t", recording(), CHEAP, ("beta_ts", "fixed:2"), 1, asked)
    assert {speedup.level for speedup in (found.oracle, found.best, *found.curve)} == {0.8}
    values = [speedup.value for speedup in found.curve]
    times = [CHEAP.seconds(replay(found.trace, fixed(k), cost=CHEAP)).sum() for k in range(7)]
    assert values == pytest.approx([found.trace.rows / time for time in times])
    assert found.best.value >= 0.99 * max(values)
    assert found.oracle.value >= max(values) - 1e-12
    assert [why.name for why in found.whys] == ["K = 0", f"K = {found.best_k}", *found.policies]
    assert found.whys[1].speedup == pytest.approx(found.best.value)
    assert np.nanmean(found.acceptance) == pytest.approx(0.7, abs=0.1)
    assert found.calibration is None


def test_dear_drafts_are_not_recommended():
    found = figures_of("t", recording(), DEAR, ("beta_ts",), 1, QUICK)
    assert not found.pays
    assert engine_lines(found) == {}
    (advice,) = recommend([found], QUICK)
    assert advice.sentence.startswith("Do not draft")
    assert "The best draft length is K = 1 of eagle, at 0." in advice.sentence
    assert "K = 1 takes 3.96 plain steps for 1.70 tokens" in found.whys[1].sentence


def test_a_policy_is_recommended_only_where_it_is_clearly_faster():
    """Half of the prompts accept nearly all, half hardly any: a policy that adapts knows which."""
    easy, hard = recording(rate=0.99), recording(rate=0.02)
    mixed = joined(easy, hard)
    cost = CostModel.from_ratio(0.3, 6)
    (advice,) = recommend([figures_of("t", mixed, cost, ("cost_ts",), 2, QUICK)], QUICK)
    assert advice.gain is not None
    assert advice.sentence.startswith("Draft with eagle under cost_ts")
    (advice,) = recommend(
        [figures_of("t", mixed, CostModel.from_ratio(0.1, 6), ("cost_ts",), 2, QUICK)], QUICK
    )
    assert "cost_ts adds" in advice.sentence
    (plain,) = recommend([figures_of("t", easy, CHEAP, ("fixed:6", "beta_ts"), 2, QUICK)], QUICK)
    assert plain.gain is None


def test_engine_lines_hold_the_recommended_length():
    found = figures_of("t", recording(), CHEAP, ("beta_ts",), 1, QUICK)
    lines = engine_lines(found)
    assert f'"num_speculative_tokens": {found.best_k}' in lines["vllm"]
    assert f"--speculative-num-steps {found.best_k}" in lines["sglang"]
    assert engine_lines(figures_of("t", recording("hydra"), CHEAP, ("beta_ts",), 1, QUICK)) == {}


def test_different_rules_get_their_own_recommendation():
    greedy, sampled = recording(rule="greedy"), recording(rule="coupled", temperature=0.8)
    figures = [
        figures_of(n, t, CHEAP, ("beta_ts",), 1, QUICK) for n, t in (("g", greedy), ("s", sampled))
    ]
    assert [r.key[1] for r in recommend(figures, QUICK)] == ["greedy", "coupled"]


def test_command_writes_a_page_and_keeps_recordings(tmp_path):
    recording().save(tmp_path / "t.parquet")
    given = ("report", "t.parquet", "--cost", "0.1", "--policy", "beta_ts", "--replicates", "1")
    code, out, error = command(tmp_path, *given, "--out", "r.html")
    assert code == 0, error
    assert out.startswith("wrote r.html: 1 recording,")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    (table,) = json.loads(command(tmp_path, *given, "--out", "r.html", "--json")[1])["tables"]
    assert table["notes"][0] in " ".join(Document((tmp_path / "r.html").read_text()).text)
    before = (tmp_path / "t.parquet").read_bytes()
    code, _, error = command(tmp_path, *given, "--out", "t.parquet")
    assert code != 0
    assert "t.parquet" in error
    assert (tmp_path / "t.parquet").read_bytes() == before


def test_processes_write_the_same_page():
    traces = {"a.parquet": recording(), "b.parquet": recording("model", 0.5)}
    one, two = (report(traces, ("beta_ts",), jobs) for jobs in (1, 2))
    assert one == two
