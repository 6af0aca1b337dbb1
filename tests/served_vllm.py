"""A vLLM server on the loopback: planted acceptance, counters, and faults; no clock of its own."""

import json
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread, local

import numpy as np

SPEC = "spec_decode_num_"


@dataclass
class Planted:
    """What a server does. rates: acceptance of each position, given the one before; () drafts
    nothing. matched: share of passes with a draft. figures: "summary" or "detailed", the counts of
    each request. others: tokens and drafts of other users with each answer. stop: tokens of all
    answers. hook: (handler) -> True where it has answered."""

    rates: tuple = ()
    matched: float = 1.0
    figures: str = ""
    others: int = 0
    key: str = ""
    models: tuple = ("m",)
    stop: int = 1 << 20
    hook: object = lambda handler: False
    counts: Counter = field(default_factory=Counter)
    seen: list = field(default_factory=list)
    lock: object = field(default_factory=Lock)

    def passes(self, prompt, tokens):
        """[(drafted, accepted)] of the passes after the prompt's."""
        draws, K = np.random.default_rng(zlib.crc32(prompt.encode())), len(self.rates)
        left, made = tokens - 1, []
        while left > 0:
            drafts = K if K and draws.random() < self.matched else 0
            run = int((draws.random(K) < self.rates).cumprod().sum()) if drafts else 0
            made.append((drafts, run))
            left -= 1 + run
        return made

    def add(self, tokens, passes):
        drafts, K = [each for each in passes if each[0]], len(self.rates)
        with self.lock:
            self.counts["generation_tokens"] += tokens + self.others
            for name, count in zip(
                ("drafts", "draft_tokens", "accepted_tokens"),
                (
                    len(drafts) + self.others,
                    K * (len(drafts) + self.others),
                    sum(a for _, a in drafts),
                ),
            ):
                self.counts[SPEC + name] += count
            for j in range(K):
                self.counts[f"{SPEC}accepted_tokens_per_pos {j}"] += sum(a > j for _, a in drafts)

    def metrics(self):
        names = [f"{SPEC}accepted_tokens_per_pos {j}" for j in range(len(self.rates))]
        names += [SPEC + name for name in ("drafts", "draft_tokens", "accepted_tokens") if names]
        for each in ("generation_tokens", *names):
            name, _, place = each.partition(" ")
            labels = 'engine="0",model_name="m"' + (f',position="{place}"' if place else "")
            yield f"vllm:{name}_total{{{labels}}} {float(self.counts[each])}\n"
            yield f"vllm:{name}_created{{{labels}}} 1.7e+09\n"

    def figures_of(self, passes):
        right = [accepted for drafted, accepted in passes if drafted]
        if not self.figures or not right:
            return None
        K, n, accepted = len(self.rates), len(right), sum(right)
        found = {
            "mean_acceptance_length": 1 + accepted / n, "draft_acceptance_rate": accepted / n / K,
            "acceptance_histogram": [right.count(j) for j in range(K + 1)], "num_spec_steps": n,
            "num_accepted_draft_tokens": accepted, "num_draft_tokens": K * n, "num_spec_tokens": K,
        }  # fmt: skip
        if self.figures == "detailed":
            found |= {"per_step_accepted": right, "per_step_drafted": [K] * n}
        return {"speculative_decoding": found}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, text, kind="application/json", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(text), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        planted = self.planted = self.server.planted
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "null")
        planted.seen.append((self.path, self.headers["Authorization"], asked))
        if planted.hook(self):
            self.close_connection = True
        elif planted.key and self.headers["Authorization"] != f"Bearer {planted.key}":
            self.answer(401, '{"error": "Unauthorized"}')
        elif self.path == "/metrics":
            with planted.lock:
                self.answer(200, "".join(planted.metrics()), "text/plain")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": name} for name in planted.models]}))
        else:
            self.stream(planted, asked)

    do_POST = do_GET

    def stream(self, planted, asked):
        prompt = asked.get("prompt") or asked["messages"][0]["content"]
        tokens = min(asked["max_tokens"], planted.stop)
        passes = planted.passes(prompt, tokens)
        planted.add(tokens, passes)
        words = [{"choices": [{"delta": {"content": "w"}}]}] * (len(passes) + 1)
        usage = {"choices": [], "usage": {"completion_tokens": tokens}}
        lines = [*words, usage | {"metrics": planted.figures_of(passes)}]
        text = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
        self.answer(200, text + "data: [DONE]\n\n", "text/event-stream; charset=utf-8")


@contextmanager
def serving(planted):
    """The address of a server that does this."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.planted, server.daemon_threads = planted, True
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Steps(local):
    """A clock that each look moves by a planted step, in each thread alone."""

    def __init__(self, seconds):
        self.seconds, self.now = seconds, 0.0

    def __call__(self):
        self.now += self.seconds
        return self.now
