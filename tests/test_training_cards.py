"""Cards of trained drafters beside recordings: the tokens that each learned."""

import json
from pathlib import Path

import pandas
import pytest
from documents import ROOT
from shell import run

from simspec import load_trace, synthetic
from simspec.reports.drafters import ALL, bundled_cards


@pytest.fixture
def files(tmp_path):
    for name, K in {"deep": 4, "flat": 2}.items():
        synthetic.iid(0.6, 12, 40, K, seed=K).save(tmp_path / f"{name}.parquet")
    return tmp_path


def test_bundled_recordings_have_their_cards(capsys):
    names = "tiny-model-coupled", "tiny-eagle-coupled", "tiny-self_skip-coupled"
    real = ROOT / "traces/smollm2/coupled/eagle.parquet"
    code, out, _ = run(capsys, "drafters", *names, real, "--cost", 0.1, "--json")
    learned = [row["learned"] for row in json.loads(out)["drafters"] if row["task"] == ALL]
    assert code == 0
    assert learned[2] is None  # a search learns no tokens
    cards = "real/tiny/model/card.json", "real/tiny/eagle/card.json"
    cards += ("traces/smollm2/drafters/eagle.json",)
    expected = [json.loads((ROOT / path).read_text())["tokens"] for path in cards]
    assert [learned[0], learned[1], learned[3]] == expected
    assert bundled_cards(Path("elsewhere.parquet")) is None


@pytest.mark.parametrize(("name", "plan"), [("early_exit", "exit_plan"), ("model", "model_plan")])
def test_cards_of_older_models_say_what_their_plan_says(name, plan):
    folder = ROOT / "real" / "tiny"
    card = json.loads((folder / name / "card.json").read_text())
    whole = json.loads((folder / "card.json").read_text())
    settings = whole["settings"][plan]
    assert card["steps"] == whole["steps"][name]
    assert card["tokens"] == card["steps"] * settings["rows"] * settings["length"]


def test_cards_tell_the_tokens_that_were_learned(files, capsys):
    deep, flat = files / "deep.parquet", files / "flat.parquet"
    drafter, cards = load_trace(deep).meta.drafter, files / "cards"
    (cards / "deep").mkdir(parents=True)
    (cards / "deep" / "card.json").write_text(json.dumps({"drafter": drafter, "tokens": 12345}))
    arguments = ("drafters", deep, flat, "--cost", 0.1, "--cards", cards)
    code, out, _ = run(capsys, *arguments, "--markdown")
    lines = out.splitlines()
    assert code == 0
    assert [line.split("|")[-2].strip() for line in lines] == [
        "tokens learned",
        "---",
        "12,345",
        "-",
    ]
    rows = json.loads(run(capsys, *arguments, "--json")[1])["drafters"]
    assert [row["learned"] for row in rows if row["task"] == ALL] == [12345, None]
    other = load_trace(flat).meta.drafter
    (cards / f"{other}.json").write_text(json.dumps({"drafter": other, "tokens": 7}))
    assert "tokens learned" in run(capsys, *arguments, "--csv", files / "t.csv")[1]
    assert pandas.read_csv(files / "t.csv").learned.iloc[-1] == 7
    for content, words in (
        ('{"drafter": "other"}', "drafter is 'other'"),
        (f'{{"drafter": "{drafter}", "tokens": "1"}}', "tokens is '1', expected a number"),
        ("[", "not a drafter's card"),
    ):
        (cards / "deep" / "card.json").write_text(content)
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert words in err
