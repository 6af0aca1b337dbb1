"""vLLM itself on SmolLM2: texts and rounds equal to the bundled recording and to the rule.

`make test-engines` runs it, for want of time and of memory (3 GB) not `make test`.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from own_vllm import needs_vllm, reason_to_skip
from test_engine_workers import by_rule

from real.engines import (
    RELEASED,
    EngineError,
    EngineSettings,
    ModelDraft,
    NgramDraft,
    Request,
    Worker,
    find_environment,
)
from real.engines.compare import compare_rows
from real.engines.convention import clipped
from real.engines.rows import Row
from real.engines.run import Plan, about_run
from simspec import load_trace

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "models" / "smollm2" / "target"
BUDGET, PROMPTS = 48, range(0, 96, 12)
NGRAM = EngineSettings(TARGET, NgramDraft(8, 1, 3), batch=4, longest=800)


pytestmark = needs_vllm(TARGET)


def recorded():
    """{id: (prompt, tokens)} of the bundled recording, cut to the budget."""
    trace = load_trace(ROOT / "traces" / "smollm2" / "greedy" / "prompt_lookup.parquet")
    out = {}
    for i in PROMPTS:
        prompt = trace.prompt[trace.prompt_offset[i] : trace.prompt_offset[i + 1]]
        tokens = trace.token[trace.offset[i] : trace.offset[i + 1]][:BUDGET]
        out[trace.meta.ids[i]] = tuple(map(int, prompt)), tuple(map(int, tokens))
    return out


TEXTS = recorded() if reason_to_skip(TARGET) is None else {}
REQUESTS = [Request(id, prompt, BUDGET) for id, (prompt, _) in TEXTS.items()]


def started(settings):
    """A worker and what it said."""
    engine = RELEASED["vllm"]
    worker = Worker(engine, find_environment(engine))
    return worker, worker.start(settings)


@pytest.fixture(scope="module")
def ngram():
    """One process for all draft lengths."""
    worker, ready = started(NGRAM)
    assert ready.sets_k
    assert ready.forces_drafts
    with worker:
        yield worker


def finished(worker, requests=None, **settings):
    """{id: Finished} of a run."""
    out = {}
    worker.run(requests or REQUESTS, lambda f: out.__setitem__(f.id, f), **settings)
    return out


def rounds(most, rule="vllm:1,3", **changes):
    """{id: passes of the slow twin, within the text} of every text."""
    records = {i: {"prompt": list(p), "tokens": list(t)} for i, (p, t) in TEXTS.items()}
    return {i: by_rule(r, "vllm", rule, most, BUDGET, **changes) for i, r in records.items()}


def within(finished):
    """{id: passes within the text}: vLLM goes on behind it."""
    return {i: clipped(f.passes, len(f.tokens)) for i, f in finished.items()}


@pytest.mark.parametrize("k", [0, 1, 3, 5, 8])
@pytest.mark.parametrize("concurrent", [1, 4])
def test_texts_and_rounds_are_the_rules(ngram, k, concurrent):
    got = finished(ngram, k=k, concurrent=concurrent)
    assert {i: f.tokens for i, f in got.items()} == {i: t for i, (_, t) in TEXTS.items()}
    assert within(got) == rounds(k)
    for one in got.values():
        assert all(emitted == accepted + 1 for emitted, _, accepted in one.passes)
        assert sum(one.pass_seconds) <= one.seconds * (1 + 1e-9)
        assert one.first_seconds >= one.pass_seconds[0]


def test_control_other_rules_have_other_rounds(ngram):
    got = finished(ngram, k=3, concurrent=4)
    assert within(got) == rounds(3)
    for wrong in ({"rule": "vllm:1,2"}, {"first_draft": 0}, {"cap": "tokens_left"}):
        assert within(got) != rounds(3, **wrong)


@pytest.mark.parametrize("force", [0, 2, 7])
def test_forced_drafts_have_that_length_and_leave_the_text(ngram, force):
    got = finished(ngram, REQUESTS[:3], force=force)
    for one in got.values():
        assert one.tokens == TEXTS[one.id][1]
        assert [drafted for _, drafted, _ in one.passes] == [0] + [force] * (len(one.passes) - 1)
    after = finished(ngram, REQUESTS[:1], k=3)
    for id, passes in within(after).items():  # the drafter is back
        assert passes == rounds(3)[id]


def test_one_thread_stays_one_after_n_gram_drafts(ngram):
    """vLLM's proposer sets OpenMP's threads through numba: passes then ran on every core."""
    finished(ngram, REQUESTS[:1], k=3)
    stat = Path(f"/proc/{ngram._process.pid}/stat")

    def spent():
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()

    processor, clock = spent()
    finished(ngram, REQUESTS[:3], k=3)
    now, later = spent()
    assert now - processor < 1.3 * (later - clock)


def test_what_the_start_did_not_allow_is_refused_and_the_process_goes_on(ngram):
    with pytest.raises(EngineError, match="k is 9; expected 0 to 8"):
        finished(ngram, k=9)
    with pytest.raises(EngineError, match="concurrent is 5; expected 1 to 4"):
        finished(ngram, concurrent=5)
    with pytest.raises(EngineError, match="start with a larger `longest`"):
        finished(ngram, [Request("long", (1,) * 790, 48)])
    assert len(finished(ngram, REQUESTS[:1], k=1)) == 1


def test_a_schedule_reads_k_by_the_requests_of_the_pass_that_drafts(ngram):
    ngram.close()  # one engine's memory at a time
    settings = replace(NGRAM, draft=NgramDraft(5, 1, 3), schedule=((1, 1, 5), (2, 3, 2), (4, 4, 0)))
    worker, ready = started(settings)
    # some end earlier, so that passes of 3, 2 and 1 requests come
    requests = [replace(r, max_tokens=n) for r, n in zip(REQUESTS, (48, 12, 24, 48))]
    asked, kept = {request.id: request for request in requests}, []
    plan = Plan((0, 5), 1, 4, 4)
    with worker:
        for k in plan.ks:
            worker.run(
                requests, lambda f, k=k: kept.append(Row(0, 0, k, None, asked[f.id], f)), 4, k
            )
    about = about_run(ready, settings, requests, plan)
    assert compare_rows(about, kept).equal
    drafted = {d for row in kept if row.k for _, d, _ in row.finished.passes}
    assert {0, 2} <= drafted
    assert not compare_rows(about | {"schedule": [[1, 1, 5], [2, 4, 2]]}, kept).equal


def test_a_draft_model_that_is_the_target_is_nearly_always_right(ngram):
    ngram.close()  # one engine's memory at a time
    settings = replace(NGRAM, draft=ModelDraft(4, TARGET), batch=1)
    worker, _ = started(settings)
    with worker:
        for k in (2, 4, 0):
            got = finished(worker, REQUESTS[:2], k=k)
            for one in got.values():
                assert one.tokens == TEXTS[one.id][1]
                drafted = [row[1] for row in one.passes]
                assert drafted == [0] + [k] * (len(drafted) - 1)
            rows = [row for one in got.values() for row in one.passes[1:]]
            assert sum(row[2] for row in rows) >= 0.9 * k * len(rows)
