"""Conventions of serving engines: when they draft, what caps a draft, and what their counters hold.

A recording says what a drafter proposes and what of it is accepted. An engine adds further rules,
which decide its passes and its statistics. Each engine's rules are one Convention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simspec.cost.model import CostModel
from simspec.policy.policy import Policy
from simspec.replay.replay import Recording, recording, replays
from simspec.trace.acceptance import drawn_run
from simspec.trace.trace import Rounds, Trace, committed


@dataclass(frozen=True)
class Convention:
    """The rules by which an engine drafts and counts."""

    name: str  # of the engine, and of its drafting method where that decides
    # the first row with a draft; 1: the pass over the prompt emits one token alone
    first_draft: Literal[0, 1] = 1
    # most draft tokens with L tokens left: L - 1, K, or K and 0 at L = 1
    cap: Literal["tokens_left", "none", "one_left"] = "tokens_left"
    # an accepted end token is counted always, only as the last token of its draft, or never, since
    # the last token of an output is the target's own
    end_token: Literal["accepted", "last_only", "bonus"] = "accepted"
    drafts_end: bool = True  # a draft may hold an end token
    past_end: bool = False  # accepted tokens after the end of the output are counted
    # drafts: every pass submits K draft tokens, or what the cap leaves, past an end token too
    fill: Literal["none", "drafts"] = "none"


CONVENTIONS = {
    rules.name: rules
    for rules in (
        Convention("simspec", first_draft=0),
        Convention("vllm", cap="none", past_end=True),
        # of vLLM 0.33's V2 runner too: its `skip_drafts` leaves a drafter out, and changes no pass
        Convention("vllm_model", cap="none", past_end=True, fill="drafts"),
        Convention("llamacpp", end_token="last_only"),
        Convention("llamacpp_model", end_token="last_only", fill="drafts"),
        Convention("transformers", first_draft=0, end_token="bonus"),
        Convention(
            "transformers_ngram", first_draft=0, cap="one_left", end_token="bonus",
            drafts_end=False,
        ),
    )
}  # fmt: skip
"""Read in vLLM 0.32 (V1 runner; draft model), 0.33 (draft model and heads of the V2 runner),
llama.cpp of October 2026 (n-gram; draft model) and transformers 5.23 (draft model; prompt
lookup)."""


Sequenced = list[tuple[int, int, int]]
"""Tokens that each pass of a sequence emits, drafts and accepts."""


@dataclass(frozen=True, eq=False)
class Passes:
    """Target passes of every sequence, plain ones and the pass over the prompt included."""

    offset: np.ndarray  # int64[S + 1]: passes offset[s] .. offset[s + 1] - 1 belong to sequence s
    row: np.ndarray  # int64[P]: tokens of the sequence before the pass
    emitted: np.ndarray  # int64[P]: tokens that the pass adds to the text
    drafted: np.ndarray  # int64[P]: draft tokens submitted; 0: a plain pass
    accepted: np.ndarray  # int64[P]: of these, accepted as the engine counts them, within the text

    def sequence(self, s: int) -> Sequenced:
        """[(emitted, drafted, accepted), ..] of one sequence, in order."""
        part = slice(self.offset[s], self.offset[s + 1])
        columns = (column[part].tolist() for column in (self.emitted, self.drafted, self.accepted))
        return list(zip(*columns))


def engine_passes(
    trace: Trace, policy: Policy, rules: Convention, seed: int = 0, cost: CostModel | None = None
) -> Passes:
    """The passes of an engine that decodes this recording's text under this policy.

    With the convention "simspec" the passes are the rounds of `replay`. A model's recorded draft
    stops at its end token, where vLLM and llama.cpp go on: vllm_model, llamacpp_model. Errors of
    `replay`.
    """
    first, K = rules.first_draft, policy.longest(trace.K)
    (rounds,) = replays(
        trace, policy, (seed,), cost, adapt=lambda held: _adapted(trace, held, rules, K)
    )
    if first:
        rounds = _with_prompt_pass(rounds, trace)
    return _counted(rounds, trace, rules)


def scheduled_passes(
    trace: Trace, waves: Sequence[Sequence[int]], lengths: Sequence[int], rules: Convention
) -> Passes:
    """The passes of sequences that run together, where their number decides the draft length.

    waves: sequences that start in the same pass; each of the trace is in one wave. A pass of n
    requests, the one over the prompts too, makes drafts of at most lengths[n] tokens, which the
    next pass verifies. A shorter draft must be the start of a longer one, as in vLLM. ValueError
    for drafts in a first pass.
    """
    if not rules.first_draft:
        raise ValueError(f"{rules.name} drafts in its first pass, and takes no schedule")
    unread = np.zeros(0, np.int64), np.zeros((0, 256))
    held = recording(trace, *unread)._replace(run=drawn_run(trace, 0))
    held = _adapted(trace, held, rules, max(lengths))
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in range(trace.sequences)]
    for wave in waves:
        running, K = dict.fromkeys(wave, 0), 0
        while running:
            together = len(running)
            for s, row in list(running.items()):
                drafted = accepted = 0
                if row:
                    at = held.offset[s] + row - 1
                    drafted = min(K, int(held.depth[at]), int(held.budget[s]) - row)
                    accepted = min(drafted, int(held.run[at]))
                found[s].append((row, drafted, drafted, accepted))
                running[s] = row + accepted + 1
                if running[s] >= trace.offset[s + 1] - trace.offset[s]:
                    del running[s]
            K = lengths[together]
    return _counted(Rounds.join(found, trace.offset), trace, rules)


def _ended(trace: Trace) -> np.ndarray:
    """bool[S]: whether the sequence ends with an end token."""
    ended: np.ndarray = np.isin(trace.token[trace.offset[1:] - 1], trace.meta.end_tokens)
    return ended


def _adapted(trace: Trace, held: Recording, rules: Convention, K: int) -> Recording:
    """The recording as the engine drafts on it: cap, start and end tokens."""
    length = np.diff(trace.offset)
    row = np.arange(trace.rows) - np.repeat(trace.offset[:-1], length)
    left = np.repeat(length, length) - row  # of the text, not of the budget
    depth, run, budget = held.depth.copy(), held.run.copy(), held.budget.copy()
    if rules.fill == "drafts":
        depth[:] = K
    if not rules.drafts_end:
        takes_end = np.repeat(_ended(trace), length) & (run == left)
        run[takes_end] -= 1
        depth[takes_end] = np.minimum(depth[takes_end], run[takes_end])
    if rules.cap != "tokens_left":
        if rules.cap == "one_left":
            depth[np.repeat(budget, length) - row == 1] = 0
        budget += K + 1
    if not rules.first_draft:
        return held._replace(depth=depth, run=run, budget=budget)
    kept = row > 0
    return held._replace(
        offset=held.offset - np.arange(len(held.offset)),
        budget=budget - 1,
        depth=np.ascontiguousarray(depth[kept]),
        run=np.ascontiguousarray(run[kept]),
        feature=np.ascontiguousarray(held.feature[kept]),
    )


def _with_prompt_pass(rounds: Rounds, trace: Trace) -> Rounds:
    """Rounds on the later rows, as rounds of the trace after a plain one at the first row."""
    sequences = trace.sequences
    sequence = np.repeat(np.arange(sequences), np.diff(rounds.offset))
    at = rounds.offset[:-1]
    plain = np.zeros(sequences, np.int64)
    return Rounds(
        rounds.offset + np.arange(sequences + 1),
        np.insert(rounds.row + sequence + 1, at, trace.offset[:-1]),
        np.insert(rounds.computed, at, plain),
        np.insert(rounds.drafted, at, plain),
        np.insert(rounds.accepted, at, plain),
    )


def _counted(rounds: Rounds, trace: Trace, rules: Convention) -> Passes:
    emitted = committed(rounds, trace)
    accepted = rounds.accepted.copy()
    last = rounds.offset[1:] - 1
    took_end = last[_ended(trace) & (accepted[last] == emitted[last])]
    if rules.end_token == "last_only":
        accepted[took_end[accepted[took_end] < rounds.drafted[took_end]]] -= 1
    elif rules.end_token == "bonus":  # tokens are cut at the end first, and then counted
        accepted[last] = np.minimum(accepted[last], emitted[last] - 1)
    start = np.repeat(trace.offset[:-1], np.diff(rounds.offset))
    return Passes(rounds.offset, rounds.row - start, emitted, rounds.drafted, accepted)


def clipped(passes: Sequence[Sequence[int]], length: int) -> Sequenced:
    """An engine's passes of one request with emitted and accepted cut at a text of `length` tokens.

    Engines count what a last pass emits or accepts after the end; a replay knows the text alone.
    """
    cut, row = [], 0
    for emitted, drafted, accepted in passes:
        left = max(length - row, 0)
        cut.append((min(emitted, left), drafted, min(accepted, left)))
        row += emitted
    return cut
