"""A second target, of another architecture with another tokenizer, goes the whole road."""

import json

import pytest
import torch
from shell import command, refused
from toy_checkpoint import prompt_file, qwen2_checkpoint, sentences

from real.pair import load_pair
from real.provenance import multiplies_bfloat16
from simspec import load_trace

pytestmark = pytest.mark.usefixtures("few_replicates", "any_seconds")
LENGTH = ("--steps", "6", "--rows", "2", "--distil-tokens", "1500")
SIZES = tuple(word for item in ("width=8", "layers=1", "heads=1", "head_dim=8", "hidden=16")
              for word in ("--set", item))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Qwen2 in target/, and prompts to train and to evaluate on."""
    path = tmp_path_factory.mktemp("any")
    qwen2_checkpoint(path / "qwen")
    prompt_file(path / "train.jsonl", 48)
    prompt_file(path / "test.jsonl", 8, seed=9)
    return path


def done(folder, *arguments):
    code, out, error = command(folder, *arguments)
    assert code == 0, error
    return out


def trained(folder, name, *options):
    given = ("--target", "qwen", "--prompts", "train.jsonl", "--out", "models", *LENGTH)
    small = SIZES if name == "model" else ()
    return json.loads(done(folder, "train", name, *given, *small, *options, "--json"))


@pytest.mark.parametrize("name, options", [("eagle", ("--draft-vocab", "16")), ("medusa", ())])
def test_train_record_measure_sweep_run(folder, name, options):
    card = trained(folder, name, *options)
    assert card["steps"] == 6
    assert card["text"]["prompt_files"].keys() == {"train.jsonl"}
    assert card["text"]["features"] == ("bfloat16" if multiplies_bfloat16("cpu") else "float32")
    assert card["evaluation"].keys() >= {"trained", "untrained", "trigram", "beats_untrained"}
    assert card["evaluation"]["texts"] > 2
    assert card["asked"]["target"].keys() == {"weights", "config", "tokenizer"}
    assert ("draft_vocabulary" in card) == bool(options)
    pair = load_pair(folder / "models", name, target=folder / "qwen")
    assert pair.end_tokens == (2, 3)
    models = ("--models", "models", "--target", "qwen")
    recording, cost = f"{name}.parquet", f"{name}.cost.json"
    given = ("--drafter", name, "--depth", "4", "--budget", "16")
    done(folder, "record", "test.jsonl", "--out", recording, *models, *given)
    trace = load_trace(folder / recording)
    assert trace.rows > 20
    assert trace.meta.end_tokens == (2, 3)
    sizes = ("--depth", "4", "--seconds", "0")
    done(folder, "measure", "--drafter", name, "--out", cost, *models, *sizes)
    table = json.loads(
        done(folder, "sweep", recording, "--cost", cost, "--policy", "fixed:2", "--json")
    )
    assert table
    for engine, priced in (("eager", ("--cost", cost)), ("fast", ("--threads", "1"))):
        options = ("--policy", "fixed:2", *priced, "--engine", engine, "--json")
        report = json.loads(done(folder, "run", recording, *models, *options))
        assert report["lossless"]
        assert report["replay_equal"]


def test_a_trained_drafter_takes_a_draft_vocabulary(folder):
    """FR-Spec: the weights stay, the head keeps N rows."""
    models = folder / "models"
    trained(folder, "hydra", "--name", "whole")
    before = load_pair(models, "hydra", target=folder / "qwen", weights=models / "whole")
    given = ("--target", "qwen", "--out", "models", "--distil-tokens", "1500", "--json")
    cut = ("--from", "whole", "--steps", "0", "--draft-vocab", "20", "--name", "cut")
    card = json.loads(done(folder, "train", "hydra", *given, *cut))
    assert card["steps"] == 0
    assert card["asked"]["start"].keys() == {"whole"}
    assert card["draft_vocabulary"]["tokens"] == 20
    after = load_pair(models, "hydra", target=folder / "qwen", weights=models / "cut")
    for name, weights in after.drafter.head.state_dict().items():
        assert torch.equal(weights, before.drafter.head.state_dict()[name])
    assert len(after.drafter.head.draft_token) == 20
    again = ("--from", "cut", "--steps", "0", "--name", "again")
    words = "--from cut drafts from a part of the vocabulary; say which part now: --draft-vocab N"
    refused(folder, "train", "hydra", *given, *again, words=words, progress=True)
    odd = ("--from", "whole", "--steps", "0", "--name", "odd", "--set", "blocks=1")
    words = "--from whole has other settings; repeat its --set options"
    refused(folder, "train", "hydra", *given, *odd, words=words, progress=True)


def test_search_and_predictors(folder, short_predictors):
    card = trained(folder, "self_skip", "--set", "trials=4")
    assert card["search"]["texts"] > 2
    assert card["text"]["prompts"] > 8
    trained(folder, "early_exit", "--name", "exit", "--set", "layers=0")
    few = ("--set", "texts=3", "--set", "rank=2")
    cards = trained(folder, "predictors", *few)["predictors"]
    assert cards["exit"].keys() == {"theta", "theta_low_rank"}
    weights = folder / "models" / "exit"
    pair = load_pair(folder / "models", "early_exit", target=folder / "qwen", weights=weights)
    assert set(pair.drafter.predictors) == {"theta", "theta_low_rank"}


def test_text_is_cut_into_prompts_and_later_calls_need_none(folder):
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text" / "a.txt").write_text(" ".join(sentences(400, 3)))
    given = ("--target", "qwen", "--out", "other", *LENGTH, "--json")
    first = json.loads(done(folder, "train", "medusa", "text", *given))
    assert first["text"]["text_files"].keys() == {"a.txt"}
    assert first["text"]["prompt_files"] == {}
    second = json.loads(done(folder, "train", "eagle", *given))
    assert second["text"]["prompts_sha256"] == first["text"]["prompts_sha256"]
    arguments = ("train", "hydra", "--prompts", "train.jsonl", "--target", "qwen", "--out", "other")
    refused(folder, *arguments, *LENGTH, words="choose another --work", progress=True)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("eagle", "--target", "nothing"), "nothing"),
        (("eagle", "--target", "qwen"), "no prompts and no text are given"),
        (("eagle", "absent.txt", "--target", "qwen"), "absent.txt does not exist"),
        (("eagel", "--target", "qwen"), "did you mean eagle?"),
        (("prompt_lookup", "--target", "qwen"), "prompt_lookup has nothing to learn"),
        (
            ("self_skip", "text", "--target", "qwen", "--draft-vocab", "9"),
            "leave out --draft-vocab",
        ),
        (("self_skip", "text", "--target", "qwen", "--rate", "0.1"), "leave out --rate"),
        (
            ("predictors", "--set", "texts=0", "--prompts", "train.jsonl", "--target", "qwen"),
            "expected whole numbers",
        ),
        (("eagle", "text", "--device", "gpu"), "device 'gpu' is unknown"),
        (("eagle", "text", "--device", "cuda:99"), "device 'cuda:99' asked for"),
    ],
)
def test_unfit_requests_are_refused(folder, tmp_path, arguments, words, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no name is looked up
    (folder / "text").mkdir(exist_ok=True)
    new = ("--out", tmp_path / "new", "--distil-tokens", 300, "--rows", 2, "--steps", 1)
    refused(folder, "train", *arguments, *new, words=words, progress=True)
