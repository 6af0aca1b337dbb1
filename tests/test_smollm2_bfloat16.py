"""SmolLM2 in bfloat16: races, their page, and what float32 recordings predict of them."""

import json
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "traces" / "smollm2" / "measured"


def told():
    return " ".join((ROOT / "docs" / "smollm2.md").read_text(encoding="utf-8").split())


def race(name):
    """(report of a race that is fit to publish, its rows over all prompts by contestant)."""
    report = json.loads((MEASURED / name).read_text())
    assert report["measurement"]
    assert report["impossible"] == []
    rows = {row["contestant"]: row for row in report["rows"] if row["group"] == "all"}
    return report, {name.removeprefix("eagle="): row for name, row in rows.items()}


def gain(row):
    return f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def test_race_in_bfloat16_is_measured_and_told():
    """Of the same prompts as the other races; EAGLE's chain surely gains, and texts differ."""
    report, rows = race("race_engines.json")
    assert report["recommended"] == "eagle=fixed:3"
    assert (report["dtype"], report["ids"]) == ("bfloat16", race("race_eagle.json")[0]["ids"])
    rates = [f"{rows[name]['rate']:.1f}" for name in ("generate", "plain")]
    lookup, two, three, confident, tree = (
        gain(rows[name])
        for name in ("prompt_lookup=fixed:2", "fixed:2", "fixed:3", "confidence:0.4", "static:2x1")
    )
    equal = sorted(row["equal"] for row in rows.values() if row["drafts"])
    assert (
        f"`generate` {rates[0]} tokens/s, plain {rates[1]}, `prompt_lookup=fixed:2` {lookup} times "
        f"plain, `eagle=fixed:2` {two}, `fixed:3` {three}, `confidence:0.4` {confident}, "
        f"`static:2x1` {tree}, a deeper tree {rows['static:2x1x1']['speedup']:.2f}; {equal[0]} to "
        f"{equal[-1]} of {report['prompts']} texts are plain's."
    ) in told()


def test_race_of_whole_texts_is_told():
    """At 128 tokens, as recorded, the prompt's pass weighs half as much."""
    report, rows = race("race_long.json")
    short, _ = race("race_engines.json")
    assert (report["dtype"], report["ids"], report["budget"]) == ("bfloat16", short["ids"], 0)
    assert (
        f"Of 128 tokens ([race](../traces/smollm2/measured/race_long.json)) `fixed:3` gains "
        f"{gain(rows['fixed:3'])}, `fixed:4` {gain(rows['fixed:4'])}, `confidence:0.4` "
        f"{gain(rows['confidence:0.4'])}."
    ) in told()
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"fixed:3 gained {rows['fixed:3']['speedup']:.2f}." in readme


def test_recordings_in_float32_predict_bfloat16():
    """Of EAGLE, greedy and sampled; tokens a round differ, since near-ties fall otherwise."""
    greedy, sampled = (
        json.loads((MEASURED / f"bfloat16-eagle-{rule}.json").read_text())
        for rule in ("greedy", "coupled")
    )
    assert greedy["measurement"]
    assert sampled["measurement"]
    assert (greedy["good"], sampled["good"]) == (True, False)  # sampled texts accept more there
    assert greedy["dtype"] == sampled["dtype"] == "bfloat16"
    words = []
    for report, rule in ((greedy, "greedy"), (sampled, "sampled")):
        found = [abs(row["error"]) for row in report["rows"] if row["error"] is not None]
        words.append(f"{median(found):.1%} ([{rule}]")
    rows = [row for report in (greedy, sampled) for row in report["rows"]]
    assert len(rows) == 8 + 2  # with plain decoding in both
    apart = [abs(row["tau_measured"] / row["tau"] - 1) for row in rows]
    fixed = [row["policy"] in ("plain", "fixed:2") for row in greedy["rows"]]
    assert max(gap for gap, kept in zip(apart, fixed) if kept) < 0.03
    words.append(f"; rounds commit up to {max(apart):.1%} other than replayed.")
    best, other = (
        next(row for row in report["rows"] if row["policy"] == policy)
        for report, policy in ((greedy, "confidence:0.4"), (sampled, "fixed:2"))
    )
    figures = [
        f"{row['speedup']:.2f}, {row['speedup_measured']:.2f} "
        f"[{row['measured_low']:.2f}, {row['measured_high']:.2f}]"
        for row in (best, other)
    ]
    words.append(f"`confidence:0.4` {figures[0]}, sampled `fixed:2` {figures[1]};")
    assert all(part in told() for part in words)
