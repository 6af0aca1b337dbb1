"""End tokens, and sequences recorded in batches."""

import json

import pytest
from shell import command
from toy_lm import VOCAB, toy_decoder
from transformers import AutoConfig, GenerationConfig

from real.files import replace_json
from real.measure.blocks import BatchedPasses
from real.measure.timing import BACKLOG, STEPS, VERIFY, Job
from real.model.checkpoint import WeightsError, end_tokens, save_decoder
from real.pair import TINY
from simspec import load_trace


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


@pytest.mark.parametrize("value", [VOCAB, -1, [3, 99], True, 2.5, "3", "x" * 5000])
def test_an_end_token_outside_the_vocabulary_is_refused(folder, value):
    generate(folder, value)
    with pytest.raises(WeightsError, match="eos_token_id in generation_config.json is") as caught:
        end_tokens(folder, VOCAB)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("content", ["", "[1]", '{"eos_token_id": ', "3", "\xff"])
def test_a_damaged_generation_config_is_refused(folder, content):
    (folder / "generation_config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(WeightsError, match="is no generation config"):
        end_tokens(folder, VOCAB)


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


def passes(**options):
    decoder = toy_decoder(0)
    return BatchedPasses(decoder, decoder, 0, 1, 2, 0, **options)


def test_seconds_are_medians():
    bare = passes()
    bare.times |= {
        Job(VERIFY, 0): [[1.0], [2.0], [9.0]],
        Job(VERIFY, 1): [[3.0], [4.0], [50.0]],
        Job(STEPS): [[1.0], [2.0], [30.0]],
        Job(BACKLOG, 0): [[1.0], [1.0], [2.0]],
    }
    verify, draft, catch_up = bare.seconds()
    assert verify.tolist() == [2, 4]
    assert draft.tolist() == [0, 2]
    assert catch_up.tolist() == [0] * 5


def test_first_run_is_not_counted():
    bare, ran = passes(), []
    bare._verify = lambda size: lambda: [ran.append(size)] and [float(len(ran))]
    bare.run(Job(VERIFY, 0), 3)
    assert bare.times == {Job(VERIFY, 0): [[2.0], [3.0], [4.0]]}


def test_a_pass_ends_when_the_device_has_finished():
    now = [0.0]

    def wait():
        now[0] += 1.0

    bare = passes(timer=lambda: now[0])
    bare.wait = wait
    bare.run(Job(VERIFY, 0), 1)
    assert bare.times[Job(VERIFY, 0)] == [[1.0]]


def test_seconds_are_scaled_to_the_first_pace():
    bare = passes()
    for seconds, pace in ((4.0, 2.0), (4.0, 4.0)):
        bare.waiting.append([seconds])
        kept = bare.waiting[-1]
        bare.settle(pace, pace)
        assert kept == pytest.approx([4.0 * 2.0 / pace])
