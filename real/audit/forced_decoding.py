"""Teacher-forced decoding: runs that commit the tokens of a recording."""

from dataclasses import dataclass

import torch

from real.audit.score_gaps import spacing
from real.audit.tolerance import TOLERANCES
from real.decode.loop import decode
from real.decode.plan import Plan
from real.decode.result import DecodeResult, Round
from real.draft import Drafter
from real.model.target import Target
from real.progress import Progress, quiet
from real.rerun import prompts_of, rule_of
from real.sampling import Rule, clear_noise_cache
from simspec import Trace

NATS = {t.dtype: t.nats for t in TOLERANCES}
"""Gaps that rounding explains in a dtype; COARSE_NATS in any other."""
COARSE_NATS, ULPS = 0.3, 3.0


@dataclass(frozen=True)
class ForcedDivergence:
    """A committed token that is not the target's pick.

    | field | meaning |
    | --- | --- |
    | sequence, position | of the recording; among its new tokens |
    | token, best | the recorded token; the target's pick |
    | gap | score of the pick minus that of the token, nats |
    | ulps | the same in logits, in units in the last place of the coarser dtype |
    | excused | whether rounding explains it: gap <= NATS of that dtype, or ulps <= ULPS |
    """

    sequence: int
    position: int
    token: int
    best: int
    gap: float
    ulps: float
    excused: bool


def decode_forced(
    target: Target, drafter: Drafter, plan: Plan, trace: Trace, progress: Progress = quiet
) -> tuple[list[DecodeResult], list[ForcedDivergence]]:
    """Decodes every prompt of `trace` and commits the recorded tokens: (results, divergences)."""
    rule, results, divergences = rule_of(trace), [], []
    dtypes = [target.decoder.dtype, getattr(torch, trace.meta.dtype, torch.float32)]
    coarser = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    for s, prompt in enumerate(prompts_of(trace)):
        tokens = trace.token[trace.offset[s] : trace.offset[s + 1]].tolist()
        address = int(trace.sequence[s])

        def listen(r: Round, s=s, tokens=tokens, address=address) -> None:
            divergences.extend(_divergences(rule, r, tokens, s, address, coarser))

        clear_noise_cache()
        results.append(
            decode(
                target,
                drafter,
                plan,
                rule,
                prompt,
                int(trace.budget[s]),
                trace.meta.end_tokens,
                address,
                listen,
                forced=tokens,
            )
        )
        progress("forcing", s + 1, trace.sequences)
    return results, divergences


def _divergences(
    rule: Rule, r: Round, tokens: list[int], s: int, address: int, dtype: torch.dtype
) -> list[ForcedDivergence]:
    """The divergences of a round; logits are scores without the rule's noise and temperature."""
    scores = r.verified.scores[: len(r.verified.token)]
    best, divergences = scores.argmax(-1).tolist(), []
    for row in range(len(best)):
        position = r.position + row
        token = tokens[position]
        if best[row] == token:
            continue
        gap = float(scores[row, best[row]] - scores[row, token])
        row_scores = scores[row : row + 1]
        noise = rule.scores(torch.zeros_like(row_scores), address, [position])
        logits = (row_scores - noise) * rule.temperature
        unit = float(spacing(logits[0, [best[row], token]].abs().max(), dtype))
        ulps = gap * rule.temperature / unit
        limit = NATS.get(str(dtype).removeprefix("torch."), COARSE_NATS)
        excused = gap <= limit or ulps <= ULPS
        divergences.append(ForcedDivergence(s, position, token, best[row], gap, ulps, excused))
    return divergences
