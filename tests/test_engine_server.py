"""A vLLM server over HTTP: a fake one that answers rightly, and ones that must be refused."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from shell import simspec

from real.engines import Request
from real.engines.vllm_server import MOST_BYTES, Server, run_on_server

REQUESTS = [Request(f"p{i}", (1, 2, 3 + i), 8) for i in range(5)]
COUNTERS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {0}.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {1}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {2}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {0}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} 0.0
"""


def completion(prompt):
    """What vLLM 0.32 answers: one plain pass, then rounds of (2, 1) and (2, 1)."""
    counts = {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [0, 2, 0],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 2,
        "num_draft_tokens": 4,
        "num_spec_tokens": 2,
        "per_step_accepted": [1, 1],
        "per_step_drafted": [2, 2],
    }
    return {
        "id": "cmpl-1",
        "choices": [
            {"index": 0, "text": "x", "finish_reason": "stop", "token_ids": [*prompt, 9, 2]}
        ],
        "metrics": {"speculative_decoding": counts},
    }


class Fake(BaseHTTPRequestHandler):
    """Answers as vLLM does; the server's `change` alters a completion."""

    def do_GET(self):
        if self.path == "/version":
            self.answer({"version": "0.32.0"})
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": name} for name in self.server.models]})
        else:
            n = self.server.rounds
            self.send(COUNTERS.format(10 + n, 20 + 2 * n, 5 + n).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append((self.path, body, self.headers.get("Authorization")))
        answer = completion(body["prompt"])
        self.server.rounds += 2
        self.server.change(self, answer)

    def answer(self, value):
        self.send(json.dumps(value).encode())

    def send(self, body, status=200, length=None, headers=()):
        self.send_response(status)
        for name, value in (("Content-Length", len(body) if length is None else length), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    """A fake server on a port of this machine."""
    fake = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    fake.daemon_threads = True
    fake.models, fake.rounds, fake.heard = ["m"], 0, []
    fake.change = lambda handler, answer: handler.answer(answer)
    fake.handle_error = lambda *about: None  # clients that hang up are part of the tests
    thread = threading.Thread(target=fake.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{fake.server_port}"
    yield fake
    fake.shutdown()
    fake.server_close()
    thread.join()


@pytest.mark.parametrize("concurrent", [1, 3, 9])
def test_requests_are_served_with_their_rounds(server, concurrent):
    kept = []
    run = run_on_server(Server(server.url, key="secret"), REQUESTS, kept.append, concurrent)
    assert [s.id for s in run.served] == [r.id for r in REQUESTS]
    assert sorted(s.id for s in kept) == [r.id for r in REQUESTS]
    for served, request in zip(run.served, REQUESTS):
        assert served.tokens == (*request.prompt, 9, 2)
        assert served.rounds == ((2, 1), (2, 1))
        assert served.stopped == "end"
    assert (run.version, run.model) == ("0.32.0", "m")
    path, body, key = server.heard[0]
    assert path == "/v1/completions"
    assert key == "Bearer secret"
    assert (body["temperature"], body["return_token_ids"], body["max_tokens"]) == (0, True, 8)


def test_what_is_written_is_what_import_reads(server, tmp_path):
    run_on_server(Server(server.url), REQUESTS).write(tmp_path)
    before = "--before", "before.prom"
    for arguments in (
        ("vllm-requests", "responses.jsonl"),
        ("vllm-prometheus", "after.prom", *before),
    ):
        out, _ = simspec("import", *arguments, "--json", cwd=tmp_path)
        total = json.loads(out)["totals"][0]
        assert (total["rounds"], total["drafted"], total["accepted"]) == (10, 20, 10)


def test_a_server_without_metrics_of_requests_gives_tokens_alone(server):
    server.change = lambda handler, answer: handler.answer(answer | {"metrics": None})
    assert [s.rounds for s in run_on_server(Server(server.url), REQUESTS).served] == [None] * 5


def test_a_request_without_drafts_has_no_rounds(server):
    counts = completion([])["metrics"]["speculative_decoding"] | {"num_spec_steps": 0}
    del counts["per_step_drafted"], counts["per_step_accepted"]
    metrics = {"speculative_decoding": counts}
    server.change = lambda handler, answer: handler.answer(answer | {"metrics": metrics})
    assert run_on_server(Server(server.url), REQUESTS[:1]).served[0].rounds == ()


def choice(**change):
    """A change of the only choice."""
    return lambda handler, answer: handler.answer(
        answer | {"choices": [answer["choices"][0] | change]}
    )


def counted(**change):
    """A change of the request's counts."""
    return lambda handler, answer: handler.answer(
        answer
        | {"metrics": {"speculative_decoding": answer["metrics"]["speculative_decoding"] | change}}
    )


REFUSED = {
    "no tokens": (choice(token_ids=None), "token_ids is no list of up to 8"),
    "too many tokens": (choice(token_ids=[1] * 9), "token_ids is no list of up to 8"),
    "other tokens": (choice(token_ids=[1, -1]), "holds something else than integers"),
    "bools": (choice(token_ids=[True]), "holds something else than integers"),
    "a failed request": (choice(finish_reason="abort"), "finish_reason is 'abort'"),
    "two choices": (lambda h, a: h.answer(a | {"choices": a["choices"] * 2}), "list of one object"),
    "too many rounds": (counted(per_step_drafted=[1] * 10), "no list of up to 9"),
    "accepted over drafted": (counted(per_step_accepted=[1, 3]), "does not fit"),
    "fewer accepted": (counted(per_step_accepted=[1]), "does not fit"),
    "no JSON": (lambda h, a: h.send(b"\xff<html>"), "a line is no JSON"),
    "a list": (lambda h, a: h.send(b"[]"), "holds a list"),
    "nested": (lambda h, a: h.send(b"[" * 200_000), "nested too deeply"),
    "an error": (lambda h, a: h.send(b"no\x1b[2Jmodel", 404), r"status 404.*no\\x1b\[2Jmodel"),
    "a redirect": (
        lambda h, a: h.send(b"", 307, headers=[("Location", "http://127.0.0.1:1/")]),
        "status 307",
    ),
    "half": (
        lambda h, a: h.send(json.dumps(a).encode(), length=10**6),
        "too early|no whole answer",
    ),
    "no answer": (lambda h, a: h.connection.shutdown(socket.SHUT_RDWR), "v1/completions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_must_not_be_is_one_line(server, name):
    server.change, message = REFUSED[name]
    kept = []
    with pytest.raises(ValueError, match=message) as raised:
        run_on_server(Server(server.url, seconds=5), REQUESTS, kept.append)
    assert "\n" not in str(raised.value)
    assert server.url in str(raised.value)
    assert kept == []


def test_what_was_served_before_a_failure_is_kept(server):
    def fail_later(handler, answer):
        handler.answer(answer if len(server.heard) < 3 else {})

    server.change, kept = fail_later, []
    with pytest.raises(ValueError, match="choices"):
        run_on_server(Server(server.url), REQUESTS, kept.append)
    assert [s.id for s in kept] == ["p0", "p1"]


def test_an_endless_body_ends_at_the_limit(server):
    sent = []

    def pour(handler, answer):
        handler.send(b"", length=1 << 40)
        while True:
            handler.wfile.write(b"x" * (1 << 20))
            sent.append(1 << 20)

    server.change = pour
    with pytest.raises(ValueError, match="over 16,777,216 bytes"):
        run_on_server(Server(server.url), REQUESTS[:1])
    assert sum(sent) < MOST_BYTES + (32 << 20)  # what lies in the buffers of sockets


@pytest.mark.parametrize("where", ["body", "headers"])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server, where):
    def drip(handler, answer):
        if where == "body":
            handler.send(b"", length=1000)
        for _ in range(200):
            handler.wfile.write(b"H")
            handler.wfile.flush()
            time.sleep(0.05)

    server.change, began = drip, time.monotonic()
    with pytest.raises(ValueError, match="no whole answer within 0.3 s"):
        run_on_server(Server(server.url, seconds=0.3), REQUESTS[:1])
    assert time.monotonic() - began < 5  # the whole answer takes 10


@pytest.mark.parametrize(
    "url",
    ["ftp://a", "localhost:8000", "http://", "http://a:99999", "http://u:p@a", "http://a/v1", "x"],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="expected an address|[Pp]ort"):
        run_on_server(Server(url), REQUESTS)


def test_a_server_that_is_not_there_is_one_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ValueError, match=rf"http://127.0.0.1:{port}/version: .*refused"):
        run_on_server(Server(f"http://127.0.0.1:{port}", seconds=5), REQUESTS)


def test_a_server_of_several_models_needs_a_name(server):
    server.models = ["a", "b"]
    with pytest.raises(ValueError, match="lists 2 models: name one"):
        run_on_server(Server(server.url), REQUESTS)
    assert run_on_server(Server(server.url, "b"), REQUESTS).model == "b"
