"""A vLLM server on the loopback: planted acceptance, counters, and faults; no clock of its own."""

import json
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread, local

import numpy as np

GENERATED, BY_POSITION = "generation_tokens", "spec_decode_num_accepted_tokens_per_pos"
SUMS = [f"spec_decode_num_{name}" for name in ("drafts", "draft_tokens", "accepted_tokens")]


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
        runs, K = [run for drafted, run in passes if drafted], len(self.rates)
        drafts = len(runs) + self.others
        with self.lock:
            new = dict(zip(SUMS, (drafts, K * drafts, sum(runs)))) if K else {}
            new |= {f"{BY_POSITION} {j}": sum(run > j for run in runs) for j in range(K)}
            self.counts.update(new | {GENERATED: tokens + self.others})

    def metrics(self):
        K = len(self.rates)
        for each in (GENERATED, *(SUMS if K else ()), *(f"{BY_POSITION} {j}" for j in range(K))):
            name, _, place = each.partition(" ")
            labels = 'model_name="m"' + (f',position="{place}"' if place else "")
            yield f"vllm:{name}_total{{{labels}}} {float(self.counts[each])}\n"

    def figures_of(self, passes):
        right, K = [run for drafted, run in passes if drafted], len(self.rates)
        n, accepted = len(right), sum(right)
        found = {"num_spec_steps": n, "num_draft_tokens": K * n, "num_spec_tokens": K}
        found |= {
            "num_accepted_draft_tokens": accepted,
            "mean_acceptance_length": 1 + sum(right) / max(n, 1),
        }
        found |= {"acceptance_histogram": [right.count(j) for j in range(K + 1)]}
        if self.figures == "detailed":
            found |= {"per_step_accepted": right, "per_step_drafted": [K] * n}
        return {"speculative_decoding": found} if self.figures and K else None


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, text, kind="application/json", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())
        return True

    def do_GET(self):
        planted = self.planted = self.server.planted
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "null")
        planted.seen.append((self.path, self.headers["Authorization"], asked))
        if planted.hook(self):
            return
        if planted.key and self.headers["Authorization"] != f"Bearer {planted.key}":
            self.answer(401, '{"error": "Unauthorized"}')
        elif self.path == "/metrics":
            with planted.lock:
                self.answer(200, "".join(planted.metrics()), "text/plain")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": name} for name in planted.models]}))
        else:
            prompt = asked.get("prompt") or asked["messages"][0]["content"]
            tokens = min(asked["max_tokens"], planted.stop)
            passes = planted.passes(prompt, tokens)
            planted.add(tokens, passes)
            lines = [{"choices": [{"delta": {"content": "w"}}]}] * (len(passes) + 1)
            usage = {"choices": [], "usage": {"completion_tokens": tokens}}
            lines.append(usage | {"metrics": planted.figures_of(passes)})
            text = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
            self.answer(200, text + "data: [DONE]\n\n", "text/event-stream; charset=utf-8")

    do_POST = do_GET


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
