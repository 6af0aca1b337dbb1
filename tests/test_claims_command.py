"""simspec claims: cards, the command, and its page."""

import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
from documents import ROOT, TABLES, printed_by
from numba.core import config
from shell import simspec

from simspec import replay
from simspec.numerics.stats import ratio, ratio_difference
from simspec.papers.ablations import (
    exit_depth,
    features_or_tokens,
    layer_lengthens,
    layer_pays,
    second_layer_costs,
    self_distillation,
    shifted_tokens,
    target_cache,
    upper_layers,
)
from simspec.papers.card import find_cards, read_card
from simspec.papers.catalogue import CLAIMS
from simspec.papers.claim import BEGIN, END, REFERENCES, Inputs, renew
from simspec.papers.recorded import MEASURED, PRICES, Recordings, repeated_8grams
from simspec.policies.thompson import beta_ts
from simspec.trace.trace import Trace, load_trace

PAGE = ROOT / "docs" / "claims.md"
TINY = "3f3badec853498770317b723278334157ccfd0808eb8557b6d0c41f9f19ad5de"
FEW = ("--prompts", "12", "--replicates", "1")


def card(folder, name, drafter, length, blend=1.0, **settings):
    """A card as `simspec train` writes it; intervals of +-0.05."""
    asked = {"blend": blend, "drafter": drafter, "plan": {"steps": 100}, "settings": settings}
    accepted = {"value": length, "low": length - 0.05, "high": length + 0.05, "texts": 48}
    data = {
        "asked": asked | {"target": {"weights": TINY}},
        "drafter": drafter,
        "device": "cpu",
        "evaluation": {"K": 5, "trained": {"accepted_length": accepted}},
    }
    path = folder / "traces" / "drafters" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def by_sequence(path, accepted, drafts, repeated=0.1):
    """Gives a card its accepted lengths by sequence; the stated mean becomes theirs."""
    data = json.loads(path.read_text())
    evaluation = data["evaluation"]
    value = sum(accepted) / sum(drafts)
    evaluation["repeated_8grams"] = repeated
    evaluation["trained"] = {
        "accepted_length": {"value": value, "low": 0, "high": 5, "texts": len(drafts)},
        "by_sequence": {
            "accepted": accepted,
            "drafts": drafts,
            "tested": [min(5 * d, a + d) for a, d in zip(accepted, drafts)],
        },
    }
    path.write_text(json.dumps(data))


def recording(path, run=None):
    """Puts a recording beside a card: the lengths of the bundled early exit, or `run`."""
    trace = load_trace(ROOT / "traces" / "tiny-early_exit-coupled.parquet")
    meta = replace(trace.meta, features=(), predictors={}, tree=())
    run = trace.run if run is None else run
    lengths = Trace(trace.offset, trace.budget, trace.token, trace.depth, run, meta)
    lengths.save(path.with_suffix(".parquet"))
    return trace


def evidence(folder, test, price=MEASURED, recordings=None):
    return test(Inputs(Recordings(recordings), find_cards(folder)), price)


def effects(folder, test, **options):
    return [round(e.interval.value, 6) for e in evidence(folder, test, **options)]


def test_cards_of_one_changed_setting_are_compared(tmp_path):
    card(tmp_path, "a", "glide", 1.5, cross=True, reads=[9])
    card(tmp_path, "b", "glide", 1.2, cross=False, reads=[9])
    card(tmp_path, "c", "glide", 1.3, cross=True, reads=[4])
    (upper,) = evidence(tmp_path, upper_layers)
    assert upper.part == "accepted length reading layer [9] less layer [4]"
    assert upper.interval.value == pytest.approx(0.2)
    assert sorted(effects(tmp_path, target_cache)) == [0.1, 0.3]


def test_cards_are_paired_by_sequence(tmp_path):
    """Sequences differ far more than drafters do: only a paired interval sees the drafter."""
    generator = np.random.default_rng(0)
    drafts = generator.integers(20, 40, 40)
    worse = (generator.uniform(0.2, 4, 40) * drafts).astype(int)
    better = worse + generator.integers(1, 4, 40)
    for name, accepted, blend in (("a", better, 0.5), ("b", worse, 0.0)):
        path = card(tmp_path, name, "early_exit", 1.0, blend=blend, depth=1)
        by_sequence(path, accepted.tolist(), drafts.tolist())
    (paired,) = evidence(tmp_path, self_distillation)
    expected = ratio_difference(better, drafts, worse, drafts, resamples=2000)
    assert paired.interval.value == pytest.approx(expected.value)
    assert paired.interval.low == pytest.approx(expected.low, abs=1e-9)
    assert paired.inside < 1e-6
    # the control: without figures by sequence the same cards show nothing
    for name, accepted in (("a", better), ("b", worse)):
        path = tmp_path / "traces" / "drafters" / f"{name}.json"
        data = json.loads(path.read_text())
        own = ratio(accepted, drafts)
        data["evaluation"]["trained"] = {
            "accepted_length": {"value": own.value, "low": own.low, "high": own.high, "texts": 40}
        }
        path.write_text(json.dumps(data))
    (alone,) = evidence(tmp_path, self_distillation)
    assert alone.interval.value == pytest.approx(expected.value)
    assert alone.inside > 0.05


def test_repetitive_texts_are_shown_and_do_not_count(tmp_path):
    for name, blend, accepted in (("a", 0.5, 30), ("b", 0.0, 20)):
        path = card(tmp_path, name, "early_exit", 1.0, blend=blend, depth=1)
        by_sequence(path, [accepted + i for i in range(12)], [20] * 12, repeated=0.3)
    (found,) = evidence(tmp_path, self_distillation)
    assert not found.source.counted


@pytest.mark.parametrize(
    ("accepted", "reason"),
    [([-1] + [20] * 11, "accepts less than 0"), ([200] * 12, "accepts less than 0, or more")],
)
def test_sums_that_cannot_be_are_refused(tmp_path, accepted, reason):
    path = card(tmp_path, "a", "eagle", 1.0)
    by_sequence(path, [20] * 12, [20] * 12)
    data = json.loads(path.read_text())
    data["evaluation"]["trained"]["by_sequence"]["accepted"] = accepted
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=reason):
        read_card(path, "a")


def test_sums_of_another_mean_are_refused(tmp_path):
    path = card(tmp_path, "a", "eagle", 1.0)
    by_sequence(path, [20] * 12, [20] * 12)
    data = json.loads(path.read_text())
    data["evaluation"]["trained"]["accepted_length"]["value"] = 1.1
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="does not give the accepted length 1.1"):
        read_card(path, "a")


def test_control_cards_of_another_budget_are_not_compared(tmp_path):
    card(tmp_path, "a", "early_exit", 1.5, blend=1.0, depth=1)
    path = card(tmp_path, "b", "early_exit", 1.2, blend=0.0, depth=1)
    assert effects(tmp_path, self_distillation) == [0.3]
    data = json.loads(path.read_text())
    data["asked"]["plan"]["steps"] = 200
    path.write_text(json.dumps(data))
    assert effects(tmp_path, self_distillation) == []


def test_each_training_seed_is_compared_with_itself_and_named(tmp_path):
    lengths = {"a": (1.5, 1.0, 0), "b": (1.2, 0.0, 0), "c": (1.4, 1.0, 1), "d": (1.3, 0.0, 1)}
    for name, (length, blend, seed) in lengths.items():
        path = card(tmp_path, name, "early_exit", length, blend=blend, depth=1)
        data = json.loads(path.read_text())
        data["asked"]["plan"]["seed"] = seed
        path.write_text(json.dumps(data))
    found = {e.source.name: e.interval.value for e in evidence(tmp_path, self_distillation)}
    assert found == {
        "a / b: held-out text": pytest.approx(0.3),
        "c (seed 1) / d (seed 1): held-out text": pytest.approx(0.1),
    }


def test_layers_behind_the_exit_are_compared_by_length_and_by_speed(tmp_path):
    for layers, length in ((0, 0.5), (1, 1.5), (2, 1.55)):
        path = card(tmp_path, f"l{layers}", "early_exit", length, depth=1, layers=layers)
        recording(path)
    tests = layer_lengthens, layer_pays, second_layer_costs
    parts = [evidence(tmp_path, test, PRICES[2], ROOT / "traces") for test in tests]
    values = {e.part: e.interval.value for part in parts for e in part}
    assert [len(part) for part in parts] == [1, 1, 1]
    assert values["accepted length with the layer less without"] == pytest.approx(1.0)
    # equal drafts: three layers a token instead of two, verification one plain step
    trace = load_trace(ROOT / "traces" / "tiny-early_exit-coupled.parquet")
    rounds = [replay(trace, beta_ts(K=10), seed) for seed in range(4)]
    one, two, three = (
        sum(len(r) + c * r.computed.sum() for r in rounds) for c in (0.05, 0.1, 0.15)
    )
    for part, expected in (("no layer over one", one), ("two layers over one", three)):
        value = values[f"time of {part} under Beta-TS, less 1"]
        assert value == pytest.approx(expected / two - 1)


def test_depth_is_compared_in_shares_of_the_target(tmp_path):
    for depth, length in ((1, 1.4), (3, 1.5), (4, 1.5)):
        recording(card(tmp_path, f"n{depth}", "early_exit", length, depth=depth, layers=1))
    found = evidence(tmp_path, exit_depth, PRICES[1], ROOT / "traces")
    assert {e.part for e in found} == {
        "time of N=3 over N=1 under Beta-TS, less 1",
        "time of N=4 over N=1 under Beta-TS, less 1",
    }
    assert all(e.source.counted for e in found)


def test_recordings_of_other_sequences_are_not_compared(tmp_path):
    recording(card(tmp_path, "n1", "early_exit", 1.4, depth=1, layers=1))
    path = card(tmp_path, "n3", "early_exit", 1.5, depth=3, layers=1)
    trace = recording(path)
    other = trace.select(np.arange(60))
    meta = replace(other.meta, features=(), predictors={}, tree=())
    Trace(other.offset, other.budget, other.token, other.depth, other.run, meta).save(
        path.with_suffix(".parquet")
    )
    assert evidence(tmp_path, exit_depth, PRICES[1], ROOT / "traces") == []


def test_inputs_of_eagle_need_all_cards(tmp_path):
    lengths = {"token": 0.8, "feature": 1.0, "feature&unshifted_token": 1.1}
    for i, (inputs, length) in enumerate(lengths.items()):
        card(tmp_path, str(i), "eagle", length, inputs=inputs)
    assert (effects(tmp_path, features_or_tokens), effects(tmp_path, shifted_tokens)) == ([0.2], [])
    card(tmp_path, "3", "eagle", 1.6, inputs="feature&shifted_token")
    assert effects(tmp_path, features_or_tokens) == [0.2]
    assert effects(tmp_path, shifted_tokens) == [pytest.approx(0.4)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not a drafter's card"),
        ('{"asked": {}, "evaluation": {}}', "lacks 'trained'"),
        (
            '{"asked": {}, "drafter": "x", "evaluation": {"K": 5, "trained": {"accepted_length": '
            '{"value": 9, "low": 8, "high": 10, "texts": 48}}}}',
            "expected 0 <= low",
        ),
    ],
)
def test_damaged_cards_are_refused_in_one_line(tmp_path, text, reason):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as error:
        read_card(path, "c")
    assert "\n" not in str(error.value)


def test_files_that_are_no_cards_are_left_out(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"search": {}}')
    assert read_card(path, "c") is None


def test_cards_of_this_repository_are_read():
    names = {c.name for c in find_cards(ROOT)}
    assert "traces/smollm2/drafters/eagle.json" in names
    assert "traces/smollm2/drafters/self_skip.json" not in names
    assert "real/tiny/glide/card.json" in names


def test_repetition_is_that_of_the_data_card():
    path = ROOT / "traces" / "tiny-medusa-greedy"
    stated = json.loads(path.with_suffix(".json").read_text())["repeated_8grams"]
    assert repeated_8grams(load_trace(path.with_suffix(".parquet"))) == pytest.approx(
        stated, abs=1e-4
    )


def test_every_verdict_has_figures_intervals_and_a_device(tmp_path):
    numbers = ("--claim", "9", "--claim", "12", "--claim", "16")
    out, _ = simspec("claims", ROOT / "traces", *numbers, *FEW, "--json", cwd=tmp_path)
    report = json.loads(out)
    assert report["false_alarm"] == 0.05
    assert "draw of prompts" in report["covered"]
    assert report["family"] == 3
    by_number = {c["number"]: c["verdicts"][0] for c in report["claims"]}
    compared = {e["recording"] for e in by_number[9]["evidence"]}
    assert {name.split(":")[0] for name in compared} == {
        "early_exit-n1-x1 / early_exit-text",
        "early_exit-n1-x1 (seed 1) / early_exit-text (seed 1)",
    }
    for piece in by_number[12]["evidence"] + by_number[16]["evidence"]:
        assert piece["effect"]["low"] <= piece["effect"]["value"] <= piece["effect"]["high"]
        assert piece["prompts"] == 12
        assert "cpu" in piece["device"]
    excluded = {e["recording"]: e["excluded"] for e in by_number[12]["evidence"]}
    assert excluded["tiny-glide-greedy"] == "repetitive"
    assert by_number[12]["inside"][1] == sum(not reason for reason in excluded.values())


def test_prices_are_all_of_the_papers(tmp_path):
    out, _ = simspec("claims", ROOT / "traces", "--claim", "5", *FEW, "--json", cwd=tmp_path)
    parts = json.loads(out)["claims"]
    assert [(c["number"], c["part"]) for c in parts] == [(5, "a"), (5, "b")]
    for part in parts:
        assert [v["price"] for v in part["verdicts"]] == [price.name for price in PRICES]


def test_a_seed_repeats_itself(tmp_path):
    words = ("claims", ROOT / "traces", "--claim", "5", *FEW, "--json", "--seed", "3")
    assert simspec(*words, cwd=tmp_path) == simspec(*words, cwd=tmp_path)


def test_a_folder_without_recordings_leaves_all_undecided(tmp_path):
    (tmp_path / "traces").mkdir()
    out, _ = simspec("claims", tmp_path / "traces", "--json", cwd=tmp_path)
    verdicts = [v for c in json.loads(out)["claims"] for v in c["verdicts"]]
    assert {v["verdict"] for v in verdicts} == {"undecided"}
    assert {v["reason"] for v in verdicts} == {"no recording", "no card"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--claim", "99"), f"there is no claim 99: expected 1 to {max(c.number for c in CLAIMS)}"),
        (("--prompts", "7"), "--prompts is 7, expected at least 8"),
        (("--replicates", "0"), "replicates is 0, expected at least 1"),
        (("nowhere",), "nowhere is no folder"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, words, reason):
    _, error = simspec("claims", *words, cwd=tmp_path, code=2)
    assert reason in error
    assert error.count("\n") == 1


def test_a_page_without_its_markers_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n")
    with pytest.raises(ValueError, match="has no place for the tables"):
        renew(page, "x")
    assert page.read_text() == "# A page\n"


def test_renewal_keeps_what_is_outside_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    renew(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


@pytest.mark.skipif(config.DISABLE_JIT, reason="half a minute compiled, hours interpreted")
@pytest.mark.docs
def test_the_page_is_what_is_printed_today():
    text = PAGE.read_text(encoding="utf-8")
    (block,) = TABLES["BLOCK"].finditer(text)
    printed = printed_by(*shlex.split(block[2]))
    assert TABLES["snapshot"](block, printed) == block[5].strip()
    (counted,) = re.findall(r"^\d+ claims are .*$", text, re.M)
    assert counted in printed.splitlines()[0]


@pytest.mark.docs
def test_changed_verdicts_are_those_of_the_table():
    page = PAGE.read_text(encoding="utf-8")
    table, _, below = page.partition("**Verdicts that changed**")
    changed = below.partition("## ")[0]
    rows = re.findall(r"^\| (\d+[a-c]?) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", changed, re.M)
    assert len(rows) >= 5
    for label, before, today, prices in rows:
        (cells,) = re.findall(rf"^\| {label} \| [^|]+ \| [^|]+ \| (.*) \|$", table, re.M)
        columns = dict(zip(("measured", "flat", "rows"), cells.split("|"), strict=True))
        for group in (name for name in columns if name in prices):
            shown = re.sub(r" \(.*", "", columns[group].strip()).split(" / ")
            ratios = re.findall(r"\.\d\d", prices) or [".05"]
            assert {shown[(".05", ".10", ".15").index(c) % len(shown)] for c in ratios} == {today}
        assert before != today


@pytest.mark.docs
def test_the_page_has_a_verdict_on_every_claim():
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+[a-c]?) \| [^|]+ \| [^|]+ \| ([^|]+) \|", page, re.M)
    words = "held", "by construction", "did not hold", "undecided"
    assert [label for label, word in rows if word.startswith(words)] == [
        claim.label for paper in REFERENCES for claim in CLAIMS if claim.paper == paper
    ]
