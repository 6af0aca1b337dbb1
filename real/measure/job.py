"""Timing jobs: what runs repeatedly to price one part of a round."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.draft import Drafter, Silent
from simspec import Policy, policies
from simspec.policy.policy import observe_nothing

PLAIN, FIXED, BACKLOG, FEATURES = "plain", "fixed", "backlog", "features"
ALONE, NODES, WIDTH = "alone", "nodes", "width"
VERIFY, STEPS = "verify", "steps"

MAX_BACKLOG = 4
"""Catching up is measured up to this many rows."""
FEATURE_TOKENS = 4
"""Draft length at which reading features is measured."""
LADDER = 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 255
"""Draft lengths that are timed; drafting those between is filled linearly."""
DENSE, BLOCK = 16, 16
"""Verification is timed at all lengths up to DENSE, then around multiples of BLOCK rows, where
matrix products on a CPU jump, and between them."""
PASS_WIDTHS = 1, 4, 8
"""Rows of a drafter's pass over a tree, to price one more row."""


@dataclass(frozen=True)
class Job:
    """One thing to time.

    | kind | size | in the decode loop |
    | --- | --- | --- |
    | plain | 0, 1 | plain decoding without a drafter; 1: the duplicate in sequences of its own |
    | alone | tokens | verification of a chain that no drafter computed |
    | nodes | tokens | verification of a tree; no drafter computed it, unless passes resume |
    | fixed | draft length | drafts of that length |
    | backlog | rows | drafts of one token after that many rounds without a draft |
    | features | draft length | drafts whose confidence the policy reads |
    | theta, theta_low_rank | draft length | drafts whose prediction the policy reads, and no more |
    | width | rows of a pass | drafting a two-level tree, without verification |

    | kind | size | as a bare batched pass (`real.measure.batched`) |
    | --- | --- | --- |
    | verify | draft length | the target's pass |
    | steps | 0 | K draft steps |
    | backlog | rows | the first draft step behind that backlog |
    """

    kind: str
    size: int = 0

    @property
    def policy(self) -> Policy:
        """The chain policy that makes the loop do this job, round by round."""
        if self.kind == BACKLOG:
            return draft_after(self.size)
        if self.kind == FEATURES:
            return policies.BUILTIN["confidence"](0.0, K=self.size)
        if self.kind in PREDICTOR_NAMES:
            return draft_predicted(self.size, self.kind)
        return policies.BUILTIN["fixed"](0 if self.kind == PLAIN else self.size)

    def drafter(self, drafter: Drafter) -> Drafter:
        """The drafter that the loop runs for this job."""
        return Silent() if self.kind == PLAIN else drafter

    def rounds(self) -> list["Job"]:
        """The rounds that make up this job: catching up needs rounds without a draft before."""
        if self.kind == BACKLOG:
            return [*[Job(FIXED, 0)] * self.size, Job(FIXED, 1)]
        return [self]


def measured_lengths(most: int, least: int = 1) -> list[int]:
    """Lengths of LADDER from `least` to `most`, and both ends; none where most < least."""
    inside = {length for length in LADDER if least <= length <= most}
    return sorted(inside | {least, most}) if least <= most else []


def chain_jobs(lengths: Iterable[int], has_logits: bool) -> list[Job]:
    """Jobs that price chains: plain decoding, every draft length, catching up, reading features.

    Drafters without logits expose no features; a longest length of 0 leaves nothing to catch up.
    """
    lengths = list(lengths)
    jobs = [Job(PLAIN), *(Job(FIXED, length) for length in lengths)]
    if K := max(lengths):
        jobs += [Job(BACKLOG, rows) for rows in range(1, MAX_BACKLOG + 1)]
        if has_logits:
            jobs.append(Job(FEATURES, min(FEATURE_TOKENS, K)))
    return jobs


def verified_lengths(most: int, least: int = 1) -> list[int]:
    """Submitted tokens at which verification is timed, `least` and `most` among them; a pass of n
    tokens has n + 1 rows."""
    around = (
        BLOCK * k + step for k in range(most // BLOCK + 2) for step in (-2, -1, 0, BLOCK // 2)
    )
    inside = {n for n in (*range(1, DENSE + 1), *around) if least <= n <= most}
    return sorted(inside | {least, most}) if least <= most else []


def draft_jobs(K: int, has_logits: bool, predictors: Iterable[str] = ()) -> list[Job]:
    """Jobs of one round each, or of one catching up, that price drafts of up to K >= 1 tokens.

    Predictors of all forms are the same two dot products, so that the first is timed.
    """
    jobs = [job for job in chain_jobs(measured_lengths(K), has_logits) if job.kind != PLAIN]
    return jobs + [Job(name, min(FEATURE_TOKENS, K)) for name in list(predictors)[:1]]


def alone_jobs(K: int, nodes: int) -> list[Job]:
    """Jobs that price the target's verification: chains of up to K tokens, then larger trees."""
    return [Job(ALONE, length) for length in verified_lengths(K)] + tree_jobs(K, nodes)


def tree_jobs(K: int, nodes: int) -> list[Job]:
    """Jobs that price the verification of trees of more than K nodes."""
    return [Job(NODES, size) for size in verified_lengths(nodes, K + 1)]


def draft_after(rounds: int) -> Policy:
    """Drafts one token after every `rounds` rounds without a draft: its first step catches up."""
    return Policy(f"after:{rounds}", _draft_once, _count, params=(float(rounds),), state0=(0.0,))


def draft_predicted(length: int, name: str) -> Policy:
    """Drafts that many tokens and reads a predictor's value of each."""
    return Policy(
        f"reads:{name}", _draft_all, observe_nothing, (float(length),), K=length, reads=(name,)
    )


def _draft_all(params: Any, state: Any, slot: int, features: Any, u: float) -> tuple[bool, bool]:
    return slot < params[0], True


def _draft_once(params: Any, state: Any, slot: int, features: Any, u: float) -> tuple[bool, bool]:
    return slot < 1 and state[0] >= params[0], True


def _count(
    params: Any, state: Any, computed: int, drafted: int, accepted: int, features: Any, cost: Any
) -> None:
    state[0] = 0.0 if computed > 0 else state[0] + 1.0
