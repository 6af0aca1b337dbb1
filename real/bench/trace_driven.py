"""Trace-driven timing: real passes of any shapes with random weights, each round's verdict taken from a recording.

So time is that of the shapes on this machine and acceptance that of the recording: what these acceptances would give on a large
model that nobody has drafters for. The loop is the one that decodes; only the text is forced and the drafter's picks are told.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from real.decode.acceptance_predictor import NAMES, Folded
from real.decode.chain import ChainDrafting
from real.decode.engine import engage, engines_of, passes_of
from real.decode.features import GRIDS
from real.decode.loop import DecodeResult, decode
from real.decode.phase_timer import PhaseTimer
from real.draft import Draft, Drafter, Silent, Step
from real.equality import rounds_of
from real.model.decoder import Decoder
from real.model.runner import EAGER, EagerPasses
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import groups
from real.provenance import device_name
from real.sampling import Rule
from simspec import CostModel, Policy, Rounds, Stepper, Trace, policies, replay

END, WRONG, FIRST = 0, 1, 2
"""Tokens of a driven text: its end, what a wrong draft proposes, and the first of those that texts are made of."""
DEPTHS = 10  # of a predictor, as in EESD Eq. 5
PLAIN = "plain"


@dataclass(frozen=True)
class Timing:
    """A policy driven by a recording.

    | field | meaning |
    | --- | --- |
    | policy | its name; "plain" is plain decoding without a drafter |
    | rounds, tokens | target passes, and tokens that they committed |
    | drafting, verification, policy_time, other | seconds of all rounds (EESD Table 8's split) |
    | tokens_per_second | tokens / all of these; prefill apart |
    | speedup | over plain decoding in the same run |
    | equal | whether the rounds are those of the replay |
    | groups | the speedup by `real.prompts.groups` of the recorded texts, where there are such |
    """

    policy: str
    rounds: int
    tokens: int
    drafting: float
    verification: float
    policy_time: float
    other: float
    tokens_per_second: float
    speedup: float
    equal: bool
    groups: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Driven:
    """Timings, what they are of (label), and the device."""

    label: dict
    device: str
    timings: tuple[Timing, ...]

    @property
    def equal(self) -> bool:
        """Whether every policy made the rounds of its replay."""
        return all(t.equal for t in self.timings)

    def summary(self) -> dict:
        """For machines."""
        return {
            "label": self.label,
            "device": self.device,
            "replay_equal": self.equal,
            "rows": [asdict(t) for t in self.timings],
        }


@dataclass(frozen=True)
class Script:
    """What a recording says of one sequence, on a random text.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | prompt | int list | random tokens |
    | text | int list `[n]` | random tokens, END last where the recording ends with an end token and nowhere else |
    | depth, run | uint8 `[n]` | as in `Trace` |
    | feature | uint8 `[n, K, F]` | of all features recorded |
    | budget, sequence | int | as in `Trace` |
    """

    prompt: list[int]
    text: list[int]
    depth: np.ndarray
    run: np.ndarray
    feature: np.ndarray
    budget: int
    sequence: int


def scripts(trace: Trace, vocab: int, context: int | None = None, seed: int = 0) -> list[Script]:
    """One Script a sequence, for a model of `vocab` tokens; prompts as long as recorded (2 at least), or of `context` tokens.

    ValueError for fewer than 4 tokens, or a context under 2.
    """
    if vocab <= FIRST + 1 or (context is not None and context < 2):
        raise ValueError(
            f"vocabulary {vocab} and context {context}; expected at least {FIRST + 2} tokens, and a context of 2 or more"
        )
    random, made = np.random.default_rng(seed), []
    for s in range(trace.sequences):
        rows = slice(int(trace.offset[s]), int(trace.offset[s + 1]))
        length = context or max(2, int(trace.prompt_offset[s + 1] - trace.prompt_offset[s]))
        prompt, text = (
            random.integers(FIRST, vocab, n).tolist() for n in (length, rows.stop - rows.start)
        )
        if int(trace.token[rows.stop - 1]) in trace.meta.end_tokens:
            text[-1] = END
        made.append(
            Script(
                prompt,
                text,
                trace.depth[rows],
                trace.run[rows],
                trace.feature[rows],
                int(trace.budget[s]),
                int(trace.sequence[s]),
            )
        )
    return made


class Scripted(Drafter):
    """A drafter that does its own passes and picks, and is then told what it picked: the text's token as often as recorded."""

    def __init__(self, drafter: Drafter, predictors: dict):
        self.inner, self.predictors = drafter, predictors
        self.name, self.taps, self.has_logits = (drafter.name, drafter.taps, drafter.has_logits)
        self.prefix_only = self.history_free = False

    def follow(self, script: Script) -> None:
        """The text to come."""
        self.script = script

    def begin(self, target, prompt, prefill, pick) -> None:
        self.position = self.slot = 0

        def told(logits, slot: int, hidden=None) -> int:
            pick(logits, slot, hidden)  # its time is part of drafting
            return self._token(slot)

        self.inner.begin(target, prompt, prefill, told)

    def next(self) -> Step | None:
        slot = self.slot
        if slot >= self.script.depth[self.position]:
            return None
        step = self.inner.next()
        self.slot += 1
        if not self.has_logits:
            return Step(self._token(slot), slot, None)
        if step is None:
            raise ValueError(
                f"drafter {self.name!r} offers {slot} tokens where {slot + 1} were recorded; take one that drafts as deep"
            )
        return step

    def resume(self):
        return self.inner.resume()

    def rollback(self, accepted: int) -> None:
        self.slot = 0
        self.inner.rollback(accepted)

    def catch_up(self, tokens, output, path) -> None:
        self.position += len(tokens)
        self.inner.catch_up(tokens, output, path)

    def _token(self, slot: int) -> int:
        return (
            self.script.text[self.position + slot]
            if slot < self.script.run[self.position]
            else WRONG
        )


class Told(ChainDrafting):
    """A line whose policy hears the recorded features: they are read from the random logits all the same, for the time it takes."""

    def __init__(self, stepper: Stepper, columns: np.ndarray):
        super().__init__(stepper)
        self.columns = columns

    def begin(self, drafter, rule, sequence, prefill, *more) -> None:
        """Starts a text."""
        super().begin(drafter, rule, sequence, prefill, *more)
        self.script, self.honest = drafter.script, self.reader
        self.reader = self

    @property
    def names(self) -> tuple[str, ...]:
        """Features that the policy reads."""
        return self.honest.names

    def read(self, step: Step, slot: int):
        """The recorded codes of this slot."""
        self.honest.read(step, slot)
        return self.script.feature[self.row, slot, self.columns], None

    def fetch(self, *asked) -> int:
        """As `Reader.fetch`."""
        return self.honest.fetch(*asked)

    def learn(self, output, path) -> None:
        """As `Reader.learn`."""
        self.honest.learn(output, path)

    def draft(
        self, last: int, position: int, round: int, cap: int, end_tokens, clock: PhaseTimer
    ) -> Draft:
        """As `ChainDrafting.draft`."""
        self.row = position
        return super().draft(last, position, round, cap, end_tokens, clock)


class Blank:
    """A predictor of random weights: two dot products a token, as a trained one takes."""

    def __init__(self, target: int, drafter: int, device):
        self.sizes = target, drafter, device

    def folded(self) -> Folded:
        """As `Predictor.folded`."""
        target, drafter, device = self.sizes
        wide = {"dtype": torch.float64, "device": device}
        return Folded(
            torch.full((DEPTHS, target), 1e-3, **wide),
            torch.full((drafter,), 1e-3, **wide),
            torch.zeros(1, **wide),
        )


def driven_passes(engine: str, trace: Trace, context: int | None = None) -> EagerPasses:
    """`real.decode.engine.passes_of` that engine for `drive` on a recording, with prompts of `context` tokens or as long as recorded."""
    length = np.diff(trace.prompt_offset) if context is None else context
    return passes_of(engine, trace.K + 1, int(np.max(length + trace.budget)) + 2)


def drive(
    decoder: Decoder,
    drafter: Drafter,
    trace: Trace,
    policies_: Sequence[Policy | str],
    cost: CostModel | None = None,
    seed: int = 0,
    context: int | None = None,
    label: dict | None = None,
    progress: Progress = quiet,
    passes: EagerPasses = EAGER,
) -> Driven:
    """Times every policy on every sequence of `trace`, sequence by sequence, plain decoding beside them; the first one is run once more.

    Texts are decoded greedily whatever the recording's rule: what noise costs is no part of these times. Policies see the recorded
    features and the modelled seconds of `cost` (default a ratio of 0.1), as in `simspec.replay`, whose rounds these are. ValueError for a
    recording of the rejection rule, whose acceptances are not in it but drawn.
    """
    if trace.meta.rule == "rejection":
        raise ValueError(
            "the recording is of the rejection rule, whose verdicts are drawn anew each time; use a greedy or coupled one"
        )
    cost = cost or CostModel.from_ratio(0.1, trace.K)
    made = [policies.make(policy, trace, cost) for policy in policies_]
    replays = [replay(trace, policy, seed=seed, cost=cost) for policy in made]
    engage(passes, decoder, drafter)
    scripted = Scripted(drafter, _predictors(made, decoder, drafter))
    known, target = dict(trace.meta.features), Target(decoder, drafter.taps, passes=passes)
    if odd := [name for p in made for name in p.reads if name not in GRIDS]:
        raise ValueError(
            f"feature {odd[0]!r} is not one that the loop reads; expected policies that read some of {', '.join(GRIDS)}"
        )
    shown = [tuple((name, known[name]) for name in policy.reads) for policy in made]
    plans = [
        Told(Stepper(p, trace.K, seed, cost, f), trace.features(p.reads))
        for p, f in zip(made, shown)
    ]
    bare = ChainDrafting(Stepper(policies.BUILTIN["fixed"](0), trace.K, seed, cost))
    runs = [(scripted, plan) for plan in plans] + [(Silent(), bare)]
    results: list[list[DecodeResult]] = [[] for _ in runs]
    texts = scripts(trace, decoder.config.vocab, context, seed)
    for i, script in enumerate([texts[0], *texts]):  # the first text warms the device up
        scripted.follow(script)
        for found, (each, plan) in zip(results, runs):
            ran = decode(
                target,
                each,
                plan,
                Rule(),
                script.prompt,
                script.budget,
                (END,),
                script.sequence,
                text=script.text,
            )
            found += [ran] if i else []
        progress("driving", i + 1, len(texts) + 1)
        if not i:  # streams start anew
            passes.warm()
            for plan, policy, f in zip(plans, made, shown):
                plan.stepper = Stepper(policy, trace.K, seed, cost, f)
    names = [*(p.name for p in made), PLAIN]
    alone = replay(trace, policies.BUILTIN["fixed"](0), seed=seed, cost=cost)
    members = groups([trace.token[a:b] for a, b in zip(trace.offset, trace.offset[1:])], trace.task)
    timings = [
        _timing(n, trace, r, x, results[-1], members)
        for n, r, x in zip(names, [*replays, alone], results)
    ]
    engines = {"engines": engines_of(target, drafter)}
    return Driven((label or {}) | engines, device_name(decoder.device), tuple(timings))


def _predictors(made: Sequence[Policy], decoder: Decoder, drafter: Drafter) -> dict:
    lm = drafter.lm
    width = (lm or decoder).config.width
    return {
        n: Blank(decoder.config.width, width, decoder.device)
        for p in made
        for n in p.reads
        if n in NAMES
    }


def _speed(results: Sequence[DecodeResult]) -> float:
    return sum(len(r.token) for r in results) / sum(float(r.seconds.sum()) for r in results)


def _timing(
    name: str,
    trace: Trace,
    replayed: Rounds,
    results: Sequence[DecodeResult],
    plain: Sequence[DecodeResult],
    members,
) -> Timing:
    seconds = np.concatenate([r.seconds for r in results]).sum(0).tolist()
    speed = _speed(results)
    by = {
        group: _speed([results[s] for s in of]) / _speed([plain[s] for s in of])
        for group, of in members.items()
        if of
    }
    return Timing(
        name,
        len(replayed),
        trace.rows,
        *seconds,
        speed,
        speed / _speed(plain),
        rounds_of(trace, results) == replayed,
        by,
    )
