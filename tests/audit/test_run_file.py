"""Files of emitted runs: round trips, and one-line errors for invalid files."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import policy_from, run_all, toy_cost, toy_recording

from real.audit.runs import (
    EmittedRun,
    EmittedSequence,
    RunHeader,
    emitted_sequences,
    load_run,
    recorded_run,
    save_run,
)
from real.sampling import Rule

HELD = settings(deadline=None, max_examples=60, derandomize=True)


END = 3


@st.composite
def texts(draw, sequence=0):
    """A text with rounds that make it; some end with an end token that a draft carried."""
    rounds, position = [], 0
    for _ in range(draw(st.integers(1, 5))):
        drafted = draw(st.integers(0, 4))
        accepted = draw(st.integers(0, drafted))
        rounds.append((position, drafted + draw(st.integers(0, 1)), drafted, accepted))
        position += accepted + 1
    token = draw(st.lists(st.integers(4, 2**31 - 1), min_size=position, max_size=position))
    if draw(st.booleans()):
        token[-1] = END
    elif position > 1 and rounds[-1][3] and draw(st.booleans()):
        token = [*token[:-2], END]
    known = draw(st.booleans())
    return EmittedSequence(
        tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=3))),
        tuple(token),
        sequence,
        tuple(rounds) if known else (),
    )


HEADERS = st.one_of(
    st.builds(
        RunHeader,
        st.just("greedy"),
        dtype=st.sampled_from(["float32", "bfloat16"]),
        policy=st.text(max_size=5),
    ),
    st.builds(
        RunHeader, st.sampled_from(["coupled", "rejection"]), st.floats(0.1, 3),
        st.integers(0, 50), st.floats(0.01, 1), st.integers(0, 2**64 - 1),
        drafter=st.text(max_size=5)
    ),
)  # fmt: skip


@HELD
@given(header=HEADERS, data=st.data())
def test_save_and_load_round_trip(header, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    header = replace(header, end_tokens=(END,))
    sequences = tuple(data.draw(texts(sequence=s)) for s in range(data.draw(st.integers(1, 3))))
    save_run(path, header, sequences)
    assert load_run(path) == EmittedRun(header, sequences)
    assert [p.name for p in path.parent.iterdir()] == ["run.jsonl"]


def test_required_keys_are_rule_prompt_and_token(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(
        '{"simspec": "run", "rule": "greedy"}\n{"prompt": [1], "token": [2]}\n\n'
        '{"prompt": [1], "token": [2, 5]}\n'
    )
    result = load_run(path)
    assert result.sequences == (EmittedSequence((1,), (2,), 0), EmittedSequence((1,), (2, 5), 1))
    assert result.header.sampling_rule == Rule()


def test_run_and_recording_have_the_same_sequences():
    trace, target, drafter = toy_recording("model", "coupled")
    cost = toy_cost()
    sequences = emitted_sequences(
        trace, run_all(target, drafter, trace, policy_from("fixed:3", trace, cost), cost)
    )
    theirs = recorded_run(trace)
    assert [t.token for t in sequences] == [t.token for t in theirs.sequences]
    assert [t.prompt for t in sequences] == [t.prompt for t in theirs.sequences]
    assert theirs.header.sampling_rule == Rule("coupled", 0.8, 5)
    assert theirs.header.dtype == "float64"
    assert all(t.rounds for t in sequences)
    assert not any(t.rounds for t in theirs.sequences)


GOOD = {"simspec": "run", "rule": "greedy", "end_tokens": [END]}
TEXT = {"prompt": [5, 6], "token": [7, 8, 9], "sequence": 0, "rounds": [[0, 2, 1, 1], [2, 0, 0, 0]]}
HEADER_FAULTS = [
    ({"colour": 1}, "unknown keys ['colour']"),
    ({"rule": "beam"}, "rule 'beam' is unknown"),
    ({"rule": ["greedy"]}, "rule is ['greedy'], expected"),
    ({"temperature": 0.5}, "temperature 0.5 with rule 'greedy'"),
    ({"rule": "rejection", "temperature": "hot"}, "temperature is 'hot', expected"),
    ({"rule": "rejection", "top_p": 0}, "top_p is 0"),
    ({"rule": "rejection", "top_k": 1.5}, "top_k is 1.5, expected"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": True}, "seed is True, expected"),
    ({"dtype": "int8"}, "dtype is 'int8', expected"),
    ({"end_tokens": 3}, "end_tokens is 3, expected"),
]
SEQUENCE_FAULTS = [
    ({"prompt": []}, "sequence: prompt is [], expected"),
    ({"prompt": "hi"}, "sequence: prompt is 'hi', expected"),
    ({"token": [1.0]}, "sequence: token is [1.0], expected"),
    ({"token": [-1]}, "sequence: token is [-1], expected"),
    ({"token": [2**31]}, "sequence: token is [2147483648], expected"),
    ({"token": [True]}, "sequence: token is [True], expected"),
    ({"token": [7, END, 9]}, "token[1] = 3 ends a sequence, but 1 more follow"),
    ({"sequence": 2**32}, "sequence: sequence is 4294967296, expected"),
    ({"rounds": [[0, 1, 1]]}, "sequence: rounds is [[0, 1, 1]], expected"),
    ({"rounds": 7}, "sequence: rounds is 7, expected"),
    ({"rounds": [[0, 2, 1, 1], [1, 0, 0, 0]]}, "rounds[1] begins at 1; expected 2"),
    ({"rounds": [[0, 2, 1, 2]]}, "rounds[0] accepts 2 of 1"),
    ({"rounds": [[0, 0, 0, 0]]}, "the rounds commit 1 tokens, the sequence has 3"),
    ({"rounds": [[0, 3, 3, 3]]}, "the last round has no bonus token"),
]


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.mark.parametrize(
    "content, words",
    [
        ("", "the file is empty"),
        (lines(GOOD), "holds no sequence"),
        ("not json\n", "line 1: "),
        ('{"simspec": "run", "rule": "rejection", "temperature": NaN}\n', "line 1: "),
        (lines([1]), "line 1: "),
        (lines({"rule": "greedy"}), "line 1: not an emitted run"),
        (lines({"simspec": "run"}), "line 1: missing keys ['rule']"),
        *((lines(GOOD | fault), words) for fault, words in HEADER_FAULTS),
        *((lines(GOOD, TEXT | fault), f"line 2: {words}") for fault, words in SEQUENCE_FAULTS),
        (lines(GOOD, TEXT, {"prompt": [1]}), "line 3: missing keys ['token']"),
        (lines(GOOD, TEXT, TEXT), "line 3: sequence 0 occurs twice"),
        (lines(GOOD) + "[" * 100_000, "line 2: "),
    ],
)
def test_invalid_file_is_refused_in_one_line(content, words, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError) as caught:
        load_run(path)
    message = str(caught.value)
    assert message.startswith(f"{path} cannot be read: ")
    assert words in message
    assert "\n" not in message
    assert len(message) < 500 + len(str(path))


def test_unreadable_files_are_refused(tmp_path):
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, words in (
        ("bytes.jsonl", "utf-8"),
        ("missing.jsonl", "No such file"),
        ("", "directory"),
    ):
        with pytest.raises(ValueError, match=words):
            load_run(tmp_path / name)


def test_token_outside_the_vocabulary_is_refused():
    run = EmittedRun(
        RunHeader("greedy"), (EmittedSequence((1,), (2,), 0), EmittedSequence((1,), (24,), 1))
    )
    run.check_vocabulary(25)
    words = "sequence 1 holds token 24, the target's vocabulary is 0..23"
    with pytest.raises(ValueError, match=words):
        run.check_vocabulary(24)


def test_invalid_run_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="no sequence"):
        save_run(tmp_path / "run.jsonl", RunHeader("greedy"), ())
    assert not list(tmp_path.iterdir())
