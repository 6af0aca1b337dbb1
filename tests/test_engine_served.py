"""`simspec engine server`: a server that decodes as vLLM does, and ones whose rounds differ."""

import json

import pytest
from fake_engine import FakeRunner, prompts
from shell import simspec
from test_engine_command import folder as recorded_folder
from test_engine_server import completion
from test_engine_server import server as fake_server

from real.engines import EngineSettings, NgramDraft

folder, server = recorded_folder, fake_server  # fixtures
K, WORLD = 4, prompts(24)


def answers():
    """{prompt: what a vLLM server with n-grams answers}, by the engine's loop on tokens."""
    runner, finished = FakeRunner(WORLD), []
    runner.start(EngineSettings("m", NgramDraft(K, 1, 2)))
    runner.run([request for request, _ in WORLD], finished.append)
    by_id = {request.id: request.prompt for request, _ in WORLD}
    return {by_id[one.id]: one for one in finished}


ANSWERS = answers()


def served(change=lambda rounds: rounds, tokens=lambda tokens: tokens):
    """How the fake server answers a completion; `change` alters its rounds."""

    def answer(handler, made):
        _, body, _ = handler.server.heard[-1]
        finished = ANSWERS[tuple(body["prompt"])]
        rounds = change(
            [(drafted, accepted) for _, drafted, accepted in finished.passes if drafted]
        )
        counts = {
            "num_spec_steps": len(rounds),
            "per_step_drafted": [drafted for drafted, _ in rounds],
            "per_step_accepted": [accepted for _, accepted in rounds],
        }
        choice = {
            "index": 0,
            "finish_reason": "stop" if finished.stopped == "end" else "length",
            "token_ids": tokens(list(finished.tokens)),
        }
        metrics = {
            "speculative_decoding": completion([])["metrics"]["speculative_decoding"] | counts
        }
        handler.answer(made | {"choices": [choice], "metrics": metrics})

    return answer


def command(server, *more):
    return ("engine", "server", server.url, "-k", K, "--recording", "t.parquet", "--drafter",
            "ngram:1,2", "--prompts", 0, "--out", "served", *more)  # fmt: skip


def test_rounds_of_a_right_server_are_the_replays(server, folder):
    server.change = served()
    out, _ = simspec(*command(server), cwd=folder)
    assert "24 requests" in out
    assert "0 exceptions, 0 near-ties, 0 left out; wrote served" in out
    names = {path.name for path in (folder / "served").iterdir()}
    assert names == {"responses.jsonl", "before.prom", "after.prom"}
    out, _ = simspec(*command(server, "--json", "--concurrent", 3), cwd=folder)
    counters = json.loads(out)["rounds"]["counters"][str(K)]
    assert all(engine == predicted > 0 for engine, predicted in counters.values())


WRONG = {
    "a phantom round": served(lambda rounds: [(K, 0), *rounds]),
    "a missing round": served(lambda rounds: rounds[1:]),
    "one token fewer accepted": served(lambda rounds: [(d, max(a - 1, 0)) for d, a in rounds]),
    "one token fewer drafted": served(lambda rounds: [(max(d - 1, a), a) for d, a in rounds]),
    "another text": served(tokens=lambda tokens: [(tokens[0] + 1) % 3, *tokens[1:]]),
}


@pytest.mark.parametrize("name", WRONG)
def test_control_other_rounds_or_texts_are_exceptions(server, folder, name):
    server.change = WRONG[name]
    out, _ = simspec(*command(server), cwd=folder, code=1)
    assert "0 exceptions" not in out
    assert "server" in out


def test_control_another_draft_length_or_rule_is_found(server, folder):
    server.change = served()
    simspec(*command(server, "-k", K - 1), cwd=folder, code=1)
    simspec(*command(server, "--drafter", "ngram:2,2"), cwd=folder, code=1)


def test_a_server_without_metrics_is_told_how_to_start(server, folder):
    server.change = lambda handler, answer: handler.answer(answer | {"metrics": None})
    _, error = simspec(*command(server), cwd=folder, code=2)
    assert "start it with --speculative-config and --per-request-spec-decode-metrics" in error


def test_what_was_served_before_a_failure_is_written(server, folder):
    right = served()

    def fails(handler, answer):
        if len(server.heard) > 3:
            handler.send(b"gone", 503)
        else:
            right(handler, answer)

    server.change = fails
    _, error = simspec(*command(server), cwd=folder, code=2)
    assert "status 503" in error
    assert len((folder / "served" / "responses.jsonl").read_text().splitlines()) == 3
