"""Worker of llama.cpp: xllamacpp's Server, asked over HTTP on the loopback interface."""

import gc
import json
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from typing import Any

SPARE = 8
"""Tokens of context beyond prompt, output and draft: the server stops short of a full context."""


def passes_of(chunks):
    """([[emitted, drafted, accepted], ..], seconds of each) from the chunks of a stream.

    A chunk is (tokens so far, drafted so far, accepted so far, milliseconds since the prompt), one
    a token, then one of the end. The server keeps back the chunks of tokens that end inside a
    character: those in front of a plain pass are plain passes, and those inside a round belong to
    it. ValueError where neither is certain.
    """
    passes, seconds, done = [], [], 0
    drafted_before = accepted_before = before = 0
    for i, (tokens, drafts, accepts, ms) in enumerate(chunks):
        if tokens <= done:
            continue
        drafted, accepted, hidden = drafts - drafted_before, accepts - accepted_before, 0
        if not drafted:
            plain = tokens - done
            passes += [[1, 0, 0]] * plain
            seconds += [(ms - before) / 1000 / plain] * plain
            done = tokens
        else:
            hidden = tokens - done - 1
            if hidden:
                # tokens of a round share its time
                last = max(n for n, _, _, same in chunks[i:] if same == ms)
                if last - done != accepted + 1:
                    raise ValueError(
                        "the output has a character of several tokens at the edge of a round: its "
                        "passes cannot be told apart; leave this prompt out"
                    )
            passes.append([accepted + 1, drafted, accepted])
            seconds.append((ms - before) / 1000)
            done += accepted + 1
        drafted_before, accepted_before, before = drafts, accepts, ms
    return passes, seconds


def chunk_of(event):
    """(tokens, drafted, accepted, milliseconds) so far of one event of the stream."""
    timings = event["timings"]
    return (
        timings["predicted_n"],
        timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0),
        timings["predicted_ms"],
    )


class LlamaCpp:
    """A server with one draft length; another length builds it anew."""

    def __init__(self, options):
        self.options = options
        draft = options["draft"]
        self.server: Any = None
        self.built: tuple | None = None
        self._build(draft["k"] if draft else 0)

    def ready(self):
        """Engine, version and capabilities of this worker."""
        import xllamacpp

        drafts = self.options["draft"] is not None
        devices = [device.get("name", "") for device in xllamacpp.get_device_info()]
        return {
            "engine": "llamacpp",
            "version": version("xllamacpp"),
            "device": " ".join(str(name) for name in devices if name) or "cpu",
            "sets_k": drafts,
            "forces_drafts": drafts,
        }

    def run(self, requests, concurrent, k, force, policy=None):
        """Decodes the requests one by one: the host starts no other run."""
        from worker_protocol import threshold_of

        if k is None:
            k = self.options["draft"]["k"] if self.options["draft"] else 0
        self._build(k if force is None else force, force is not None, threshold_of(policy))
        for request in requests:
            yield self._decode(request)

    def _build(self, k, forced=False, p_min=0.0):
        """Starts the server with draft length k, unless it runs with it."""
        import xllamacpp

        if self.built == (k, forced, p_min):
            return
        self.server = self.built = None
        gc.collect()
        options, p = self.options, xllamacpp.CommonParams()
        p.model.path = options["model"]
        p.n_ctx = options["longest"] + k + SPARE
        p.n_parallel, p.endpoint_slots, p.warmup = 1, True, False
        p.verbosity = 1
        for cpu in (p.cpuparams, p.cpuparams_batch):
            cpu.n_threads = options["threads"]
        if options["exact"]:
            f32 = xllamacpp.ggml_type.GGML_TYPE_F32
            p.cache_type_k = p.cache_type_v = f32
            p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if k:
            self._draft(p.speculative, k, forced, p_min)
        self.server = xllamacpp.Server(p)
        with urllib.request.urlopen(self.server.listening_address + "/slots") as answer:
            speculates = json.load(answer)[0]["speculative"]
        if speculates != bool(k):
            raise RuntimeError(
                "llama.cpp does not use the drafter: its vocabulary or its tokenizer is not the "
                "target's"
            )
        self.built = (k, forced, p_min)

    def _draft(self, p, k, forced, p_min):
        """Sets up drafting; forced: k junk tokens a pass, none of them accepted."""
        import xllamacpp

        draft, kinds = self.options["draft"], xllamacpp.common_speculative_type
        if draft["method"] == "ngram":
            # one token matches almost everywhere, and what is drafted does not matter
            n = 1 if forced else draft["max"]
            if k < n:
                raise ValueError(
                    f"llama.cpp never drafts with draft length {k} below n-gram length {n}"
                )
            p.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            p.ngram_simple.size_n, p.ngram_simple.size_m = n, k
        else:
            p.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            p.draft.mparams.path = draft["model"]
            p.draft.n_max, p.draft.n_min, p.draft.p_min = k, 0, p_min
            for cpu in (p.draft.cpuparams, p.draft.cpuparams_batch):
                cpu.n_threads = self.options["threads"]
            if self.options["exact"]:
                f32 = xllamacpp.ggml_type.GGML_TYPE_F32
                p.draft.cache_type_k = p.draft.cache_type_v = f32
        if forced:
            p.synth_rates = [0.0] * k

    def _decode(self, request):
        body = {
            "prompt": request["prompt"],
            "n_predict": request["max_tokens"],
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        began = time.monotonic()
        events, first = [], None
        with self._post(body | {"stream": True, "timings_per_token": True}) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    if line.startswith(b"error"):
                        raise RuntimeError(line.decode("utf-8", "replace"))
                    continue
                first = first or time.monotonic() - began
                events.append(json.loads(line[6:]))
        seconds = time.monotonic() - began
        if not events or not events[-1].get("stop"):
            raise RuntimeError(f"the stream of llama.cpp has no end: {str(events[-1:])[:200]}")
        chunks, end = [chunk_of(event) for event in events], events[-1]
        passes, clock = passes_of(chunks)
        clock[0] += end["timings"]["prompt_ms"] / 1000
        tokens = [token for event in events for token in event.get("tokens", ())]
        if len(tokens) < chunks[-1][0]:  # of characters that several tokens make up
            with self._post(body) as answer:
                tokens = json.load(answer)["tokens"]
        return {
            "id": request["id"],
            "tokens": tokens,
            "passes": passes,
            "pass_seconds": clock,
            "first_seconds": first,
            "seconds": seconds,
            "stopped": "end" if end["stop_type"] == "eos" else "length",
        }

    def _post(self, body):
        post = urllib.request.Request(
            self.server.listening_address + "/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            return urllib.request.urlopen(post)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"llama.cpp answers {error.code}: {error.read(500)!r}") from None


if __name__ == "__main__":
    from worker_protocol import serve

    serve(LlamaCpp)
