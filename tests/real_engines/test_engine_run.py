"""Runs on an engine: blocks, rows that survive kills, and the comparison with the replay."""

import json
import lzma
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_engine import KS, PLAN, SETTINGS, FakeRunner, do_run, prompts

from real.engines import EngineError, ModelDraft, NgramDraft
from real.engines.compare import compare_rows, convention_of, rule_of, written_text
from real.engines.convention import CONVENTIONS
from real.engines.rows import open_rows, read_rows
from real.engines.run import (
    Plan,
    Workers,
    about_run,
    blocks,
    choose_prompts,
    run_blocks,
    run_on_engine,
)
from simspec import load_trace
from simspec.engines.ngram import ngram_rule
from simspec.engines.text import record_texts

ROOT = Path(__file__).parents[2]


def test_every_length_runs_on_every_prompt_in_shuffled_blocks(tmp_path):
    world, plan = prompts(7), Plan(KS, repeats=2, group=3)
    _, rows = do_run(tmp_path / "r.jsonl", FakeRunner(world), world, plan)
    keys = Counter((row.block, row.k, row.request.id) for row in rows)
    assert set(keys.values()) == {1}
    assert len(keys) == 7 * 2 * len(KS)
    made = blocks([request for request, _ in world], plan)
    assert [b[0] for b in made] != sorted(b[0] for b in made) or len(made) < 4
    assert len({b[2] for b in made}) > 1
    assert all(sorted(b[2]) == [(k, "") for k in KS] for b in made)
    order = list(dict.fromkeys((row.block, row.k) for row in rows))
    assert order == [(b[0], k) for b in made for k, _ in b[2]]


def test_an_engine_that_fails_keeps_what_ran_and_goes_on(tmp_path):
    world, path = prompts(5), tmp_path / "r.jsonl"
    whole = do_run(tmp_path / "whole.jsonl", FakeRunner(world), world)[1]
    for fails in (3, 11, 15, 17):
        with pytest.raises(EngineError):
            do_run(path, FakeRunner(world, fails=fails), world)
    rows = do_run(path, FakeRunner(world), world)[1]
    assert [row.key for row in rows] == [row.key for row in whole]
    assert [row.finished for row in rows] == [row.finished for row in whole]
    assert len({row.session for row in rows}) > 1


def test_half_a_line_is_removed_and_its_request_runs_again(tmp_path):
    world, path = prompts(4), tmp_path / "r.jsonl"
    whole = do_run(path, FakeRunner(world), world)[1]
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for cut in (1, 40, len(lines[-1]) - 1, len(lines[-1])):
        path.write_bytes(data[:-cut])
        rows = do_run(path, FakeRunner(world), world)[1]
        assert [row.key for row in rows] == [row.key for row in whole]
    path.write_bytes(lines[0][:10])
    assert len(do_run(path, FakeRunner(world), world)[1]) == len(whole)


def test_kills_at_any_moment_lose_and_repeat_no_row(tmp_path):
    """Forked children; each is killed at another moment of its run."""
    world, path = prompts(8), tmp_path / "r.jsonl"
    expected = do_run(tmp_path / "whole.jsonl", FakeRunner(world), world)[1]

    class Slow(FakeRunner):
        def answer(self, *arguments):
            time.sleep(0.0005)
            return super().answer(*arguments)

    kills = counted = 0
    while kills < (200 if os.environ.get("SIMSPEC_SLOW") else 70):
        child = os.fork()
        if child == 0:
            try:
                do_run(path, Slow(world), world)
            finally:
                os._exit(0)
        time.sleep(0.002 + 0.0126 * (kills * 0.618 % 1))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        if path.exists() and path.stat().st_size > 200:
            rows = read_rows(path)[1]
            assert len(rows) >= counted  # nothing that was on the disk is lost
            counted = len(rows)
            if counted == len(expected):
                assert [row.key for row in rows] == [row.key for row in expected]
                path.unlink()
                counted = 0
    rows = do_run(path, FakeRunner(world), world)[1]
    assert [row.finished for row in rows] == [row.finished for row in expected]


def test_another_run_does_not_continue_the_file(tmp_path):
    world, path = prompts(4), tmp_path / "r.jsonl"
    do_run(path, FakeRunner(world), world)
    with pytest.raises(ValueError, match="holds another run, which differs in threads: name"):
        do_run(path, FakeRunner(world), world, settings=replace(SETTINGS, threads=2))
    with pytest.raises(ValueError, match="differs in count, prompts"):
        do_run(path, FakeRunner(world), world[:3])
    with pytest.raises(ValueError, match="differs in plan"):
        do_run(path, FakeRunner(world), world, Plan((0, 1)))


def test_two_processes_do_not_write_one_file(tmp_path):
    path, refused = tmp_path / "r.jsonl", pytest.raises(ValueError, match="another process: wait")
    with open_rows(path, {}), refused, open_rows(path, {}):
        pass


def test_a_row_whose_clock_lies_is_refused(tmp_path):
    world = prompts(3)
    do_run(tmp_path / "r.jsonl", FakeRunner(world), world)
    text = (tmp_path / "r.jsonl").read_text()
    (tmp_path / "r.jsonl").write_text(text.replace('"pass_seconds":[5.0', '"pass_seconds":[1e8', 1))
    with pytest.raises(ValueError, match=r"line 2 .*request 'p\d', or a pass of it, took 1e\+08 s"):
        read_rows(tmp_path / "r.jsonl")


WRONG = [b"{}\n", b"[1]\n", b"\xff\n", b'{"simspec_engine_rows": 2, "about": {}}\n', b"\n"]


@pytest.mark.parametrize("content", WRONG)
def test_other_files_are_refused_and_stay(tmp_path, content):
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    for read in (lambda: read_rows(path), lambda: open_rows(path, {}).__enter__()):
        with pytest.raises(ValueError, match="line 1 is no row of a run"):
            read()
    assert path.read_bytes() == content


def test_a_packed_file_is_read_as_the_file_itself(tmp_path):
    world, path = prompts(3), tmp_path / "r.jsonl"
    about, rows = do_run(path, FakeRunner(world), world)
    packed = tmp_path / "r.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert read_rows(packed) == (about, rows)
    for damaged in (path.read_bytes(), packed.read_bytes()[:-20]):
        packed.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"r.jsonl.xz is no whole .xz file .*copy it again"):
            read_rows(packed)


ABOUT = [
    ({"plan": {"ks": [1], "force": False, "concurrent": 1}}, r"0 \(plain\) among them"),
    ({"plan": {}}, "field ks"),
    ({"draft": {"method": "ngram", "ngram_min": 3, "ngram_max": 1}}, "n-grams"),
    ({"draft": 7}, "expected object"),
    ({"draft": {"method": "policy", "ngram_min": 1, "ngram_max": 3, "cost": 3}}, "expected object"),
    ({"draft": {"method": "policy", "ngram_min": 1, "ngram_max": 3}}, "cost"),
    ({"prompts": 5}, "expected str"),
    ({"threads": -1}, ">= 0"),
    ({"plan": {"ks": [0], "force": False, "concurrent": 1, "policies": ["x"]}}, "no proposer"),
]


@pytest.mark.parametrize("changes, reason", ABOUT)
def test_a_description_that_comparisons_cannot_read_is_refused(tmp_path, changes, reason):
    world, path = prompts(3), tmp_path / "r.jsonl"
    do_run(path, FakeRunner(world), world)
    head, *lines = path.read_bytes().splitlines(keepends=True)
    value = json.loads(head)
    value["about"] |= changes
    path.write_bytes(b"".join([json.dumps(value).encode() + b"\n", *lines]))
    with pytest.raises(ValueError, match=f"line 1 describes no run: .*{reason}"):
        read_rows(path)


def test_damaged_rows_are_refused(tmp_path):
    world, path = prompts(3), tmp_path / "r.jsonl"
    do_run(path, FakeRunner(world), world)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    with pytest.raises(ValueError, match="repeats a request of its block"):
        read_rows(path)
    row = json.loads(lines[1])
    row["finished"]["passes"] = [[1, 0, 3]]
    path.write_bytes(lines[0] + json.dumps(row).encode() + b"\n")
    with pytest.raises(ValueError, match="line 2 is no row"):
        read_rows(path)


def test_one_worker_a_length_where_a_run_cannot_set_it(tmp_path):
    world, made = prompts(4), []

    def make():
        made.append(FakeRunner(world, sets_k=False))
        return made[-1]

    requests, plan = [request for request, _ in world], Plan(KS, 1, 2)
    workers = Workers(make, SETTINGS, plan)
    with open_rows(tmp_path / "r.jsonl", {}) as rows:
        run_blocks(workers, requests, plan, rows)
        assert compare_rows(about_run(workers.ready, SETTINGS, requests, plan), rows.rows).equal
    workers.close()
    drafts = [runner.started[0].draft for runner in made]
    assert sorted(0 if draft is None else draft.k for draft in drafts) == list(KS)
    assert all(runner.closed == 1 and len(runner.started) == 1 for runner in made)


ENGINES = [
    ("vllm", "vllm", "vllm:1,2"),
    ("llamacpp", "llamacpp", "llamacpp:1"),
    ("transformers_ngram", "transformers", "transformers:1,2"),
]


@pytest.mark.parametrize("rules,engine,rule", ENGINES)
def test_passes_of_every_engine_equal_their_replay(tmp_path, rules, engine, rule):
    world, draft = prompts(8), NgramDraft(4, 1, 1 if engine == "llamacpp" else 2)
    runner = FakeRunner(world, rules, rule)
    runner.name = engine
    about, rows = do_run(
        tmp_path / "r.jsonl", runner, world, settings=replace(SETTINGS, draft=draft)
    )
    assert convention_of(about) == CONVENTIONS[rules]
    assert rule_of(about) == ngram_rule(rule)
    result = compare_rows(about, rows)
    assert result.equal
    assert result.differences == ()
    assert result.requests == len(rows)
    for held in result.counters.values():
        assert all(engine_s == predicted for engine_s, predicted in held.values())
    assert result.counters[4]["num_drafts"][0] > 0


CONTROLS = [
    ("convention_of", replace(CONVENTIONS["vllm"], first_draft=0)),
    ("convention_of", replace(CONVENTIONS["vllm"], cap="tokens_left")),
    ("rule_of", ngram_rule("vllm_v2:1,2")),
    ("rule_of", ngram_rule("vllm:1,1")),
]


@pytest.mark.parametrize("name,wrong", CONTROLS, ids=range(len(CONTROLS)))
def test_control_wrong_rules_are_counted_as_exceptions(tmp_path, monkeypatch, name, wrong):
    world = prompts(8)
    about, rows = do_run(tmp_path / "r.jsonl", FakeRunner(world), world)
    monkeypatch.setattr(f"real.engines.compare.{name}", lambda about: wrong)
    result = compare_rows(about, rows)
    assert not result.equal
    assert {difference.kind for difference in result.exceptions} == {"passes"}


def changed(rows, place, **changes):
    finished = replace(rows[place].finished, **changes)
    return [*rows[:place], replace(rows[place], finished=finished), *rows[place + 1 :]]


def test_control_a_phantom_round_and_another_token_are_exceptions(tmp_path):
    world = prompts(8)
    about, rows = do_run(tmp_path / "r.jsonl", FakeRunner(world), world)
    place = next(i for i, row in enumerate(rows) if row.k == 2)
    passes = rows[place].finished.passes
    phantom = compare_rows(about, changed(rows, place, passes=((1, 2, 0), *passes[1:])))
    (found,) = phantom.exceptions
    assert (found.kind, found.place, found.engine) == ("passes", 0, [1, 2, 0])
    tokens = rows[place].finished.tokens
    other = compare_rows(about, changed(rows, place, tokens=(*tokens[:4], 9, *tokens[5:])))
    assert ("text", 4, 9) in [(d.kind, d.place, d.engine) for d in other.exceptions]


def test_another_text_is_an_exception_in_exact_settings_only(tmp_path):
    world = prompts(8)
    about, rows = do_run(tmp_path / "r.jsonl", FakeRunner(world), world)
    place = next(i for i, row in enumerate(rows) if row.k == 2)
    tokens = rows[place].finished.tokens
    passes = ((1, 0, 0),) * len(tokens)
    odd = changed(rows, place, tokens=tuple(range(100, 100 + len(tokens))), passes=passes)
    found = compare_rows(about, odd)
    assert {difference.kind for difference in found.exceptions} == {"text"}
    fast = compare_rows(about | {"exact": False}, odd)
    assert fast.equal
    assert fast.differences == found.differences
    assert fast.explained == "0 near-ties, 1 texts that differ under --fast"
    wrong = changed(odd, place, passes=((1, 2, 0), *passes[1:]))
    assert not compare_rows(about | {"exact": False}, wrong).equal  # its passes still count


def test_a_recording_explains_near_ties_and_replays_model_drafts(tmp_path, monkeypatch):
    """With a recording in the place of a rule that always drafts K tokens, as a model does."""
    world, rule = prompts(8), "vllm_v2:1,2"
    about, rows = do_run(tmp_path / "r.jsonl", FakeRunner(world, "vllm_model", rule), world)
    model = about | {"engine": "vllm", "draft": {"method": "model"}}
    with pytest.raises(ValueError, match="name one with --recording"):
        compare_rows(model, rows)
    plain = [written_text(row) for row in rows if row.k == 0 and row.block < 3]
    trace = record_texts(plain, ngram_rule(rule), 4, (3,))
    assert compare_rows(model, rows, trace).equal
    cut = replace(trace, depth=np.minimum(trace.depth, trace.run + 1).astype(np.uint8))  # at an end
    assert compare_rows(model, rows, cut).equal
    with monkeypatch.context() as patched:
        patched.setitem(CONVENTIONS, "vllm_model", CONVENTIONS["vllm"])
        assert not compare_rows(model, rows, cut).equal
    place, text = next((i, r.finished.tokens) for i, r in enumerate(rows) if r.k == 2)
    odd = changed(rows, place, tokens=(*text[:4], 9, *text[5:]))
    assert not compare_rows(model, odd, trace).equal
    tied = replace(trace, margin=np.zeros(trace.rows, np.uint8))
    result = compare_rows(model, odd, tied)
    assert result.equal
    assert result.left_out == 1
    assert [difference.near_tie for difference in result.differences] == [True]
    wide = replace(trace, margin=np.full(trace.rows, 200, np.uint8))  # 0.18 nats
    assert not compare_rows(model, odd, wide).equal
    assert compare_rows(model | {"dtype": "bfloat16"}, odd, wide).equal


def test_invalid_plans_are_refused():
    for ks in ((1, 2), (0, 1, 1), (0, -1)):
        with pytest.raises(ValueError, match="expected different ones, 0"):
            Plan(ks)
    with pytest.raises(ValueError, match="repeats is 0"):
        Plan((0,), repeats=0)


def test_drafts_of_a_model_are_not_replaced_by_junk(tmp_path):
    """Junk would leave the model's own passes out of the costs."""
    world, path = prompts(4), tmp_path / "r.jsonl"
    settings = replace(SETTINGS, draft=ModelDraft(4, Path("draft")))
    runner = FakeRunner(world)
    run_on_engine(lambda: runner, settings, [request for request, _ in world], PLAN, path)
    about, rows = read_rows(path)
    assert not about["plan"]["force"]
    assert {row.force for row in rows} == {None}


def test_parts_of_a_recording_share_no_prompt():
    trace = load_trace(ROOT / "traces/smollm2/greedy/prompt_lookup.parquet")
    ids = [{r.id for r in choose_prompts(trace, 10, f"{part}/3", 96)} for part in (1, 2, 3)]
    assert [len(part) for part in ids] == [10, 10, 10]
    assert not (ids[0] & ids[1] | ids[1] & ids[2] | ids[0] & ids[2])
    whole = [{r.id for r in choose_prompts(trace, 0, f"{part}/3")} for part in (1, 2, 3)]
    both = [r.id for r in choose_prompts(trace, 0, "1-2/3")]
    assert set(both) == whole[0] | whole[1]
    assert both == [name for name in trace.meta.ids if name in whole[0] | whole[1]]
    (request, *_) = choose_prompts(trace, budget=96)
    assert request.max_tokens == 96
    assert list(request.prompt) == trace.prompt[: trace.prompt_offset[1]].tolist()
    assert len(choose_prompts(trace)) == 97
    for part in ("3", "2-1/3", "3/2", "1-4/3", "0/1"):
        with pytest.raises(ValueError, match="expected PART/PARTS"):
            choose_prompts(trace, part=part)
