"""THE loop: one drafter, one policy, one rule; plain decoding is the policy fixed(0)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from torch import Tensor

from real.decode.chain import ChainDrafting
from real.decode.phase_timer import OTHER, VERIFICATION, PhaseTimer
from real.decode.verify import VerifyResult, accept_exact, rejection_sample
from real.draft import Drafter
from real.model.target import Target
from real.sampling import AddressedDraws, Rule
from simspec.rng import DRAFT
from simspec.stepper import Stepper


@dataclass(frozen=True)
class Round:
    """What a listener hears after each round.

    | field | meaning |
    | --- | --- |
    | position | new tokens committed before the round |
    | computed, drafted, accepted | draft tokens paid for, submitted, emitted |
    | verified | the tokens committed, the path through the pass's rows, and the scores it was judged by |
    """

    position: int
    computed: int
    drafted: int
    accepted: int
    verified: VerifyResult


@dataclass(frozen=True)
class DecodeResult:
    """One decoded text.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | token | int32 `[L]` | the new text, its end token included |
    | position | int64 `[R]` | new tokens committed before each round |
    | computed, drafted, accepted | int64 `[R]` | as in `simspec.Rounds` |
    | seconds | float64 `[R, 4]` | drafting, verification, policy, other |
    | gap | float64 `[R]` | smallest gap between scores by which a tree got the nodes that mattered; inf for chains |
    """

    token: np.ndarray
    position: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    seconds: np.ndarray
    gap: np.ndarray


class Plan(Protocol):
    """How a round's draft is made: a `real.decode.chain.ChainDrafting` asks a policy token by token, a tree is grown to its shape.

    `K` is the deepest draft; `begin(drafter, rule, sequence, prefill, draws)` starts a text,
    a `reader` that it has from then on fetches features together with the tokens picked (`real.decode.features.Reader.fetch`);
    `draft(last, position, round, cap, end_tokens, clock)` gives a Draft of at most `cap` deep,
    `end(draft, verified, output)` hears what became of it and tells the round's `DecodeResult.gap`.
    """

    K: int


def decode(
    target: Target,
    drafter: Drafter,
    stepper: Stepper | Plan,
    rule: Rule,
    prompt: list[int],
    budget: int,
    end_tokens: tuple[int, ...] = (),
    sequence: int = 0,
    listen: Callable[[Round], None] = lambda r: None,
    draws: AddressedDraws | None = None,
    text: Sequence[int] | None = None,
    exact: bool = True,
) -> DecodeResult:
    """Decodes up to `budget` new tokens after `prompt`; the text is the target's own, whatever is drafted.

    `sequence` addresses the policy's and the rule's draws (`draws`, by default those of the rule's seed). Under the rejection rule the
    text's law is the target's, and drafts do not stop at a drafted end token, so that their length tells nothing of what was drawn.
    Otherwise rounds equal those of `simspec.replay` on a recording of the same text: the conventions are one by one those of the trace
    (see NOTATION.md). With `text` that is what is committed, whatever the target's own picks are (`real.decode.verify.accept_exact`); it ends with an end
    token or with the budget. `exact` waits for the device between phases (`real.decode.phase_timer.PhaseTimer`); without it the host waits once a drafted
    token and once a pass, and phases are told apart as they were issued. ValueError for an empty prompt, and for a text under the
    rejection rule.
    """
    if text is not None and rule.sampled:
        raise ValueError(
            "a text cannot be forced on the rejection rule, which accepts by coins; expected rule 'greedy' or 'coupled'"
        )
    if text is not None and len(text) < budget and (not len(text) or text[-1] not in end_tokens):
        raise ValueError(
            f"the text has {len(text)} tokens and no end token; expected one, or the whole budget of {budget}"
        )
    if not prompt:
        raise ValueError(
            "the prompt is empty; expected at least one token (a prompt's last token is the first input)"
        )
    plan = ChainDrafting(stepper) if isinstance(stepper, Stepper) else stepper
    judge = accept_exact if text is None else partial(accept_exact, text=text)
    draws = draws or AddressedDraws(rule.seed, sequence)
    out: list[int] = []
    drawn: dict[int, Tensor] = {}

    prefill = target.prefill(prompt[:-1])
    plan.begin(drafter, rule, sequence, prefill, draws)
    reader, clock = getattr(plan, "reader", None), PhaseTimer(target.decoder.device, exact)

    def pick(logits, slot: int, hidden=None) -> int:
        if rule.sampled:
            drawn[slot] = rule.probs(logits[None])[0]
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
        draft = plan.draft(
            last, len(out), len(rounds), cap, () if rule.sampled else end_tokens, clock
        )
        output = target.verify(draft.token, draft.parent, drafter.resume())
        clock.lap(VERIFICATION)
        if rule.sampled:
            verified = rejection_sample(
                rule,
                output.logits,
                replace(draft, q={**drawn, **draft.q}),
                draws,
                len(rounds),
                end_tokens,
            )
        else:
            verified = judge(
                rule, output.logits, draft.token, draft.parent, sequence, len(out), end_tokens
            )
        target.commit(verified.path)
        drafter.rollback(draft.kept(verified.path))
        drafter.catch_up(verified.token, output, verified.path)
        gaps.append(plan.end(draft, verified, output))
        heard = Round(len(out), draft.computed, len(draft.token) - 1, verified.accepted, verified)
        rounds.append((heard.position, heard.computed, heard.drafted, heard.accepted))
        out += verified.token
        last = out[-1]
        clock.lap(OTHER)
        listen(heard)

    column = np.array(rounds, np.int64).reshape(-1, 4).T
    return DecodeResult(
        np.array(out, np.int32),
        *column,
        np.array(clock.rows).reshape(-1, 4),
        np.array(gaps, np.float64),
    )
