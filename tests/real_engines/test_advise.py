"""`simspec advise` on an engine in this process: chosen, confirmed, resumed, refused."""

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import FakeRunner, do_run, prompts
from pages import faults_of
from shell import command, simspec

import real.commands.advise
import real.engines
import real.engines.advise
from real.commands.advise import Advise
from real.engines import EngineSettings, NgramDraft
from real.engines.advise import working_in
from real.engines.measure import engine_cost
from real.engines.run import Plan
from simspec import CostModel, load_trace
from simspec.cost.table import load_cost
from simspec.engines.exports import BY_BATCH, LENGTH, lengths_by_batch, read_vllm
from simspec.engines.vllm_proposer import PolicyProposer

REQUESTS = real.commands.advise._requests
WORLD = prompts(40)
TASKS = {request.id: f"task {i % 2}" for i, (request, _) in enumerate(WORLD)}
ADVISE = ("advise", "vllm", "--model", "m", "--prompts", "p.jsonl", "--depth", 5)
"""Half of 40 prompts is chosen on, half verified on."""


def drafted_at(config, batch):
    """The draft length of vLLM's configuration at that number of requests."""
    ranges = config.get(BY_BATCH, [[1, 1, config[LENGTH]]])
    return lengths_by_batch(ranges, config[LENGTH], batch)[batch]


def growing(drafted, k):
    """Seconds of a pass: the fifth draft token costs much, all others little."""
    return 1.0 + 0.06 * drafted + (1.0 if drafted > 4 else 0.0)


def clock(active, drafted, k):
    """Seconds of a pass of several requests, where drafts cost as much as tokens."""
    return 1.0 + 0.3 * active + 0.6 * drafted


def fake_engine(folder, patch):
    """An engine whose options the test may change, in an empty folder."""
    options = {"seconds": growing, "step_seconds": clock, "follows": True, "jitter": 0.004}
    (folder / "m").mkdir()
    requests = [request for request, _ in WORLD]
    patch.setattr(real.commands.advise, "_requests", lambda *_: (requests, TASKS))
    patch.setattr(real.engines, "find_environment", lambda engine: SimpleNamespace(
        version=engine.tested[0], python=Path("python"), package="vllm"
    ))  # fmt: skip
    made = []

    def worker(*_):
        made.append(FakeRunner(WORLD, **options))
        return made[-1]

    patch.setattr(real.engines, "Worker", worker)
    return SimpleNamespace(folder=folder, options=options, made=made)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    return fake_engine(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    """(what the command prints, its folder) on an undisturbed engine; tests leave it unchanged."""
    with pytest.MonkeyPatch.context() as patch:
        engine = fake_engine(tmp_path_factory.mktemp("advised"), patch)
        out, _ = simspec(*ADVISE, "--out", "a", "--json", cwd=engine.folder)
    return json.loads(out), engine.folder / "a"


def test_the_advice_is_confirmed_and_written(advised):
    found, folder = advised
    assert found["confirmed"]
    (advice,), (checked,) = found["advice"], found["verified"]
    assert advice["candidate"] == found["drafter"]
    assert 1 <= advice["k"] == advice["drafting"] <= 4  # the fifth token is dear
    best = max(found["tried"], key=lambda tried: tried["speedup"])
    assert best["candidate"] == found["drafter"]
    assert checked["exceptions"] == 0
    rows = {row["k"]: row for row in checked["table"]["rows"]}
    assert {0, advice["k"]} < set(rows)
    for row in rows.values():
        assert row["predicted"] == pytest.approx(row["measured"], rel=0.01)
    config = read_vllm((folder / "setting.json").read_text())
    assert drafted_at(config, 1) == advice["k"]
    least, most = found["drafter"].split("-")[1:]
    assert [config["prompt_lookup_min"], config["prompt_lookup_max"]] == [int(least), int(most)]
    for name in ("ngram-1-3", "ngram-2-4", "ngram-3-5"):
        trace = load_trace(folder / f"{name}.parquet")
        assert (trace.sequences, trace.K, set(trace.meta.tasks)) == (20, 5, set(TASKS.values()))
        assert load_cost(folder / f"{name}.cost.json").K == 5
    assert set(found["by_task"]) == set(TASKS.values())
    page = (folder / "report.html").read_text()
    assert "Verified on held-out prompts" in page
    assert "prompt_lookup_max" in page
    assert "Costs are of fake, vllm 1.0, V1 runner" in page
    assert "and vLLM serves ngram on V2, whose" in page  # no CPU
    assert faults_of(page) == []
    assert json.loads((folder / "advice.json").read_text()) == found


def test_prompts_of_choice_and_verification_are_apart(advised):
    ids = {}
    for name in ("texts", "ngram.b1.cost", "*.b1.verify"):
        (path,) = advised[1].glob(f"{name}.rows.jsonl")
        _, *lines = path.read_text().splitlines()
        ids[name] = {json.loads(line)["request"]["id"] for line in lines}
    assert not ids["*.b1.verify"] & (ids["texts"] | ids["ngram.b1.cost"])
    assert ids["ngram.b1.cost"] < ids["texts"]


def test_batches_have_their_own_lengths(engine):
    out, _ = simspec(*ADVISE, "--batch", 4, "--batch", 1, "--out", "a", "--json", cwd=engine.folder)
    found = json.loads(out)
    assert [advice["batch"] for advice in found["advice"]] == [1, 4]
    one, four = (advice["k"] for advice in found["advice"])
    assert one > four == 0  # drafts cost as much as tokens in a batch
    speedup, why = (found["advice"][1][name] for name in ("speedup", "why"))
    steps = 1 + sum(part["value"] for part in why["parts"].values())
    assert speedup == pytest.approx(why["tokens"] / steps)
    assert "A round of K = 1, 4 in flight takes" in (engine.folder / "a/report.html").read_text()
    config = read_vllm((engine.folder / "a" / "setting.json").read_text())
    assert (drafted_at(config, 1), drafted_at(config, 4)) == (one, 0)


@pytest.mark.parametrize("fails", [3, 25, 62])
def test_an_engine_that_dies_leaves_a_run_that_continues(engine, advised, fails):
    engine.options["fails"] = fails
    code, out, error = command(engine.folder, *ADVISE, "--out", "a", "--json")
    assert code == 2
    assert error.strip().splitlines()[-1] == "simspec: fake 1.0 was ended by signal 9"
    del engine.options["fails"]
    code, out, error = command(engine.folder, *ADVISE, "--out", "a", "--json")
    assert code == 0, error
    again, first = json.loads(out[out.index("{") :]), advised[0]
    assert again["advice"][0]["candidate"] == first["advice"][0]["candidate"]
    speedups = [found["advice"][0]["speedup"] for found in (again, first)]
    assert speedups[0] == pytest.approx(speedups[1], rel=0.002)  # of other blocks
    assert again["confirmed"]


def test_control_an_engine_that_became_slower_is_not_confirmed(engine):
    """Costs are of the first workers; those that verify pay three plain passes for a draft."""
    engine.options["seconds"] = lambda drafted, k: (
        growing(drafted, k) if len(engine.made) < 3 else 1.0 + 3.0 * (drafted > 0)
    )
    out, _ = simspec(*ADVISE, "--out", "a", cwd=engine.folder, code=1)
    assert "K = 0 is faster" in out


def test_the_best_policy_runs_next_to_the_length(engine, advised):
    found, folder = advised
    (tried,) = found["policies"]
    assert tried["policy"] in real.commands.advise.POLICIES
    assert tried["verified"]["exceptions"] == 0
    rows = {row["policy"] or row["k"]: row for row in tried["verified"]["table"]["rows"]}
    assert {0, found["advice"][0]["k"], 5, tried["policy"]} == {*rows}
    for row in rows.values():
        assert row["predicted"] == pytest.approx(row["measured"], rel=0.01)
    assert not (folder / "policy.json").exists()
    out, _ = simspec(*ADVISE, "--policy", "none", "--out", "b", cwd=engine.folder)
    assert "the policy" not in out
    tried = "--policy", "fixed:1", "--policy", "confidence:0.5"
    out, _ = simspec(*ADVISE, *tried, "--out", "c", cwd=engine.folder)
    assert "the policy fixed:1 in the engine is no faster" in out


def test_a_policy_that_wins_is_written(engine):
    engine.options["seconds"] = lambda drafted, k: 0.95 if k == -1 else growing(drafted, k)
    out, _ = simspec(*ADVISE, "--out", "a", cwd=engine.folder)
    assert "in the engine is faster, predicted" in out
    written = json.loads((engine.folder / "a" / "policy.json").read_text())
    settings = written["additional_config"]["simspec"]
    assert settings["policy"] in real.commands.advise.POLICIES
    proposer = PolicyProposer(
        SimpleNamespace(
            speculative_config=SimpleNamespace(**written["speculative_config"]),
            additional_config=written["additional_config"],
        )
    )
    assert proposer.policy.name.partition(":")[0] == settings["policy"].partition(":")[0]
    assert (proposer.K, proposer.cost.K) == (5, 5)


def test_a_policy_whose_run_was_disturbed_wins_nothing(engine):
    """Plain passes of the policy's run take twice as long, all others are as before."""
    engine.options["seconds"] = lambda drafted, k: (
        (0.95 if k == -1 else growing(drafted, k))
        * (1.2 if k == 0 and len(engine.made) > 3 else 1.0)
    )
    (engine.folder / "a").mkdir()
    for name in ("policy.json", "setting.json"):
        (engine.folder / "a" / name).write_text("of an earlier call")
    out, _ = simspec(*ADVISE, "--out", "a", cwd=engine.folder, code=1)
    assert re.search(
        r"Not settled: two runs of K = 3 gave 1.\d\d and [12].\d\d; run again on an idle", out
    )
    assert "confirmed" not in out
    assert "two runs of K = 3" in (engine.folder / "a" / "report.html").read_text()
    assert not {p.name for p in (engine.folder / "a").iterdir()} & {"policy.json", "setting.json"}
    engine.options["seconds"] = growing  # idle again: the same command times again
    out, _ = simspec(*ADVISE, "--out", "a", cwd=engine.folder)
    assert "Not settled" not in out
    assert (engine.folder / "a" / "setting.json").exists()


def a_log(folder, **more):
    """A log of WORLD's texts, and costs."""
    lines = [
        json.dumps(
            {"id": r.id, "task": TASKS[r.id], "prompt": r.prompt, "output": future[:20]} | more
        )
        for r, future in WORLD
    ]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    CostModel.from_ratio(0.02, 5).to_json(folder / "c.json")


def test_a_log_needs_no_model(engine):
    a_log(engine.folder)
    asked = "advise", "vllm", "--log", "log.jsonl", "--cost", "c.json", "--depth", 5, "--out", "a"
    out, _ = simspec(*asked, "--json", cwd=engine.folder)
    found = json.loads(out)
    assert (found["confirmed"], found["verified"], found["policies"]) == (None, [], [])
    assert not engine.made
    code, _, error = command(engine.folder, *asked, "--policy", "cost_ts")
    assert (code, "needs vLLM and a model" in error) == (2, True)
    config = read_vllm((engine.folder / "a" / "setting.json").read_text())
    assert drafted_at(config, 1) == found["advice"][0]["k"] > 0
    out, _ = simspec(*asked, cwd=engine.folder)
    assert "measured" not in out
    a_log(engine.folder, temperature=0.7)
    code, _, error = command(engine.folder, *asked)
    assert code == 2
    assert "sampled" in error


def test_a_log_at_costs_that_lie_gets_no_setting(engine):
    """One sample a cell, 200 replicates alike; a pass of two drafts is cheaper than a plain one."""
    a_log(engine.folder)
    asked = "advise", "vllm", "--log", "log.jsonl", "--cost", "c.json", "--depth", 5, "--out", "a"
    simspec(*asked, cwd=engine.folder)
    assert (engine.folder / "a" / "setting.json").exists()
    world, plan = WORLD[:2], Plan(tuple(range(6)), 2, 2, force=True)
    settings = EngineSettings(Path("m"), NgramDraft(5, 1, 3))
    runner = FakeRunner(world, seconds=growing)
    cost = engine_cost(*do_run(engine.folder / "c.jsonl", runner, world, plan, settings))
    cost.to_json(engine.folder / "c.json")
    out, _ = simspec(*asked, cwd=engine.folder, code=1)
    assert "Not settled: the costs have 2 undisturbed timing blocks, expected 4 or more" in out
    assert "no setting: not settled" in out
    replace(cost, verify=cost.verify * [1, 1, 0.4, 1, 1, 1]).to_json(engine.folder / "c.json")
    (engine.folder / "a" / "setting.json").write_text("of an earlier call")
    code, out, error = command(engine.folder, *asked)
    assert (code, out) == (1, "")
    assert re.search(r"K = 2 would be .* at 1.\d+ tokens a round.* 2 drafts at 0.45 of", error)
    assert not (engine.folder / "a" / "setting.json").exists()


def test_one_advise_works_in_a_folder(engine):
    with working_in(engine.folder / "a"):
        code, _, error = command(engine.folder, *ADVISE, "--out", "a")
    assert (code, error.count("\n")) == (2, 1)
    assert "another advise is running in a: wait for it, or give another --out" in error
    assert not engine.made


SOURCES = [
    (("--model", "m"), "give --model and --prompts, or --log and --cost"),
    (("--model", "m", "--prompts", "p", "--cost", "c"), "--cost is for --log"),
    (("--log", "l"), "--log needs --cost, and no --model"),
    (("--log", "l", "--cost", "c", "--model", "m"), "--log needs --cost, and no --model"),
]


REFUSED = [
    (("--batch", 64), "40 prompts leave 20 to verify on, --batch is 64"),
    (("--draft-model", "none"), "expected a transformers checkpoint, or GGUF=FOLDER"),
    (("--policy", "cost_tss"), "did you mean cost_ts?"),
    (("--policy", "oracle"), "reads tokens not yet decoded"),
    (("--policy", "fixed:9"), "drafts up to 9"),
]
REFUSED = SOURCES + [((*ADVISE[2:], *options), reason) for options, reason in REFUSED]


@pytest.mark.parametrize("options,reason", REFUSED, ids=range(len(REFUSED)))
def test_errors_are_one_line(engine, options, reason):
    code, out, error = command(engine.folder, "advise", "vllm", *options, "--out", "a")
    assert (code, out) == (2, "")
    assert reason in error
    assert not (engine.folder / "a").exists()


def test_real_prompts_become_requests(tmp_path):
    rows = [{"id": f"q{i}", "task": "t", "text": f"Count to {i}."} for i in range(40)]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = Path(real.__file__).parent / "tiny" / "target"
    asked = Advise("vllm", Path("a"), Path("m"), path, count=16, budget=8)
    made, tasks = REQUESTS(asked, target, 100)
    assert [request.id for request in made] == [f"q{i * 40 // 16}" for i in range(16)]
    assert {request.max_tokens for request in made} == {8}
    assert set(tasks.values()) == {"t"}
    path.write_text("".join(json.dumps(row | {"id": "q"}) + "\n" for row in rows))
    with pytest.raises(ValueError, match="39 ids twice"):
        REQUESTS(asked, target, 100)
    path.write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(ValueError, match="holds 1 prompts that fit, expected at least 16"):
        REQUESTS(asked, target, 100)


SMALL = prompts(16, budget=10)
SHORT = (*ADVISE[:6], "--depth", 2, "--policy", "none")


@pytest.fixture
def small(engine, monkeypatch):
    """16 prompts, and a report without charts, which take most of the time."""
    requests = [request for request, _ in SMALL]
    tasks = {request.id: "task" for request in requests}
    monkeypatch.setattr(real.commands.advise, "_requests", lambda *_: (requests, tasks))
    monkeypatch.setattr(real.engines.advise, "all_figures", lambda *_: [])
    monkeypatch.setattr(real.engines.advise, "page_of", lambda *_: "page")
    return engine


def one_line(folder, code, words):
    """The command fails with one line, after lines of progress; no file is left half written."""
    left, out, error = command(folder, *SHORT, "--out", "a", "--json")
    *earlier, last = error.strip().splitlines()
    assert (left, out) == (code, ""), error
    assert words in last
    assert "Traceback" not in error
    assert not any(words in line for line in earlier)
    assert not list((folder / "a").glob(".*.part"))


def finished(folder, out="a"):
    """What the command says once it ends well."""
    found = json.loads(simspec(*SHORT, "--out", out, "--json", cwd=folder)[0])
    assert (folder / out / "report.html").read_text() == "page"
    return found


def test_transformers_gets_a_generation_config(small):
    small.options.update(rules="transformers_ngram", rule="transformers:1,2", name="transformers")
    asked = "advise", "transformers", *SHORT[2:8]
    found = json.loads(simspec(*asked, "--out", "a", "--json", cwd=small.folder)[0])
    assert (found["confirmed"], found["policies"]) == (True, [])
    assert found["verified"][0]["exceptions"] == 0
    assert json.loads((small.folder / "a" / "setting.json").read_text()) == {
        "prompt_lookup_num_tokens": found["advice"][0]["k"],
        "max_matching_ngram_size": int(found["drafter"][-1]),
    }
    code, _, error = command(small.folder, *asked, "--batch", 2, "--out", "b")
    assert (code, "transformers serves one request a pass" in error) == (2, True)


STEPS = (
    "write_plain_texts", "measure_costs", "record_drafts", "choose_length", "verify", "by_task",
    "write_setting", "write_policy", "write_report",
)  # fmt: skip


def test_ctrl_c_after_each_step_and_within_a_run(small, monkeypatch):
    whole = finished(small.folder, "whole")
    small.options.update(fails=5, stops=KeyboardInterrupt)
    one_line(small.folder, 130, "simspec: interrupted")
    del small.options["fails"]
    for name in STEPS:
        step = getattr(real.engines.advise, name)

        def interrupted(*given, step=step):
            step(*given)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(real.engines.advise, name, interrupted)
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
    assert speedups[0] == pytest.approx(speedups[1], rel=0.002)  # of other blocks
    assert again["confirmed"]
    assert again["verified"][0]["passes"] == whole["verified"][0]["passes"]


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
    whole = "--raw", "--out", "a"
    _, _, error = command(small.folder, *SHORT, "--budget", 10, *whole)
    assert asked[0][2] == 140 - 10 - 4 * 2 - 4
    assert "left out 2 of 42 prompts: 1 over 118 tokens" in error
    assert "1 empty" in error
    code, _, error = command(small.folder, *SHORT, "--budget", 128, *whole)
    assert (code, error.count("\n")) == (2, 1)
    assert "m reads 140 tokens, no prompt fits before --budget 128" in error


HOSTILE = [
    ('{"prompt": [1], "output": [2], "temperature": NaN}', "line 1: JSON is malformed"),
    ('{"prompt": [1], "output": "text"}', "--tokenizer"),
    ('{"id": "a", "prompt": [1], "output": [2]}\n' * 3, "2 ids twice"),
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
