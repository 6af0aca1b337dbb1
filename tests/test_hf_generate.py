"""Contestants: the decode loop and transformers produce the same greedy sequences."""

import json
import logging

import pytest
import torch
from race_clock import all_contestants, failing
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from toy_lm import END, VOCAB, toy_recording

from real.bench.contestants import Checkpoints, load_pairs, parse_contestant, requests_of
from real.bench.hf_generate import hf_contestant, load_hf_model, parse_hf_method
from real.bench.race import PLAIN, ContestantError, Request, race
from real.model.checkpoint import WeightsError, save_decoder
from simspec import policies, replay

NAMES = [
    "model=fixed:2",
    "model=beta_ts",
    "model=confidence:0.5",
    "model=static:2x1x1",
    "prompt_lookup=fixed:3",
]


METHODS = [
    "generate",
    "generate_static",
    "assisted:constant",
    "assisted:heuristic",
    "assisted:heuristic_transient",
    "prompt_lookup:10",
    "assisted:constant,2,0",
    "prompt_lookup:3",
    "prompt_lookup:3,1",
    "early_exit:1,2",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The toy pair as checkpoints that transformers reads."""
    folder = tmp_path_factory.mktemp("models")
    _, target, drafter = toy_recording("model", "greedy")
    for name, decoder in (("target", target.decoder), ("model", drafter.lm)):
        (folder / name).mkdir()
        save_decoder(decoder, folder / name, END[0], 64, torch.float64)
    words = Tokenizer(WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    words.save(str(folder / "target" / "tokenizer.json"))
    return folder


def raced(models, names, methods, dtype="float64", repeats=2, engine="eager"):
    trace = toy_recording("model", "greedy")[0].select([0, 6])  # the last text ends by itself
    checkpoints = Checkpoints(models, dtype=dtype)
    pairs = load_pairs(checkpoints, trace, names, engine)
    contestants = all_contestants(checkpoints, trace, pairs, names, methods)
    return trace, race(contestants, requests_of(trace), repeats)


@pytest.fixture(scope="module")
def all_runs(models):
    return raced(models, NAMES, METHODS)


def test_every_contestant_produces_the_recorded_sequence(all_runs):
    trace, runs = all_runs
    sequences = [trace.token[a:b].tolist() for a, b in zip(trace.offset, trace.offset[1:])]
    assert [r.name for r in runs] == [PLAIN, *NAMES, *METHODS]
    assert not any(r.error for r in runs)
    assert any(sequence[-1] in END for sequence in sequences)
    assert any(sequence[-1] not in END for sequence in sequences)
    for r in runs:
        assert r.token == [sequences, sequences], r.name
        assert r.passes[0] == r.passes[1], r.name  # every repeat starts anew
        assert r.name
    by_name = {r.name: r for r in runs}
    for name in (PLAIN, "generate", "generate_static"):
        assert by_name[name].passes[0] == [len(sequence) for sequence in sequences]
        assert not by_name[name].drafts
    assert sum(by_name["early_exit:1,2"].passes[0]) <= trace.rows  # of the whole model alone
    for name in (*NAMES, "assisted:constant", "prompt_lookup:10"):
        assert sum(by_name[name].passes[0]) < trace.rows, name
        assert by_name[name].drafts, name
    for r in runs:
        own = {"generate_static": "generate_static"}.get(r.name, "generate")
        assert r.own_plain == (PLAIN if r.name in (PLAIN, *NAMES) else own), r.name
    assert by_name["generate_static"].remark == "static cache, not compiled"


def test_passes_equal_replay_rounds_and_assisted_generation(all_runs):
    trace, runs = all_runs
    by_name = {r.name: r.passes[0] for r in runs}
    replayed = replay(trace, policies.parse("fixed:2"))
    assert (
        by_name["model=fixed:2"]
        == (replayed.offset[1:] - replayed.offset[:-1]).tolist()
        == by_name["assisted:constant,2,0"]
    )


def test_methods_do_not_affect_each_other(models, all_runs):
    alone = raced(models, [], ["assisted:heuristic"], repeats=1)[1][1]
    assert alone.passes == [
        next(r for r in all_runs[1] if r.name == "assisted:heuristic").passes[0]
    ]
    kept = raced(
        models, [], ["assisted:heuristic,1,0", "assisted:heuristic_transient,1,0"], repeats=1
    )[1]
    assert (
        kept[1].passes != kept[2].passes
    )  # one goes on to the next text with what it learnt, the other does not


def test_float32_produces_equal_sequences(models):
    trace, runs = raced(models, ["model=fixed:2"], ["generate", "assisted:constant"], "float32", 1)
    assert all(r.token == runs[0].token and not r.error for r in runs)
    assert len(runs) == 4


@pytest.mark.parametrize("engine", ["fast", "strict"])
def test_captured_passes_produce_equal_sequences_and_rounds(models, all_runs, engine):
    _, runs = raced(models, ["model=fixed:2", "model=static:2x1x1"], [], repeats=1, engine=engine)
    by_name = {r.name: r for r in all_runs[1]}
    assert [r.error for r in runs] == [""] * 3
    for r in runs:
        assert (r.token[0], r.passes[0]) == (by_name[r.name].token[0], by_name[r.name].passes[0])


def test_generation_config_of_the_checkpoint_is_ignored(models):
    path = models / "target" / "generation_config.json"
    path.write_text(
        json.dumps(
            {"repetition_penalty": 9.0, "do_sample": True, "temperature": 5.0, "max_new_tokens": 2}
        )
    )
    try:
        trace, runs = raced(models, [], ["generate"], repeats=1)
    finally:
        path.unlink()
    assert runs[1].token == runs[0].token
    assert max(map(len, runs[1].token[0])) > 2


def test_missing_assistant_fails_its_contestant_only(models, tmp_path):
    (tmp_path / "target").symlink_to(models / "target")
    _, runs = raced(
        tmp_path, ["prompt_lookup=fixed:2"], ["generate", "assisted:constant"], repeats=1
    )
    assert "model holds no small model" in runs[3].error
    assert not runs[2].error
    assert runs[2].token == runs[0].token
    with pytest.raises(WeightsError, match="cannot be loaded by transformers"):
        load_hf_model(tmp_path / "model", "float32", "cpu")


def test_only_one_transformers_warning_is_filtered(models):
    load_hf_model(models / "model", "float64", "cpu")
    log = logging.getLogger("transformers.generation.utils")

    def shown(message):
        record = logging.LogRecord(log.name, logging.WARNING, "", 0, message, (), None)
        return log.filter(record)

    assert shown("another warning")
    assert not shown("Passing `generation_config` together with generation-related arguments")


def test_invalid_contestants_are_refused():
    assisted = [
        f"assisted{rest}"
        for rest in (
            "",
            ":other",
            ":constant,0",
            ":constant,2,3",
            ":constant,x",
            ":constant,1,0.5,2",
        )
    ]
    for text in (
        "generat",
        "generate:1",
        "prompt_lookup",
        "prompt_lookup:0",
        "prompt_lookup:x",
        "prompt_lookup:3,0",
        "prompt_lookup:3,2,1",
        "prompt_lookup:tuned",
        "early_exit",
        "early_exit:0",
        "early_exit:1,2,0.5,1",
        *assisted,
    ):
        with pytest.raises(ContestantError, match="is unknown; expected generate, "):
            parse_hf_method(text)
    options = {
        "num_assistant_tokens_schedule": "heuristic",
        "num_assistant_tokens": 5,
        "assistant_confidence_threshold": 0.0,
    }
    assert parse_hf_method("assisted:heuristic,5,0") == ("assisted", options)
    for text in ("model", "model=", "=fixed:1"):
        with pytest.raises(ContestantError, match="no drafter=policy"):
            parse_contestant(text)
    with pytest.raises(ContestantError, match="only replayed"):
        parse_contestant("model=oracle")
    with pytest.raises(ValueError, match="did you mean fixed"):
        parse_contestant("model=fixd:1")
    with pytest.raises(ContestantError, match="needs a small model"):
        hf_contestant("assisted:constant", None)
    for contestants, prompts, repeats in (
        ([failing("a", 0)] * 2, [[1]], 1),
        ([failing("a", 0)], [], 1),
        ([failing("a", 0)], [[1]], 0),
    ):
        with pytest.raises(ValueError, match="no contestant twice"):
            race(contestants, [Request(p, 1) for p in prompts], repeats)
