"""The Markdown table of a race or a scorecard, for documents."""

import json
from dataclasses import asdict, replace

import pytest
from doctored_scorecard import PRICE, doctored_rows, slower
from race_clock import TASKS, timed
from shell import command, refused

from real.bench.race_rows import race_summary
from real.bench.saved import save_rows
from real.bench.scorecard import Prices


def table(out):
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if "|" in line
    ]


def test_race_is_printed_fastest_first_with_both_speedups(tmp_path):
    runs, rows = timed(
        ("plain", 0, 2), ("generate", 0, 4), ("assisted:constant", 0, 4, {"commits": 2})
    )
    about = {"prompts": 4, "repeats": 3, "device": "cpu"}
    report = race_summary(runs, rows, TASKS, about)
    (tmp_path / "r.json").write_text(json.dumps(report))
    code, out, _ = command(tmp_path, "measured-table", "r.json")
    headings, _, *lines = table(out)
    assert code == 0
    assert headings == [
        "contestant", "tokens/s", "times plain [95%]", "times own plain [95%]", "tokens a pass",
        "code", "math",
    ]  # fmt: skip
    assert lines == [
        ["plain", "0.5", "1.00", "1.00", "1.00", "1.00", "1.00"],
        ["assisted:constant", "0.5", "1.00", "2.00", "2.00", "1.00", "1.00"],
        ["generate", "0.2", "0.50", "1.00", "1.00", "0.50", "0.50"],
    ]
    assert "not published: 3 repeats" in out


def test_scorecard_is_printed_with_the_error_of_the_speedup_first(tmp_path):
    prices = Prices(PRICE, [PRICE] * 9, 9)
    rows = doctored_rows(slower(0, 1, 2, 3, by=2.0), prices=prices, prompts=9)[0]
    save_rows(tmp_path / "c.json", {}, {"t": rows})
    (tmp_path / "printed.json").write_text(json.dumps({"rows": [asdict(row) for row in rows]}))
    code, out, _ = command(tmp_path, "measured-table", "c.json")
    assert code == 0
    assert command(tmp_path, "measured-table", "printed.json")[1] == out
    headings, _, plain, policy = table(out)
    assert headings[:2] == ["policy", "speedup error [95%]"]
    assert plain[:4] == ["plain", "-", "1.00", "1.00"]
    assert policy[:2] == ["fixed:2", "+100.0% [+100.0%, +100.0%]"]
    assert policy[6:] == ["+100.0%", "+0.0%", *policy[8:]]


def test_several_scorecards_are_set_side_by_side(tmp_path):
    prices = Prices(PRICE, [PRICE] * 9, 9)
    rows = doctored_rows(slower(0, 1, 2, 3, by=2.0), prices=prices, prompts=9)[0]
    save_rows(tmp_path / "a.json", {}, {"t": rows})
    other = [replace(rows[-1], policy="cost_ts")]
    save_rows(tmp_path / "b.json", {}, {"t": other})
    code, out, _ = command(tmp_path, "measured-table", "a.json", "b.json")
    headings, _, *lines = table(out)
    assert code == 0
    assert headings == ["predicted, measured [95%]", "a", "b"]
    last = rows[-1]
    cell = f"{last.speedup:.2f}, {last.speedup_measured:.2f} "
    cell += f"[{last.measured_low:.2f}, {last.measured_high:.2f}]"
    assert lines == [[last.policy, cell, "-"], ["cost_ts", "-", cell]]
    (tmp_path / "r.json").write_text('{"rows": [{}], "raw": {}}')
    refused(tmp_path, "measured-table", "a.json", "r.json", words="r.json: not a scorecard")


def test_a_campaigns_scorecard_of_two_recordings_has_a_column_for_each(tmp_path):
    prices = Prices(PRICE, [PRICE] * 9, 9)
    rows = doctored_rows(slower(0, 1, 2, 3, by=2.0), prices=prices, prompts=9)[0]
    named = [replace(row, recording=name) for name in ("a", "b") for row in rows]
    for name, part in (("a", named[: len(rows)]), ("b", named[len(rows) :])):
        save_rows(tmp_path / f"{name}.json", {}, {"t": part})
    found = {"part": "score-toy", "found": {"rows": [asdict(row) for row in named]}}
    (tmp_path / "part.json").write_text(json.dumps(found))
    code, out, _ = command(tmp_path, "measured-table", "part.json")
    assert code == 0
    assert command(tmp_path, "measured-table", "a.json", "b.json")[1] == out


def test_phases_of_a_scorecard_sum_to_their_total(tmp_path):
    prices = Prices(PRICE, [PRICE] * 9, 9)
    rows = doctored_rows(slower(0, 1, 2, 3, by=2.0), prices=prices, prompts=9)[0]
    save_rows(tmp_path / "c.json", {}, {"t": rows})
    code, out, _ = command(tmp_path, "measured-table", "c.json", "--phases")
    headings, _, *lines = table(out)
    assert code == 0
    assert headings == [
        "policy", "drafting s", "verification s", "policy s", "others s", "total s"
    ]  # fmt: skip
    for row, (policy, *seconds, total) in zip(rows, lines, strict=True):
        assert policy == row.policy
        assert seconds == [f"{s:.2f}" for s in row.phases_measured]
        assert float(total) == pytest.approx(sum(row.phases_measured), abs=0.006)
    (tmp_path / "r.json").write_text('{"rows": [{}], "raw": {}}')
    refused(tmp_path, "measured-table", "r.json", "--phases", words="not a race or scorecard")


def test_other_files_are_refused_in_one_line(tmp_path):
    for text in ("[]", "{}", '{"rows": 5}', '{"rows": [{}]}', '{"raw": {}, "rows": [{}]}', "x"):
        (tmp_path / "o.json").write_text(text)
        refused(tmp_path, "measured-table", "o.json", words="o.json: not a race or scorecard")
