"""A draft model recorded along written texts, against ordinary recordings and the definition."""

import json
from dataclasses import replace

import naive_engine
import numpy as np
import pytest
import torch
from fake_engine import FakeRunner, do_run
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import command, contents, refused, simspec
from test_ngram_rules import texts_of
from toy_lm import END, RULES, VOCAB, recorded, toy_decoder, toy_prompts, toy_recording, toy_target

import real.record.texts
from real.decode.features import drafter_features
from real.drafters.model import ModelDrafter
from real.engines import Request
from real.engines.compare import compare_rows, written_text
from real.model.checkpoint import save_decoder
from real.model.draft_head import DraftVocabularyHead, save_vocabulary
from real.model.target import Target
from real.pair import TINY
from real.record import Settings, rows
from real.record.texts import record_texts_by_model
from simspec import load_trace, replay
from simspec.engines.text import WrittenText
from simspec.policies.fixed import fixed
from simspec.trace import quantization as grid
from simspec.trace.file import ARRAYS

FROM_TARGET = ("margin",)


def assert_same(ordinary, from_text, but=FROM_TARGET):
    """Every array is equal but those that need the target."""
    for name in ARRAYS:
        if name not in but:
            a, b = getattr(ordinary, name), getattr(from_text, name)
            assert (a is None) == (b is None), name
            if a is not None:
                np.testing.assert_array_equal(a, b, err_msg=name)


def again(trace, drafter):
    return record_texts_by_model(texts_of(trace), drafter, trace.K, trace.meta.end_tokens)


def test_texts_give_the_ordinary_recording_of_their_target():
    ordinary, _, drafter = toy_recording("model", "greedy")
    from_text = again(ordinary, drafter)
    assert_same(ordinary, from_text)
    assert from_text.margin is None
    assert (ordinary.depth < ordinary.K).any()  # some drafts hold an end token
    assert 0.2 < (ordinary.run == 0).mean() < 0.8
    for name in ("rule", "drafter", "K", "features", "prefix_only", "device", "dtype", "ids"):
        assert getattr(from_text.meta, name) == getattr(ordinary.meta, name), name
    for k in (0, 2, 6):
        assert replay(from_text, fixed(k)) == replay(ordinary, fixed(k))


@settings(deadline=None, max_examples=15)
@given(
    st.integers(0, 500), st.integers(1, 7), st.integers(1, 20),
    st.sampled_from([END, (3, 5, 7, 9, 11, 20), ()]), st.booleans()
)  # fmt: skip
def test_texts_equal_ordinary_recordings_for_all_settings(seed, K, budget, ends, restricted):
    """With a draft vocabulary too, which the drafter's folder may hold."""
    target = toy_target()
    lm = toy_decoder(seed, layers=2) if seed % 2 else toy_recording("model", "greedy")[2].lm
    drafter = ModelDrafter(lm)
    if restricted:
        lm = toy_decoder(seed, layers=2)
        lm.head = DraftVocabularyHead(lm.head, torch.arange(2, VOCAB, 2))
        drafter = ModelDrafter(lm)
    made = Settings(K, budget, RULES["greedy"], ends, drafter_features(drafter))
    ordinary = recorded(Target(target, capacity=32), drafter, made, toy_prompts(2, seed))
    assert_same(ordinary, again(ordinary, drafter))


def test_control_another_checkpoint_gives_another_recording():
    ordinary, _, drafter = toy_recording("model", "greedy")
    other = again(ordinary, ModelDrafter(toy_decoder(7, layers=3)))
    np.testing.assert_array_equal(other.token, ordinary.token)
    assert (other.run != ordinary.run).mean() > 0.2
    with pytest.raises(AssertionError):
        assert_same(ordinary, other)


ENDS = (3, 5, 7, 9)


def any_text(lm, seed, budget):
    """(prompt, output): the model's own tokens, every third one another; ENDS only at the end."""
    rng = np.random.default_rng(seed)
    others = np.setdiff1d(np.arange(VOCAB), ENDS)
    context = rng.choice(others, rng.integers(1, 6)).tolist()
    first = len(context)
    while len(context) < first + budget:
        token = int(lm(torch.tensor([context]))[0, -1].argmax())
        if token in ENDS and rng.random() < 0.2:
            return context[:first], [*context[first:], token]
        own = token not in ENDS and rng.random() < 0.7
        context.append(token if own else int(rng.choice(others)))
    return context[:first], context[first:]


def drafted(lm, text, K):
    """The definition: a draft from every position, token by token, each by a pass over it all."""
    depth, run, confidence, rank = [], [], [], []
    n = len(text.output)
    for t in range(n):
        context = [*text.prompt.tolist(), *text.output[:t].tolist()]
        draft, shown = [], []
        while len(draft) < min(K, text.budget - t):
            logits = lm(torch.tensor([context + draft]))[0, -1]
            draft.append(int(logits.argmax()))
            shown.append(float(logits.softmax(-1).max()))
            if draft[-1] in ENDS:
                break
        depth.append(len(draft) if draft[-1] in ENDS else K)
        agreed = 0
        while agreed < min(len(draft), n - t) and draft[agreed] == text.output[t + agreed]:
            agreed += 1
        run.append(agreed)
        confidence.append(shown + [None] * (K - len(shown)))
        ranks = []
        for future in text.output[t : t + K].tolist():
            logits = lm(torch.tensor([context]))[0, -1]
            ranks.append(int((logits > logits[future]).sum()))
            context.append(future)
        rank.append(ranks + [0] * (K - len(ranks)))
    return depth, run, confidence, rank


def test_texts_of_another_origin_give_the_definition(monkeypatch):
    """In one pass, and in pieces of a few rows, as long texts are recorded."""
    K, lm = 5, toy_recording("model", "greedy")[2].lm
    texts = []
    for seed in range(12):
        prompt, output = (np.array(part, np.int32) for part in any_text(lm, seed, 14))
        budget = 16 if output[-1] in ENDS else 14
        texts.append(WrittenText(str(seed), "any", prompt, output, budget))
    trace = record_texts_by_model(texts, ModelDrafter(lm), K, ENDS)
    code, table = trace.feature[..., 0], grid.TABLES["confidence"]
    for s, text in enumerate(texts):
        part = slice(trace.offset[s], trace.offset[s + 1])
        depth, run, confidence, rank = drafted(lm, text, K)
        assert trace.depth[part].tolist() == depth
        assert trace.run[part].tolist() == run
        assert trace.rank[part].tolist() == rank
        for codes, values in zip(code[part], confidence):
            for value, held in zip(values, codes):
                expected = 0 if value is None else grid.encode(np.array([value]), table)[0][0]
                assert held == expected
    inside = (trace.depth < K) & (trace.depth > 1)
    assert inside.sum() > 3  # an end token within a draft
    assert {len(t.output) < t.budget for t in texts} == {True, False}
    assert trace.budget.tolist() == [text.budget for text in texts]
    monkeypatch.setattr(rows, "MOST_ROWS", 3)
    assert record_texts_by_model(texts, ModelDrafter(lm), K, ENDS) == trace


def chain(lm, context, count):
    """The next tokens of the model, by a pass for each."""
    text = list(context)
    for _ in range(count):
        text.append(int(lm(torch.tensor([text]))[0, -1].argmax()))
    return text[len(context) :]


def test_an_engine_that_drafts_by_the_model_makes_the_passes_of_the_recording(
    tmp_path, monkeypatch
):
    """An engine's own loop along its texts, with a naive model as drafter."""
    drafter, target = toy_recording("model", "greedy")[2], toy_target()
    monkeypatch.setattr(naive_engine, "draft", lambda context, K, _: chain(drafter.lm, context, K))
    world = [
        (Request(f"p{i}", tuple(prompt), 16), chain(target, prompt, 24))
        for i, prompt in enumerate(toy_prompts(6))
    ]
    runner = FakeRunner(world, rule="prompt_lookup:1,2")  # a draft ends at its end token
    about, rows = do_run(tmp_path / "r.jsonl", runner, world)
    about = about | {"draft": {"method": "model"}}
    texts = [written_text(row) for row in rows if row.k == 0 and row.block < 2]
    trace = record_texts_by_model(texts, drafter, 4, END)
    compared = compare_rows(about, rows, trace)
    assert compared.equal
    assert compared.left_out == 0
    assert compared.counters[4]["num_accepted_tokens"][0] > 20
    other = record_texts_by_model(texts, ModelDrafter(toy_decoder(7, layers=3)), 4, END)
    assert not compare_rows(about, rows, other).equal


def test_sampled_texts_are_refused_or_labelled():
    ordinary, _, drafter = toy_recording("model", "greedy")
    texts = [replace(text, temperature=0.8) for text in texts_of(ordinary)]
    made = texts, drafter, ordinary.K, END
    with pytest.raises(ValueError, match="temperature 0.8.*give sampled=True"):
        record_texts_by_model(*made)
    trace = record_texts_by_model(*made, sampled=True)
    assert (trace.meta.rule, trace.meta.temperature) == ("coupled", 0.8)
    assert_same(ordinary, trace)


@pytest.fixture
def folder(tmp_path):
    """A model that knows 24 tokens and 40 positions, and texts for it."""
    save_decoder(toy_decoder(1, layers=2), tmp_path / "small", end_token=3, context=40)
    write(tmp_path, [{"prompt": [5, 6], "output": [7, 8, 9], "id": "a"}, LINE])
    return tmp_path


LINE = {"prompt": [9], "output": [4, 4, 3], "max_tokens": 8}
RECORD = ("record", "--from-text", "texts.jsonl", "--drafter", "model:small", "--out", "t.parquet")


def write(folder, lines):
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_command_records_the_embedded_model_as_the_ordinary_one_does(tmp_path):
    texts = "Once upon a time", "def add(a, b):", "The capital of France is"
    rows = [{"id": f"p{i}", "task": "t", "text": text} for i, text in enumerate(texts)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    depth = "--depth", 5
    simspec("record", "prompts.jsonl", "--budget", 20, *depth, "--out", "o.parquet", cwd=tmp_path)
    ordinary = load_trace(tmp_path / "o.parquet")
    written = [
        {"id": t.id, "task": t.task, "prompt": t.prompt.tolist(), "output": t.output.tolist(),
         "max_tokens": t.budget} for t in texts_of(ordinary)
    ]  # fmt: skip
    write(tmp_path, written)
    ends = [part for token in ordinary.meta.end_tokens for part in ("--end-token", token)]
    out, error = simspec(
        *RECORD[:4], f"model:{TINY / 'model'}", *RECORD[5:], *depth, *ends, cwd=tmp_path
    )
    assert out == f"wrote t.parquet: 3 texts, {ordinary.rows} rows\n"
    assert "recording texts: 3/3" in error
    from_text = load_trace(tmp_path / "t.parquet")
    assert_same(ordinary, from_text, (*FROM_TARGET, "feature", "feature_margin"))
    names = [name for name, _ in from_text.meta.features]
    assert names == ["confidence", "entropy"]  # predictors read the target's states
    shared = ordinary.feature[..., ordinary.features(names)]
    np.testing.assert_array_equal(from_text.feature, shared)
    assert from_text.meta.target == "text texts.jsonl"
    assert (from_text.meta.drafter, from_text.meta.dtype) == ("model", "float32")


def test_the_command_honours_dtype_and_a_draft_vocabulary(folder):
    simspec(*RECORD, "--depth", 4, "--end-token", 3, "--dtype", "float64", cwd=folder)
    whole = load_trace(folder / "t.parquet")
    assert whole.meta.dtype == "float64"
    assert whole.budget.tolist() == [3, 8]
    save_vocabulary(torch.tensor([4, 8]), folder / "small")
    simspec(*RECORD, "--depth", 4, "--end-token", 3, "--dtype", "float64", cwd=folder)
    restricted = load_trace(folder / "t.parquet")
    assert restricted != whole
    assert (restricted.depth == 4).all()  # it never drafts the end token
    drafter = ModelDrafter.load_alone(folder / "small", torch.float64, "cpu")
    assert_same(restricted, again(restricted, drafter), ())


REFUSED = [
    (("--drafter", "model"), [], "drafter 'model' names no model, expected model:FOLDER"),
    (("--drafter", "model:nothing"), [], "nothing holds no config.json"),
    ((*RECORD[3:5], "--drafter", "vllm"), [], "--from-text records one drafter, 2 are given"),
    (RECORD[3:5], [{**LINE, "prompt": [24]}], "holds token 24, the drafter knows 0 to 23"),
    (RECORD[3:5], [{**LINE, "output": [99]}], "holds token 99, the drafter knows 0 to 23"),
    (RECORD[3:5], [{**LINE, "output": []}], "holds no text"),
    (RECORD[3:5], [{**LINE, "prompt": []}], "has an empty prompt"),
    (RECORD[3:5], [{"prompt": [5] * 30, "output": [5] * 11}], "41 tokens, the drafter's context"),
    ((*RECORD[3:5], "--end-token", 4), [LINE], "holds end token 4 at 1 of 3"),
    ((*RECORD[3:5], "--dtype", "int3"), [], "dtype 'int3' is unknown"),
    ((*RECORD[3:5], "--device", "tpu"), [], "device 'tpu' is unknown"),
]


@pytest.mark.parametrize("arguments,lines,reason", REFUSED, ids=range(len(REFUSED)))
def test_the_command_refuses_in_one_line(folder, arguments, lines, reason):
    if lines:
        write(folder, lines)
    refused(folder, *RECORD[:3], *arguments, *RECORD[5:], words=reason)


def test_a_draft_vocabulary_beyond_the_model_is_refused(folder):
    save_vocabulary(torch.tensor([4, 99]), folder / "small")
    refused(folder, *RECORD, words="the draft vocabulary is not ascending within 0 to 23")


def test_an_interrupted_recording_leaves_nothing(folder, monkeypatch):
    before, record, calls = contents(folder), rows.record_prefix_only, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return record(*arguments)

    monkeypatch.setattr(real.record.texts, "record_prefix_only", interrupted)
    code, out, error = command(folder, *RECORD)
    assert (code, out) == (130, "")
    assert "simspec: interrupted" in error
    assert contents(folder) == before
