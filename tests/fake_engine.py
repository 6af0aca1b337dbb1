"""An engine in this process: its loop on tokens (naive_engine), on a clock that the test sets."""

import zlib
from pathlib import Path

import naive_engine
import numpy as np
from vllm_double import VllmDouble

from real.engines import (
    EngineError,
    EngineSettings,
    Finished,
    NgramDraft,
    PolicyDraft,
    Ready,
    Request,
)
from real.engines.convention import CONVENTIONS
from real.engines.rows import open_rows, read_rows
from real.engines.run import Plan, Workers, about_run, run_blocks
from simspec import CostModel
from simspec.engines.ngram import ngram_rule
from simspec.engines.vllm_proposer import PolicyProposer
from simspec.policies.fixed import fixed

END = 3
KS = (0, 1, 2, 4)
PLAN = Plan(KS, repeats=2, group=3)
SETTINGS = EngineSettings(Path("target"), NgramDraft(4, 1, 2))


def do_run(path, runner, world, plan=PLAN, settings=SETTINGS):
    """(about, rows) of a run that ended, or goes on from where it was killed."""
    requests = [request for request, _ in world]
    workers = Workers(lambda: runner, settings, plan)
    with open_rows(path, about_run(workers.ready, settings, requests, plan)) as rows:
        run_blocks(workers, requests, plan, rows)
    workers.close()
    return read_rows(path)


def prompts(count, seed=0, budget=24):
    """[(request, future)]: what the target goes on with, behind the end of the text too."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        text = rng.choice(4, 80, p=[0.42, 0.3, 0.24, 0.04]).tolist()
        text = text[:8] * 10 if i % 2 else text
        made.append((Request(f"p{i}", tuple(text[:6]), budget), text[6:]))
    return made


class FakeRunner:
    """Decodes `world` as the engine of a convention would; a pass of d drafts takes seconds(d, k).

    Several requests in flight are waves of vLLM's, a pass of n requests and d drafts in all takes
    step_seconds(n, d, k). follows: n-grams are those of the settings, not of `rule`. fails: the
    number of the request, counted over all runs, at which the engine breaks. jitter: deviation of
    passes, alike whenever a request runs alone. memo: a dict of passes, for engines of one world.
    """

    def __init__(self, world, rules="vllm", rule="vllm:1,2", seconds=None, **options):
        self.given, self.world = world, {request.prompt: future for request, future in world}
        self.rules, self.rule = CONVENTIONS[rules], ngram_rule(rule)
        self.engine, self.follows = rule.partition(":")[0], options.get("follows", False)
        self.seconds = seconds or (lambda drafted, k: 1.0 + 0.1 * drafted)
        self.sets_k, self.forces = options.get("sets_k", True), options.get("forces", True)
        self.fails = options.get("fails")
        self.started, self.closed, self.served = [], 0, 0
        self.jitter, self.memo = options.get("jitter", 0.0), options.get("memo", dict())
        self.name, self.stops = options.get("name", rules), options.get("stops", EngineError)
        self.step_seconds = options.get("step_seconds", lambda active, drafted, k: 1.0)
        self.k, self.schedule, self.late = 0, (), options.get("late", False)

    def start(self, settings):
        self.started.append(settings)
        self.k = 0 if settings.draft is None else settings.draft.k
        if self.follows and isinstance(settings.draft, NgramDraft):
            sizes = settings.draft.ngram_min, settings.draft.ngram_max
            self.rule = ngram_rule(f"{self.engine}:{sizes[0]},{sizes[1]}")
        self.schedule, self.double = settings.schedule, None
        if isinstance(settings.draft, PolicyDraft):
            self.double = VllmDouble(self.given, PolicyProposer, (END,), seconds=self.pass_seconds)
            return self.double.start(settings)
        return Ready(self.name, "1.0", "fake", 0.0, self.sets_k, self.forces)

    def pass_seconds(self, active, drafted, k):
        """Seconds of a pass of the double, as of this engine's."""
        return self.step_seconds(active, drafted, k) if self.batch > 1 else self.seconds(drafted, k)

    def run(self, requests, keep, concurrent=1, k=None, force=None, policy=None):
        if self.double is not None:
            self.batch = concurrent
            return self.double.run(requests, keep, concurrent, k, force, policy)
        length, total = self.k if k is None else k, 0.0
        for first in range(0, len(requests), concurrent):
            wave = requests[first : first + concurrent]
            if concurrent > 1:
                answers = self.answer_wave(wave, length, force)
            else:
                answers = (self.answer(request, length, force) for request in wave)
            for finished in answers:
                if self.fails is not None and self.served >= self.fails:
                    raise self.stops("fake 1.0 was ended by signal 9")
                self.served += 1
                total += finished.seconds
                keep(finished)
        return total

    def answer_wave(self, requests, k, force):
        """Requests that start together, in the order of their ends; each joins a bit later."""

        def propose(context, K):
            if force is not None:
                return [-1] * K
            return naive_engine.draft(context, K, self.rule) if K else []

        def length_of(requests):
            if self.schedule and force is None and k == self.k:
                return naive_engine.length_at(self.schedule, requests)
            return k if force is None else force

        asked = [(list(r.prompt), self.world[r.prompt], r.max_tokens) for r in requests]
        answers = naive_engine.run_wave(asked, [END], propose, length_of, self.late)
        clock = [5.0 + 0.25 * len(requests)]  # the prompts
        for t in range(1, max(len(passes) for _, passes in answers)):
            drafted = [passes[t][1] for _, passes in answers if len(passes) > t]
            clock.append(self.step_seconds(len(drafted), sum(drafted), k))
        clock = self.shaken(clock, requests[0], (k, self.served))
        finished = []
        for i, (request, (text, passes)) in enumerate(zip(requests, answers)):
            own = clock[: len(passes)]
            finished.append(Finished(
                request.id, tuple(text), tuple(passes), tuple(own),
                own[0] - 1e-3 * i, sum(own) - 1e-3 * i,
                "end" if text[-1] == END else "length",
            ))  # fmt: skip
        return sorted(finished, key=lambda one: len(one.passes))

    def shaken(self, clock, request, k):
        """The clock with jitter."""
        rng = np.random.default_rng(zlib.crc32(f"{request.id} {k}".encode()))
        return (np.array(clock) * (1 + self.jitter * rng.standard_normal(len(clock)))).tolist()

    def answer(self, request, k, force):
        key = request.id, request.max_tokens, k, force, self.rule
        text, passes = self.memo.get(key) or self.memo.setdefault(
            key, self.decode(request, k, force)
        )
        clock = self.shaken([self.seconds(drafted, k) for _, drafted, _ in passes], request, k)
        clock[0] = 5.0  # the prompt
        return Finished(
            request.id, tuple(text), tuple(passes), tuple(clock), clock[0],
            sum(clock), "end" if text[-1] == END else "length",
        )  # fmt: skip

    def decode(self, request, k, force):
        """(text, passes) of a request alone."""
        rule, K = self.rule, max(k, 1) if force is None else max(force, 1)

        def offer(context):
            if force is not None:
                return [-1] * force  # accepted never
            return naive_engine.ended_draft(
                naive_engine.draft(context, K, rule), [END], rule.draft_end
            )

        policy = fixed(k if force is None else force)
        cost = CostModel.from_ratio(0.0, K)
        chooser = naive_engine.Chooser(policy, K, 0, 0, cost, policy.state0)
        return naive_engine.run(
            list(request.prompt), self.world[request.prompt], request.max_tokens, [END], offer,
            self.rules, chooser,
        )  # fmt: skip

    def close(self):
        self.closed += 1
