"""The decode loop: one drafter, one plan, one rule; plain decoding is the policy fixed(0)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from real.decode.plans import Plan, RoundStart, SequenceStart
from real.decode.verify import (
    OTHER,
    VERIFICATION,
    PhaseTimer,
    VerifyResult,
    accept_exact,
    accept_recorded,
    block_sample,
    rejection_sample,
)
from real.draft import Drafter, Pick
from real.model.target import Target, TargetOutput
from real.sampling import AddressedDraws, Rule
from simspec.numerics.rng import DRAFT


@dataclass(frozen=True)
class Round:
    """One finished round, as the callback `on_round` of `real.decode.loop.decode` receives it."""

    position: int  # new tokens committed before the round
    # computed, drafted, accepted: draft tokens computed, submitted, accepted
    computed: int
    drafted: int
    accepted: int
    verified: VerifyResult  # the tokens committed, their path through the rows, and its scores


@dataclass(frozen=True)
class DecodeResult:
    """One decoded sequence of L new tokens in R rounds."""

    token: np.ndarray  # int32 [L]: the new tokens, the end token included
    position: np.ndarray  # int64 [R]: new tokens committed before each round
    # computed, drafted, accepted: int64 [R], as in `simspec.Rounds`
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    seconds: np.ndarray  # float64 [R, 4]: drafting, verification, policy, other
    gap: np.ndarray  # float64 [R]: least score gap that decided on a tree's nodes; inf for chains


def decode(
    target: Target,
    drafter: Drafter,
    plan: Plan,  # how a round's draft is made (`real.decode.plans.make_plan`)
    rule: Rule,
    prompt: list[int],
    budget: int,
    end_tokens: tuple[int, ...] = (),
    sequence: int = 0,  # address of the sequence's draws
    on_round: Callable[[Round], None] = lambda r: None,  # called after each round
    draws: AddressedDraws | None = None,  # of the rejection rule; None: by the rule's seed
    forced: Sequence[int] | None = None,  # committed whatever the target picks (teacher forcing)
    exact: bool = True,  # synchronize the device between phases; else they are timed as issued
) -> DecodeResult:
    """Decodes up to `budget` new tokens after `prompt`; their distribution is the target's own.

    Under a greedy or coupled rule the rounds equal those of `simspec.replay` on a recording of
    the same sequence (see NOTATION.md). Under the rejection rule drafts do not stop at a drafted
    end token; forced tokens are drafted too, and accepted as in the replay whose seed is that of
    `draws`. ValueError for an empty prompt, and for too few forced tokens.
    """
    if forced is not None:
        _check_forced(forced, budget, end_tokens)
    if not prompt:
        raise ValueError(
            "the prompt is empty; expected at least one token, the first round's input"
        )
    draws = draws or AddressedDraws(rule.seed, sequence)
    out: list[int] = []
    drawn: dict[int, Tensor] = {}

    prefill = target.prefill(prompt[:-1])
    plan.begin(SequenceStart(drafter, rule, sequence, prefill, draws))
    reader, clock = plan.reader, PhaseTimer(target.decoder.device, exact)

    def pick(logits: Tensor, slot: int, hidden: Tensor | None = None) -> int:
        if rule.sampled:
            drawn[slot] = rule.probs(logits[None])[0]
            if forced is not None:
                known = len(out) + slot < len(forced)
                return int(forced[len(out) + slot] if known else logits.argmax())
            return draws.sample(drawn[slot], len(rounds), slot, DRAFT)
        best = rule.scores(logits[None], sequence, [len(out) + slot]).argmax(-1)
        return int(best) if reader is None else reader.fetch(best, logits, hidden, slot, clock)

    drafter.begin(target, prompt, prefill, pick)
    last = prompt[-1]
    rounds: list[tuple[int, int, int, int]] = []
    gaps: list[float] = []
    while len(out) < budget and (not out or out[-1] not in end_tokens):
        clock.begin()
        drawn.clear()
        cap = min(plan.K, budget - len(out) - 1)
        ends = () if rule.sampled else end_tokens
        planned = plan.draft(RoundStart(last, len(out), len(rounds), cap, ends, clock))
        passed = drafter.complete(planned)
        draft = passed.offered
        output = target.verify(passed.token, passed.parent, drafter.resume(passed.grown))
        clock.lap(VERIFICATION)
        assert output.logits is not None  # only a prefill has none
        logits = output.logits[: len(draft.token)]
        if rule.sampled:
            draft = replace(draft, q={**drawn, **draft.q})
            if forced is None:
                sample = block_sample if rule.name == "block" else rejection_sample
                verified = sample(rule, logits, draft, draws, len(rounds), end_tokens)
            else:
                verified = accept_recorded(rule, logits, draft, draws, len(out), end_tokens, forced)
        else:
            verified = accept_exact(
                rule, logits, draft.token, draft.parent, sequence, len(out), end_tokens, forced
            )
        target.commit(verified.path)
        drafter.rollback(draft.kept(verified.path))
        drafter.catch_up(verified.token, output, verified.path)
        gaps.append(plan.end(planned, verified, output))
        done = Round(
            position=len(out),
            computed=draft.computed,
            drafted=len(draft.token) - 1,
            accepted=verified.accepted,
            verified=verified,
        )
        rounds.append((done.position, done.computed, done.drafted, done.accepted))
        out += verified.token
        last = out[-1]
        clock.lap(OTHER)
        on_round(done)

    position, computed, drafted, accepted = np.array(rounds, np.int64).reshape(-1, 4).T
    return DecodeResult(
        token=np.array(out, np.int32),
        position=position,
        computed=computed,
        drafted=drafted,
        accepted=accepted,
        seconds=np.array(clock.rows).reshape(-1, 4),
        gap=np.array(gaps, np.float64),
    )


def _check_forced(forced: Sequence[int], budget: int, end_tokens: tuple[int, ...]) -> None:
    if len(forced) < budget and (not len(forced) or forced[-1] not in end_tokens):
        raise ValueError(
            f"{len(forced)} forced tokens without an end token; "
            f"expected one, or the whole budget of {budget}"
        )


def greedy_pick(logits: Tensor, slot: int, hidden: Tensor | None = None) -> int:
    """The token with the largest logit, as a drafter's `real.draft.Pick`."""
    return int(logits.argmax())


def start(
    target: Target, drafter: Drafter, prompt: Sequence[int], pick: Pick = greedy_pick
) -> TargetOutput:
    """Prefills all of `prompt` but its last token and begins the drafter's sequence; returns the
    prefill's output."""
    prefill = target.prefill(list(prompt[:-1]))
    drafter.begin(target, list(prompt), prefill, pick)
    return prefill


def along(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    tokens: Sequence[int],
    pick: Pick = greedy_pick,
) -> Iterator[tuple[int, int, TargetOutput]]:
    """Yields (t, last, output) with the drafter ready to draft after `prompt` and `tokens[:t]`.

    | value | meaning |
    | --- | --- |
    | t | 0 .. n - 1: committed tokens of the sequence |
    | last | the last committed token, whose target row is not computed yet |
    | output | the pass before it: the prefill's, then one row a step |

    Between two steps `tokens[t]` is committed, whatever was drafted. A caller that drafts more
    than once at a position calls `drafter.rollback(0)` after each draft.
    """
    output = start(target, drafter, prompt, pick)
    last = prompt[-1]
    for t, token in enumerate(tokens):
        yield t, last, output
        output = target.verify([last], [-1])
        target.commit([0])
        drafter.rollback(0)
        last = int(token)
        drafter.catch_up([last], output, [0])
