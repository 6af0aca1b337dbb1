"""Cards of trained drafters beside recordings: the tokens that each learned."""

import json
from pathlib import Path

import pytest
from documents import ROOT
from shell import run

from simspec.reports.drafters import bundled_cards, tokens_learned


def test_bundled_recordings_have_their_cards(capsys):
    names = "tiny-model-coupled", "tiny-eagle-coupled", "tiny-self_skip-coupled"
    real = ROOT / "traces/smollm2/coupled/eagle.parquet"
    code, out, _ = run(
        capsys, "sweep", "--report", "drafters", *names, real, "--cost", 0.1, "--json"
    )
    learned = [row["learned"] for row in json.loads(out)["rows"]]
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


def test_cards_tell_the_tokens_that_were_learned(tmp_path):
    (tmp_path / "deep").mkdir()
    card = tmp_path / "deep" / "card.json"
    card.write_text(json.dumps({"drafter": "eagle", "tokens": 12345}))
    assert tokens_learned(tmp_path, "a/deep.parquet", "eagle") == 12345
    assert tokens_learned(tmp_path, "a/flat.parquet", "eagle") is None
    (tmp_path / "eagle.json").write_text(json.dumps({"drafter": "eagle", "tokens": 7}))
    assert tokens_learned(tmp_path, "a/flat.parquet", "eagle") == 7
    for content, words in (
        ('{"drafter": "other"}', "drafter is 'other'"),
        ('{"drafter": "eagle", "tokens": "1"}', "tokens is '1', expected a number"),
        ("[", "not a drafter's card"),
    ):
        card.write_text(content)
        with pytest.raises(ValueError, match=words):
            tokens_learned(tmp_path, "a/deep.parquet", "eagle")
