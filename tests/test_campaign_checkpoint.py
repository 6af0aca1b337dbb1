"""A campaign for a target that exists: its checkpoint is taken, and its drafters learn from it."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from chat_models import save_chat_model, write_rows
from safetensors.torch import load_file
from toy_campaign import APP, WORDS, write_inputs
from toy_gguf import write_gguf
from typer.testing import CliRunner

from real.campaign.__main__ import _with_minutes
from real.campaign.config import TOY_CHECKPOINT, training_of
from real.campaign.report import pack, write_report
from real.campaign.scheduler import advance
from real.campaign.stages import stages, store_small
from real.campaign.workspace import (
    CheckpointError,
    Workspace,
    WorkspaceError,
    check_checkpoint,
    checkpoint_name,
    take_checkpoint,
)
from real.files import read_card
from real.model.checkpoint import load_decoder
from real.model.stored_weights import sha256
from simspec import load_trace

ABLATIONS = tuple(name for name, *_ in TOY_CHECKPOINT.training.ablations)
PARTS = ("target", "distil", "drafter-model", "drafter-early_exit", "drafter-eagle", "predictors")
PARTS += tuple(f"drafter-{name}" for name in ABLATIONS)
EAGLE = tuple(
    f"{what}-eagle-{rule}" for what in ("cost", "record") for rule in ("greedy", "coupled")
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = write_inputs(tmp_path_factory.mktemp("checkpoint"))
    save_chat_model(folder / "toychat" / "target")
    turns = [{"task": "ab"[i % 2], "turns": [f"{WORDS[i % 13]} number {i}?"]} for i in range(40)]
    rows = [{"id": f"q{i}", **row} for i, row in enumerate(turns)]
    write_rows(folder / "first.jsonl", *rows[:8])
    write_rows(folder / "later.jsonl", *rows[8:])
    return folder


def workspace_of(inputs, out, checkpoint="toychat/target"):
    workspace = Workspace(
        out,
        TOY_CHECKPOINT,
        (inputs / "text.txt",),
        (inputs / "held.txt",),
        (inputs / "first.jsonl",),
        "cpu",
        checkpoint=inputs / checkpoint,
        training_prompts=(inputs / "later.jsonl",),
    )
    workspace.open()
    return workspace


@pytest.fixture(scope="module")
def done(inputs, few_replicates, short_predictors, bare_axes):
    """A workspace whose target is taken, with three drafters, and eagle recorded and run."""
    workspace = workspace_of(inputs, inputs / "out")
    names = (*PARTS, *EAGLE, "equal-eagle", "score-eagle")
    wanted = [part for part in stages(True, ABLATIONS) if part.name in names]
    states = advance(workspace, wanted, 3600, say=lambda *_: None)
    assert {state.state for state in states} == {"done"}, states
    return workspace


def test_the_target_is_the_checkpoint(inputs, done):
    source = inputs / "toychat" / "target" / "model.safetensors"
    assert done.target == sha256(source)
    assert done.result("target") == {"sha256": sha256(source)}
    assert not (done.work / "text.npy").exists()


def test_drafters_learn_from_what_the_target_writes(done):
    card = read_card(done.models / "eagle" / "card.json")
    assert card["asked"]["target"]["weights"] == done.known.data.made_for["weights"]
    assert card["asked"]["draft_vocab"] == TOY_CHECKPOINT.training.draft_vocab
    assert "later.jsonl" in json.dumps(card)
    assert "first.jsonl" not in json.dumps(card)


def test_an_ablation_learns_the_same_with_one_changed_setting(done):
    cards = [read_card(done.models / name / "card.json") for name in ("eagle", "eagle-token")]
    wanted = [card["asked"] for card in cards]
    assert [asked["settings"].pop("inputs") for asked in wanted][1] == "token"
    assert wanted[0]["settings"] == wanted[1]["settings"]
    assert wanted[0]["text"] == wanted[1]["text"]
    assert cards[0]["evaluation"]["trained"] != cards[1]["evaluation"]["trained"]


def test_a_drafter_is_scored_under_each_rule_on_shortened_texts(done):
    rows = done.result("score-eagle")["rows"]
    scored, budget = TOY_CHECKPOINT.scoring, TOY_CHECKPOINT.scoring.budget
    assert budget < TOY_CHECKPOINT.recording.budget
    for rule in ("greedy", "coupled"):
        mine = [row for row in rows if row["recording"] == f"toychat-eagle-{rule}"]
        assert {"plain", "beta_ts:acceptance"} < {row["policy"] for row in mine}
        assert all(0 < row["tokens"] <= budget * scored.prompts for row in mine)
    assert {row["recording"] for row in rows} == {f"toychat-eagle-{r}" for r in scored.rules}


def test_text_that_was_cut_short_is_all_that_later_calls_ask_for(inputs, tmp_path):
    """Writing ends after its seconds; a process that goes on reads what there is."""
    workspace = workspace_of(inputs, tmp_path / "out")
    config = replace(workspace.train_config, distil_tokens=1 << 20, distil_seconds=1e-9)
    workspace.__dict__["train_config"] = config
    wanted = [part for part in stages(True) if part.name in ("target", "distil")]
    assert {s.state for s in advance(workspace, wanted, 3600, say=lambda *_: None)} == {"done"}
    tokens = workspace.result("distil")["tokens"]
    assert 0 < tokens < 1 << 20
    shards = sorted((workspace.work / "sequences").glob("0*.safetensors"))
    again = workspace_of(inputs, tmp_path / "out")
    again.__dict__["train_config"] = replace(config, distil_seconds=0.0)
    assert again.known.sequences.new_tokens == tokens
    assert sorted((workspace.work / "sequences").glob("0*.safetensors")) == shards


def test_drafters_train_on_from_the_weights_of_an_earlier_campaign(inputs, done, tmp_path):
    """Those that it has a folder of; another start is another campaign."""
    begun = tmp_path / "begun"
    shutil.copytree(done.models / "eagle", begun / "eagle")
    workspace = replace(workspace_of(inputs, tmp_path / "a"), out=tmp_path / "b", start=begun)
    workspace.open()
    places = {each.place: each.start for each in workspace.train_config.drafters}
    assert places["eagle"] == begun / "eagle"
    assert {start for place, start in places.items() if place != "eagle"} == {None}
    names = ("target", "distil", "drafter-eagle")
    states = advance(
        workspace, [s for s in stages(True) if s.name in names], 3600, say=lambda *_: None
    )
    assert [state.state for state in states] == ["done"] * 3
    card = read_card(workspace.models / "eagle" / "card.json")
    assert card["asked"]["start"] == {"eagle": sha256(begun / "eagle" / "eagle.safetensors")}
    with pytest.raises(WorkspaceError, match="was started with start"):
        replace(workspace, start=None).open()


def test_drafters_are_recorded_as_they_can_be_carried(done):
    """A head in int8, a model in float16; a second call leaves both as they are."""
    for drafter, stored in (("eagle", "int8"), ("model", "float16")):
        folder = done.models / drafter
        card = read_card(folder / "card.json")
        assert card["stored"] == stored
        assert card["evaluation"]["K"] == 5
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        store_small(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    weights = load_file(done.models / "model" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float16}
    recorded = read_card(done.trace("eagle", "greedy").with_suffix(".json"))["drafter_sha256"]
    assert recorded == sha256(done.models / "eagle" / "eagle.safetensors")


def test_recordings_go_through_the_chat_template_and_equal_their_runs(done):
    trace = load_trace(done.trace("eagle", "greedy"))
    assert done.trace("eagle", "greedy").name == "toychat-eagle-greedy.parquet"
    tokenizer = done.pair("eagle", "float32").tokenizer
    first = trace.prompt[: trace.prompt_offset[1]].tolist()
    assert "<|assistant|>" in tokenizer.decode(first, skip_special_tokens=False)
    equal = done.result("equal-eagle")
    assert equal["rounds"] > 0
    assert equal["failures"] == 0


def test_an_unfinished_campaign_is_reported_and_packed(done, tmp_path):
    lines = write_report(done, [("target", "required", "done", "")])
    assert lines
    assert "bundle.tar" in [path.name for path in pack(done, tmp_path)]


def test_another_checkpoint_in_the_same_folder_is_refused(inputs, done):
    save_chat_model(inputs / "other" / "target", begin=False)
    (inputs / "other" / "target" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(WorkspaceError, match="was started with checkpoint"):
        workspace_of(inputs, done.out, "other/target")


def test_a_gguf_file_is_imported(tmp_path):
    write_gguf(tmp_path / "Toy-Model.gguf")
    assert checkpoint_name(tmp_path / "Toy-Model.gguf") == "toymodel"
    take_checkpoint(tmp_path / "Toy-Model.gguf", tmp_path / "target")
    assert load_decoder(tmp_path / "target").config.layers == 2
    take_checkpoint(tmp_path / "Toy-Model.gguf", tmp_path / "target")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path, missing):
    save_chat_model(tmp_path / "target")
    (tmp_path / "target" / missing).unlink()
    with pytest.raises(CheckpointError, match=f"holds no {missing}"):
        check_checkpoint(tmp_path / "target")


def test_minutes_are_of_each_drafter_or_of_one():
    training = replace(TOY_CHECKPOINT.training, plans=(("glide", (("rows", 5),)),))
    config = replace(TOY_CHECKPOINT, training=training)
    config = _with_minutes(config, ["eagle=4", "1.5", "eagle=3"])  # in any order
    plans = {each.place: each.plan for each in training_of(config, (), (), "cpu", 0).drafters}
    assert {name: plan.minutes for name, plan in plans.items()} == {
        name: 3 if name == "eagle" else 1.5 for name in plans
    }
    assert len(plans) > 5
    assert not any(plan.steps for plan in plans.values())
    assert {name: plan.rows for name, plan in plans.items() if plan.rows != 2} == {"glide": 5}
    assert _with_minutes(config, []) == config
    every = _with_minutes(config, ["2"]).training
    assert dict(every.plans) == {"glide": (("rows", 5),), "eagle": ()}


def test_the_command_refuses_what_cannot_be_in_one_line(inputs, tmp_path):
    options = ["--toy", "--device", "cpu", "--out", tmp_path / "out", "--limit", "1e-9"]
    options += ["--text", inputs / "text.txt", "--prompts", inputs / "first.jsonl"]
    for more, words in (
        (["--target", tmp_path], "holds no config.json"),
        (["--training-prompts", inputs / "later.jsonl"], "name it by --target"),
        (["--start", inputs], "--start is for a target that exists: name it by --target"),
        (["--target", inputs / "toychat/target", "--start", inputs], "no drafter to start from"),
        (["--minutes", "-1"], "--minutes is '-1'; expected minutes > 0 of each drafter, such as"),
        (["--minutes", "eagle=soon"], "--minutes is 'eagle=soon'; expected minutes > 0"),
        (["--minutes", "1", "--minutes", "elk=2"], "--minutes is 'elk=2'; expected minutes > 0"),
    ):
        result = CliRunner().invoke(APP, list(map(str, [*options, *more])))
        assert result.exit_code == 2
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
