"""`simspec advise` where things go wrong: one line, and the same command then continues."""

import errno
import json
import os
from pathlib import Path

import pytest
from fake_engine import prompts
from shell import command, simspec
from test_advise import REQUESTS, engine  # noqa: F401

import real.commands.advise
import real.engines.advise
from real.engines import EngineError
from simspec import CostModel

SMALL = prompts(16, budget=10)
ADVISE = (
    "advise",
    "vllm",
    "--model",
    "m",
    "--prompts",
    "p.jsonl",
    "--depth",
    2,
    "--policy",
    "none",
)


@pytest.fixture
def small(engine, monkeypatch):  # noqa: F811
    """16 prompts, and a report without charts, which take most of the time."""
    requests = [request for request, _ in SMALL]
    tasks = {request.id: "task" for request in requests}
    monkeypatch.setattr(real.commands.advise, "_requests", lambda *_: (requests, tasks))
    monkeypatch.setattr(real.engines.advise, "all_figures", lambda *_: [])
    monkeypatch.setattr(real.engines.advise, "page_of", lambda *_: "page")
    return engine


def one_line(folder, code, words):
    """The command fails with one line, after lines of progress; no file is left half written."""
    left, out, error = command(folder, *ADVISE, "--out", "a", "--json")
    *earlier, last = error.strip().splitlines()
    assert (left, out) == (code, ""), error
    assert words in last
    assert "Traceback" not in error
    assert not any(words in line for line in earlier)
    assert not list((folder / "a").glob(".*.part"))


def finished(folder, out="a"):
    """What the command says once it ends well."""
    found = json.loads(simspec(*ADVISE, "--out", out, "--json", cwd=folder)[0])
    assert (folder / out / "report.html").read_text() == "page"
    return found


def test_transformers_gets_a_generation_config(small):
    small.options.update(rules="transformers_ngram", rule="transformers:1,2", name="transformers")
    asked = "advise", "transformers", *ADVISE[2:8]
    found = json.loads(simspec(*asked, "--out", "a", "--json", cwd=small.folder)[0])
    assert (found["confirmed"], found["policies"]) == (True, [])
    assert found["verified"][0]["exceptions"] == 0
    assert json.loads((small.folder / "a" / "setting.json").read_text()) == {
        "prompt_lookup_num_tokens": found["advice"][0]["k"],
        "max_matching_ngram_size": int(found["drafter"][-1]),
    }
    code, _, error = command(small.folder, *asked, "--batch", 2, "--out", "b")
    assert (code, "transformers serves one request a pass" in error) == (2, True)


STEPS = {
    real.engines.advise: (
        "write_plain_texts", "measure_costs", "record_drafts", "choose_length", "verify", "by_task",
        "write_setting", "write_policy", "write_report",
    ),
}  # fmt: skip


def test_ctrl_c_after_each_step_and_within_a_run(small, monkeypatch):
    whole = finished(small.folder, "whole")
    small.options.update(fails=5, stops=KeyboardInterrupt)
    one_line(small.folder, 130, "simspec: interrupted")
    del small.options["fails"]
    for module, names in STEPS.items():
        for name in names:
            step = getattr(module, name)

            def interrupted(*given, step=step):
                step(*given)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(module, name, interrupted)
                one_line(small.folder, 130, "simspec: interrupted")
    assert finished(small.folder) == whole


def test_a_full_disk_at_any_write(small, monkeypatch):
    """The disk takes `room` rows or files, then none; each call continues the one before."""
    whole, sync = finished(small.folder, "whole"), os.fsync
    for room in (0, 1, 8, 20, 20, 9, 8, 6, 2, 0):
        left = [room]

        def full(file, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(file)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            one_line(small.folder, 2, "a/")
    again = finished(small.folder)
    assert [advice["k"] for advice in again["tried"]] == [a["k"] for a in whole["tried"]]
    speedups = [[a["speedup"] for a in found["tried"]] for found in (again, whole)]
    assert speedups[0] == pytest.approx(speedups[1])
    assert again["confirmed"]
    assert again["verified"][0]["passes"] == whole["verified"][0]["passes"]


def test_a_request_that_the_engine_refuses_is_one_line(small):
    small.options.update(fails=9)
    small.options["stops"] = lambda _: EngineError("fake 1.0 says: request p3 may have 99 tokens")
    one_line(small.folder, 2, "request p3 may have 99 tokens")
    del small.options["fails"]
    assert finished(small.folder)["confirmed"]


def test_prompts_that_do_not_fit_are_left_out_with_a_note(small, monkeypatch):
    """The model's own context counts, with the new tokens and what engines draft past the end."""
    rows = [{"id": f"q{i}", "task": "t", "text": "a b c " * (i % 4 + 1)} for i in range(40)]
    rows += [
        {"id": "long", "task": "t", "text": "word " * 200},
        {"id": "", "task": "t", "text": ""},
    ]
    (small.folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = []

    def requests(*given):
        asked.append(given)
        REQUESTS(*given)
        return [request for request, _ in SMALL], {request.id: "t" for request, _ in SMALL}

    monkeypatch.setattr(real.commands.advise, "_requests", requests)
    tiny = Path(real.__file__).parent / "tiny" / "target"
    for name in ("tokenizer.json", "config.json"):
        (small.folder / "m" / name).write_bytes((tiny / name).read_bytes())
    config = json.loads((small.folder / "m" / "config.json").read_text())
    (small.folder / "m" / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": 140})
    )
    whole = "--chat-template", "none", "--out", "a"
    _, _, error = command(small.folder, *ADVISE, "--budget", 10, *whole)
    assert asked[0][2] == 140 - 10 - 4 * 2 - 4
    assert "left out 2 of 42 prompts: 1 over 118 tokens" in error
    assert "1 empty" in error
    code, _, error = command(small.folder, *ADVISE, "--budget", 128, *whole)
    assert (code, error.count("\n")) == (2, 1)
    assert "m reads 140 tokens, no prompt fits before --budget 128" in error


HOSTILE = [
    ("\n" * 5, "holds no text"),
    ('{"prompt": [1], "output": [NaN]}', "line 1"),
    ('{"prompt": [1], "output": [1e400]}', "line 1"),
    ('{"prompt": [1], "output": [-1]}', "line 1"),
    ('{"prompt": [1], "output": [2], "temperature": NaN}', "line 1: temperature is nan"),
    ('{"prompt": [1], "output": [2], "id": [1]}', "line 1"),
    ('{"prompt": [1], "output": "text"}', "--tokenizer"),
    ("[" * 100_000, "line 1"),
    ('{"prompt": [1], "output": [' + "7," * 140_000 + "7]}", "at most 131,072"),
    ('{"prompt": [1], "output": [' + "9" * 5000 + "]}", "line 1"),
    ('{"id": "a", "prompt": [1], "output": [2]}\n' * 3, "2 ids twice"),
    ("x" * 5 + "\x00\xff", "line 1"),
]


@pytest.mark.parametrize("log, words", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_log_is_one_line(small, log, words):
    (small.folder / "log.jsonl").write_text(log)
    CostModel.from_ratio(0.02, 5).to_json(small.folder / "c.json")
    asked = "advise", "vllm", "--log", "log.jsonl", "--cost", "c.json", "--out", "a"
    code, out, error = command(small.folder, *asked)
    assert (code, out, error.count("\n")) == (2, "", 1), error[:500]
    assert words in error
    assert len(error) < 500
    assert not (small.folder / "a").exists()


def test_a_long_line_and_a_long_file_are_refused_before_they_are_parsed(small, monkeypatch):
    import simspec.engines.text as text

    monkeypatch.setattr(text, "MOST_LINE", 1000)
    monkeypatch.setattr(text, "MOST_BYTES", 5000)
    monkeypatch.setattr(text.json, "loads", lambda line: pytest.fail("parsed"))
    CostModel.from_ratio(0.02, 5).to_json(small.folder / "c.json")
    (small.folder / "log.jsonl").write_text(" " * 2000 + "{}\n")
    asked = "advise", "vllm", "--log", "log.jsonl", "--cost", "c.json", "--out", "a"
    code, _, error = command(small.folder, *asked)
    assert (code, "expected at most 1,000 bytes a line and 5,000 a file" in error) == (2, True)
    (small.folder / "log.jsonl").write_text((" " * 900 + "\n") * 9)
    code, _, error = command(small.folder, *asked)
    assert (code, "line 6: expected at most" in error) == (2, True)


def test_a_log_of_one_repeated_token_ends(small):
    """The longest texts that repeat: n-grams match everywhere."""
    rows = [{"id": str(i), "prompt": [5] * 50, "output": [5] * 4000} for i in range(20)]
    (small.folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    CostModel.from_ratio(0.02, 4).to_json(small.folder / "c.json")
    asked = "advise", "vllm", "--log", "log.jsonl", "--cost", "c.json", "--depth", 4, "--out", "a"
    found = json.loads(simspec(*asked, "--json", cwd=small.folder)[0])
    assert found["advice"][0]["k"] == 4
