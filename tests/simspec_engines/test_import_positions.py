"""Accepted lengths from every position: the recordings of them, against slow replays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from import_files import FIXTURES, positions, read, written
from inputs import with_fields
from shell import refused
from shell import simspec as simspec_command
from strategies import END, EXAM, traces

import simspec.policies
from simspec import load_trace, replay, sweep

SIGNALLESS = [policy for policy in EXAM if not policy.reads][:8]


def imported(path, **options):
    """The recordings of a file, by drafter."""
    return read("specdecode-bench", path, **options).traces


def slow_rounds(emitted, K):
    """[(start, accepted)] of rounds of K drafts along one list of accepted lengths."""
    start, rounds = 0, []
    while start < len(emitted):
        now = 1
        while now < emitted[start] and now <= K and start + now < len(emitted):
            now += 1
        rounds.append((start, now - 1))
        start += now
    return rounds


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """(path, accepted lengths) of 500 requests of about 400 tokens, easy and hard ones."""
    rng = np.random.default_rng(0)
    requests = []
    for _ in range(500):
        length = int(rng.integers(300, 500))
        emitted = np.minimum(rng.geometric(rng.uniform(0.2, 0.8), length), 17)
        requests.append((rng.integers(0, 9, 20), rng.integers(0, 99, length), emitted))
    rows = positions(requests)
    path = tmp_path_factory.mktemp("sdb") / "bench.jsonl"
    return written(path, rows), [row["acc_eagle"]["acc_len"] for row in rows]


@pytest.mark.parametrize("K", [1, 2, 3, 5, 7, 10])
def test_replay_equals_a_slow_replay_of_the_list(benchmark, K):
    path, lists = benchmark
    trace = imported(path)["eagle"]
    rounds = replay(trace, simspec.policies.fixed(K))
    expected = [slow_rounds(emitted, K) for emitted in lists]
    assert np.diff(rounds.offset).tolist() == [len(one) for one in expected]
    starts = [int(trace.offset[s]) + start for s, one in enumerate(expected) for start, _ in one]
    assert rounds.row.tolist() == starts
    assert rounds.accepted.tolist() == [accepted for one in expected for _, accepted in one]


def test_control_a_list_without_the_bonus_token_replays_otherwise(benchmark, tmp_path):
    path, lists = benchmark
    shifted = positions([([], [0] * len(one), [e + 1 for e in one]) for one in lists])
    wrong = imported(written(tmp_path / "shifted.jsonl", shifted))["eagle"]
    rounds = replay(wrong, simspec.policies.fixed(3))
    assert len(rounds) != sum(len(slow_rounds(one, 3)) for one in lists)


@st.composite
def whole_traces(draw, ended):
    """A recording as a file of accepted lengths can hold it, and the lists of that file."""
    trace = draw(traces(optional=False))
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    K = max(int(trace.run.max()), 1)
    last = trace.token[trace.offset[1:] - 1]
    ends = np.full(trace.sequences, ended)
    token = trace.token.copy()
    token[token == END] = 0
    token[trace.offset[1:] - 1] = np.where(ends, END, np.where(last == END, 0, last))
    length = np.diff(trace.offset)
    stops = np.repeat(ends, length) & (trace.run >= left)
    return with_fields(
        trace, token=token, budget=length + np.where(ends, K + 1, 0),
        depth=np.where(stops, left, K).astype(np.uint8),
        feature=np.zeros((trace.rows, K, 0), np.uint8), sequence=np.arange(trace.sequences),
        meta=replace(trace.meta, K=K, features=())
    )  # fmt: skip


def file_of(path, trace):
    spans = [slice(*pair) for pair in zip(trace.offset, trace.offset[1:])]
    prompts = [slice(*pair) for pair in zip(trace.prompt_offset, trace.prompt_offset[1:])]
    requests = [
        (trace.prompt[p], trace.token[s], trace.run[s].astype(int) + 1)
        for p, s in zip(prompts, spans)
    ]
    return written(path, positions(requests))


@pytest.mark.parametrize("ended", [False, True], ids=["cut by the budget", "ended by a token"])
def test_import_of_a_recordings_file_gives_its_rounds(tmp_path_factory, ended):
    path = tmp_path_factory.mktemp("property") / "file.jsonl"

    @settings(max_examples=50)
    @given(whole_traces(ended))
    def check(trace):
        recordings = imported(file_of(path, trace), end_token=(END,) if ended else ())
        for policy in SIGNALLESS:
            if policy.K is not None and policy.K > trace.K:
                continue
            assert replay(recordings["eagle"], policy, seed=3) == replay(trace, policy, seed=3)

    check()


def test_rows_are_those_of_the_list_and_tokens_those_of_its_own_text():
    trace = imported(FIXTURES / "specdecode-bench.jsonl")["eagle"]
    assert np.diff(trace.offset).tolist() == [10, 7]
    assert trace.token[:10].tolist() == [21, 22, 23, 24, 25, 26, 27, 28, 29, 9]
    assert set(trace.token[10:].tolist()) == {-1}
    assert trace.run.tolist() == [2, 1, 0, 3, 2, 1, 0, 1, 2, 1] + [0, 4, 3, 2, 1, 0, 0]


def test_accepted_lengths_past_the_end_of_the_list_are_cut(tmp_path):
    path = written(tmp_path / "f.jsonl", positions([([1], [2, 3, 4], [9, 1, 9])]))
    result = read("specdecode-bench", path)
    assert result.traces["eagle"].run.tolist() == [3, 0, 1]
    assert any("reach past the end" in note and note.endswith("2") for note in result.notes)


@pytest.mark.parametrize("form", ["acc", "list"])
def test_other_forms_of_the_list_are_read(tmp_path, form):
    (row,) = positions([([1], [2, 3], [2, 1])])
    emitted = row.pop("acc_eagle")
    row |= {"acc": emitted} if form == "acc" else {"acc_eagle_three": emitted["acc_len"]}
    recordings = imported(written(tmp_path / "f.jsonl", [row]))
    assert list(recordings) == ["drafter" if form == "acc" else "eagle_three"]


def test_an_end_token_leaves_room_for_whole_drafts(tmp_path):
    path = written(tmp_path / "f.jsonl", positions([([1], [2, 3, 9], [1, 3, 1])]))
    cut = replay(imported(path)["eagle"], simspec.policies.fixed(2))
    whole = replay(imported(path, end_token=(9,))["eagle"], simspec.policies.fixed(2))
    assert cut.drafted.tolist() == [2, 1]
    assert whole.drafted.tolist() == [2, 2]
    assert whole.accepted.tolist() == [0, 2]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"acc_eagle": {"acc_len": [0, 1]}}, "add 1 to each"),
        ({"acc_eagle": {"acc_len": [1.5, 1]}}, "expected `int`, got"),
        ({"acc_eagle": {"acc_len": [True, 1]}}, "expected `int`, got"),
        ({"acc_eagle": {"acc_length": [1, 1]}}, "acc_len is missing"),
        ({"acc_eagle": {"acc_len": []}}, "empty in every object"),
        ({"generated_token_ids": [-1, 2]}, "expected `int` >= 0"),
        ({"generated_token_ids": [1 << 31, 2]}, "expected `int` <= 2147483647"),
        ({"id": None}, "id is missing"),
    ],
)
def test_wrong_files_are_refused(tmp_path, change, words):
    (row,) = positions([([1], [2, 3], [2, 1])])
    with pytest.raises(ValueError, match=words):
        imported(written(tmp_path / "f.jsonl", [row | change]))


def test_written_recording_is_swept_and_shown(tmp_path):
    source = FIXTURES / "specdecode-bench.jsonl"
    arguments = ("import", "specdecode-bench", source, "--out", "run.parquet")
    out, _ = simspec_command(*arguments, cwd=tmp_path)
    assert "wrote run-eagle.parquet" in out
    assert "wrote run-ngram.parquet" in out
    trace = load_trace(tmp_path / "run-eagle.parquet")
    assert trace == imported(source)["eagle"]
    table = sweep(trace, ["fixed:2", "beta_ts", "oracle"], 0.1, progress=False)
    assert (table.groupby("policy").speedup.mean() > 0).sum() == 3
    out, _ = simspec_command("report", "--show", "run-eagle.parquet", cwd=tmp_path)
    assert "specdecode-bench.jsonl sha256" in out
    policy = ("--policy", "confidence:0.5")
    words = "feature 'confidence' is not in this trace"
    refused(tmp_path, "sweep", "run-eagle.parquet", *policy, words=words)
