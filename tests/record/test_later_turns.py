"""Later turns of conversations, and the end tokens at which answers and recordings stop."""

import json

import numpy as np
import pytest
from chat_models import END, TURN, save_chat_model, write_rows
from shell import command
from toy_lm import VOCAB, toy_decoder
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

import real.record
from real.files import replace_json
from real.model.checkpoint import WeightsError, end_tokens, load_tokenizer, save_decoder
from real.pair import TINY, load_pair
from real.prompts import Conversation, LeftOut, Prompt, PromptFormat, load_chat_template
from real.record import Settings
from real.record.sequences import target_sequence
from real.sampling import Rule
from simspec import load_trace

TURNS = {"a": ["what is it?", "and this?", "so?"], "b": ["the answer?", "why?"]}
BUDGET = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model folder with a chat target, and conversations for it."""
    folder = tmp_path_factory.mktemp("turns")
    save_chat_model(folder / "m" / "target")
    rows = [{"id": name, "task": "t", "turns": turns} for name, turns in TURNS.items()]
    write_rows(folder / "p.jsonl", *rows, {"id": "c", "task": "t", "text": "it is"})
    return folder


@pytest.fixture(scope="module")
def form(place):
    path = place / "m" / "target"
    return PromptFormat(load_tokenizer(path), load_chat_template(path))


def asked(name, *options):
    return (
        "record", "p.jsonl", "--models", "m", "--drafter", "prompt_lookup", "-k", 2,
        "--budget", BUDGET, "--dtype", "float64", "--out", name, *options,
    )  # fmt: skip


def record(place, name, *options):
    code, out, error = command(place, *asked(name, *options), "--json")
    assert code == 0, error
    return load_trace(place / name), json.loads(out)


def contents(trace):
    """Prompt and new tokens of each sequence, by id."""
    new = np.split(trace.token, trace.offset[1:-1])
    prompts = np.split(trace.prompt, trace.prompt_offset[1:-1])
    return {name: (p.tolist(), t.tolist()) for name, p, t in zip(trace.meta.ids, prompts, new)}


def slow_chat(place, rule):
    """Turn by turn and message by message: the definition."""
    pair = load_pair(place / "m", "prompt_lookup", dtype="float64")
    reference = AutoTokenizer.from_pretrained(place / "m" / "target")
    settings = Settings(2, BUDGET, rule, pair.end_tokens, ())
    order = ["a", "b", "c", "a#2", "b#2", "a#3"]
    chats = {name: [] for name in TURNS}
    found = {}
    for address, name in enumerate(order):
        if name == "c":
            prompt = reference("it is")["input_ids"]
        else:
            row, turn = name[0], int(name[2:] or 1)
            chats[row].append({"role": "user", "content": TURNS[row][turn - 1]})
            prompt = reference.apply_chat_template(
                chats[row], tokenize=True, add_generation_prompt=True, return_dict=False
            )
        token = target_sequence(pair.target, settings, prompt, address)[0].tolist()
        found[name] = (prompt, token)
        if name != "c":
            text = reference.decode(token, skip_special_tokens=True)
            chats[row].append({"role": "assistant", "content": text})
    return found


RULES = {
    "greedy": Rule(),
    "coupled": Rule("coupled", 0.8, 3),
    "rejection": Rule("rejection", 0.8, 3),
}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("rule", RULES)
def test_later_turns_are_those_of_a_chat(place, rule, batch):
    name = f"{rule}-{batch}.parquet"
    trace, card = record(
        place, name, "--turns", "all", "--rule", rule, "--seed", 3, "--batch", batch
    )
    assert contents(trace) == slow_chat(place, RULES[rule])
    assert card["texts"] == 6
    assert card["prompts"]["recorded"] == 6
    assert not list(place.glob("*.turns.json"))
    # the later prompts do depend on the answers
    first = {name: token for name, (_, token) in contents(trace).items()}
    assert first["a"] != first["b"]


def test_the_first_turns_are_those_of_a_recording_without_others(place):
    every, _ = record(place, "all.parquet", "--turns", "all")
    alone, card = record(place, "first.parquet")
    assert list(contents(alone)) == ["a", "b", "c"]
    assert contents(alone).items() <= contents(every).items()
    assert card["prompts"]["recorded"] == 3


def test_a_killed_recording_keeps_its_answers(place, monkeypatch):
    whole, _ = record(place, "whole.parquet", "--turns", "all", "--rule", "coupled")

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(real.record, "record_all", killed)
        assert command(place, *asked("k.parquet", "--turns", "all", "--rule", "coupled"))[0] != 0
    answers = place / "k.parquet.turns.json"
    assert len(json.loads(answers.read_text())["texts"]) == 3  # a, a#2, b: the answers needed
    again, _ = record(place, "k.parquet", "--turns", "all", "--rule", "coupled")
    assert contents(again) == contents(whole)
    assert not answers.exists()


def test_several_drafters_share_the_answers(place):
    alone, _ = record(place, "alone.parquet", "--turns", "all")
    save_chat_model(place / "m" / "model")
    both = *asked("both", "--turns", "all", "--drafter", "model"), "--json"
    out = json.loads(command(place, *both)[1])
    counts = {name: card["prompts"]["recorded"] for name, card in out.items()}
    assert counts == {"prompt_lookup": 6, "model": 6}
    for name in out:
        assert contents(load_trace(place / "both" / f"{name}.parquet")) == contents(alone)
    assert json.loads(command(place, *both)[1]) == out


def test_turns_that_do_not_fit_are_left_out_and_counted(place, form):
    lengths = {n: len(form.turns("t", TURNS[n][:1])) for n in TURNS}
    limit = max(lengths.values())
    code, out, error = command(
        place, *asked("short.parquet", "--turns", "all", "--longest", limit, "--json")
    )
    assert code == 0, error
    counts = json.loads(out)["prompts"]
    assert (counts["read"], counts["too_long"], counts["recorded"]) == (6, 3, 3)
    assert f"left out 3 of 3 prompts: 3 over {limit} tokens" in error


def test_an_answer_is_text_without_its_end(form):
    chat = Conversation(form, 100)
    ids = form.tokenizer.encode("so it is", add_special_tokens=False).ids
    ends = [form.tokenizer.token_to_id(text) for text in (END, TURN)]
    assert chat.answer(ids, ends) == "so it is"
    assert chat.answer([*ids, ends[1]], ends) == "so it is"
    assert chat.answer([ends[0]], ends) == ""


def test_what_follows_an_answer(form):
    chat = Conversation(form, 100)
    first = Prompt("a", "t", "s", [1], ("u", "v", "", "w"))
    prompt, left = chat.follow(first, ["x"])
    assert (prompt.id, prompt.token) == ("a#2", form.turns("t", ["u", "v"], ["x"]))
    assert left == LeftOut(1, limit=100, longest=len(prompt.token))
    assert chat.follow(first, ["x", "y"]) == (None, LeftOut(2, empty=2, limit=100))
    assert chat.follow(first, ["x"] * 4) == (None, LeftOut())
    short = Conversation(form, 5)
    expected = LeftOut(3, 0, 3, 5, len(prompt.token))
    assert short.follow(first, ["x"]) == (None, expected)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint whose config names end token 3."""
    save_decoder(toy_decoder(0), tmp_path, end_token=3, context=64)
    return tmp_path


def configure(folder, value):
    config = json.loads((folder / "config.json").read_text())
    replace_json(folder / "config.json", config | {"eos_token_id": value})


def generate(folder, value):
    replace_json(folder / "generation_config.json", {"eos_token_id": value})


@pytest.mark.parametrize(
    "config, generation, ends",
    [
        (3, None, (3,)), (3, 3, (3,)), (3, 5, (3, 5)), (3, [5, 3, 4], (3, 5, 4)),
        ([7, 3], [3, 8], (7, 3, 8)), (None, [4, 4], (4,)), (None, None, ()),
        (None, VOCAB - 1, (VOCAB - 1,)),
    ],
)  # fmt: skip
def test_end_tokens_are_those_of_both_files(folder, config, generation, ends):
    configure(folder, config)
    generate(folder, generation)
    assert end_tokens(folder, VOCAB) == ends
    named = [AutoConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)]
    theirs = [c.eos_token_id for c in named]
    flat = {t for e in theirs for t in (e if isinstance(e, list) else [e]) if t is not None}
    assert set(ends) == flat


def test_a_checkpoint_needs_no_generation_config(folder):
    assert end_tokens(folder, VOCAB) == (3,)
    assert end_tokens(TINY / "target", 4096) == (0,)


@pytest.mark.parametrize("content", [
    *(VOCAB, -1, [3, 99], True, 2.5, "3", "x" * 5000),  # end tokens outside the vocabulary
    *(b"", b"[1]", b'{"eos_token_id": ', b"3", b"\xff"),  # files that are damaged
])  # fmt: skip
def test_end_tokens_outside_the_vocabulary_and_damaged_files_are_refused(folder, content):
    damaged, words = isinstance(content, bytes), "eos_token_id in generation_config.json is"
    generate(folder, content if not damaged else 3)
    if damaged:
        (folder / "generation_config.json").write_bytes(content)
    with pytest.raises(
        WeightsError, match="is no generation config" if damaged else words
    ) as caught:
        end_tokens(folder, VOCAB)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_recording_ends_at_the_tokens_of_the_generation_config(tmp_path):
    (tmp_path / "target").mkdir()
    for file in (TINY / "target").iterdir():
        (tmp_path / "target" / file.name).symlink_to(file)
    row = {"task": "t", "text": "User: How many words?\n\nAssistant:"}
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")

    def record(name):
        code, _, error = command(
            tmp_path, "record", "p.jsonl", "--models", ".", "--drafter", "prompt_lookup",
            "-k", 2, "--budget", 8, "--out", name,
        )  # fmt: skip
        assert code == 0, error
        return load_trace(tmp_path / name)

    free = record("free.parquet")
    generate(tmp_path / "target", int(free.token[3]))
    ended = record("ended.parquet")
    first = free.token.tolist().index(free.token[3])
    assert ended.meta.end_tokens == (0, int(free.token[3]))
    assert ended.token.tolist() == free.token[: first + 1].tolist()
