"""The rows of a recording: stepwise, by whole passes, and under the rejection rule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from real.decode.features import FeatureReader, encode_features, feature_values, required_predictors
from real.decode.loop import along
from real.decode.verify import TINY
from real.draft import Drafter, ParallelDrafter
from real.draft.kind import DraftedLogits, position_batches, rank_of
from real.drafters import parallel_form
from real.model.decoder import Decoder
from real.model.passes import TargetPass
from real.model.target import Target, TargetOutput
from real.prompts import Prompt, prompts_of
from real.record.sequences import TargetSequence
from real.record.settings import MAX_CODE, RecordError, Settings
from real.sampling import Rule, gumbel, margin
from simspec import Trace, TraceMeta
from simspec.trace.quantization import LARGEST_RATIO, coarse_ratio, encode_margin


@dataclass(frozen=True)
class RecordedRows:
    """The rows of one sequence of n tokens; fields as in `simspec.Trace`."""

    token: np.ndarray
    depth: np.ndarray
    run: np.ndarray
    feature: np.ndarray
    rank: np.ndarray | None = None
    margin: np.ndarray | None = None
    draft_margin: np.ndarray | None = None
    feature_margin: np.ndarray | None = None
    ratio: np.ndarray | None = None
    order: np.ndarray | None = None
    beam: np.ndarray | None = None


def rows_of(
    settings: Settings, tokens: np.ndarray, offered: np.ndarray, columns: torch.Tensor
) -> RecordedRows:
    """The rows of a sequence of n tokens, of drafts from all positions that nothing stopped early.

    offered int64 `[n]`: tokens that the drafter offers. columns float64 `[3 + F, n, K]`: its free
    draft; best minus second score of each token; rank of the recorded token in a draft along the
    sequence; values of the features. Drafts are cut at the budget, an end token and `offered`.
    """
    chain, margins, rank, *values = columns.cpu().numpy()
    chain, (n, K), names = chain.astype(np.int64), chain.shape, settings.features
    position, slot = np.arange(n), np.arange(K)
    reach = np.minimum(K, settings.budget - position)
    longest = np.minimum(reach, offered)
    ends = np.isin(chain, settings.end_tokens) & (slot < longest[:, None])
    full = np.where(offered < reach, offered, K)
    depth = np.where(ends.any(1), ends.argmax(1) + 1, full).astype(np.uint8)
    drafted = slot < np.minimum(depth, reach)[:, None]
    inside = position[:, None] + slot < n
    rank = np.where(slot < offered[:, None], np.minimum(rank, MAX_CODE), MAX_CODE)
    feature = np.zeros((n, K, len(names)), np.uint8)
    draft_margin, feature_margin = np.zeros((n, K), np.uint8), np.zeros((n, K), np.uint8)
    draft_margin[drafted] = encode_margin(margins[drafted])
    if names and drafted.any():
        feature[drafted], distance = encode_features(names, np.stack(values, -1)[drafted])
        feature_margin[drafted] = encode_margin(distance.min(-1))
    return RecordedRows(
        token=tokens, depth=depth,
        run=accepted_lengths(np.where(drafted, chain, -1), tokens, depth), feature=feature,
        rank=np.where(inside, rank, 0).astype(np.uint8), margin=np.zeros(n, np.uint8),
        draft_margin=draft_margin, feature_margin=feature_margin
    )  # fmt: skip


def accepted_lengths(chain: np.ndarray, tokens: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Leading tokens of each row of `chain [n, K]` that equal `tokens`, at most `depth`; uint8."""
    n, K = chain.shape
    position = np.arange(n)[:, None] + np.arange(K)
    equal = chain == tokens[np.minimum(position, n - 1)]
    accepted = (position < n) & equal & (np.arange(K) < depth[:, None])
    return np.cumprod(accepted, 1).sum(1).astype(np.uint8)


def assemble(
    rows: Sequence[RecordedRows], prompts: Sequence[Prompt], first: int, settings: Settings,
    meta: TraceMeta, budgets: Sequence[int] | None = None
) -> Trace:  # fmt: skip
    """One trace of recorded sequences, whose draw addresses are `first`, `first + 1`, ...

    `budgets` replace that of `settings`, one for each sequence.
    """
    return Trace(
        offset=_offsets([len(r.token) for r in rows]),
        budget=np.array(budgets or [settings.budget] * len(rows), np.int64),
        sequence=np.arange(first, first + len(rows), dtype=np.int64),
        prompt_offset=_offsets([len(p.token) for p in prompts]),
        prompt=np.concatenate([np.array(p.token, np.int32) for p in prompts]),
        **_concatenated(rows),
        meta=replace(meta, tasks=tuple(p.task for p in prompts), ids=tuple(p.id for p in prompts)),
    )


def join_traces(traces: Sequence[Trace], meta: TraceMeta) -> Trace:
    """The sequences of several traces of one recording, in order."""
    return Trace(
        offset=_offsets(np.concatenate([np.diff(t.offset) for t in traces])),
        prompt_offset=_offsets(np.concatenate([np.diff(t.prompt_offset) for t in traces])),
        prompt=np.concatenate([t.prompt for t in traces]),
        budget=np.concatenate([t.budget for t in traces]),
        sequence=np.concatenate([t.sequence for t in traces]),
        **_concatenated(traces),
        meta=replace(
            meta,
            tasks=sum((t.meta.tasks for t in traces), ()),
            ids=sum((t.meta.ids for t in traces), ()),
        ),
    )


def _offsets(lengths) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _concatenated(parts: Sequence) -> dict[str, Any]:
    """The columns of `RecordedRows`, each concatenated over `parts`; None where it is absent."""
    names = RecordedRows.__dataclass_fields__
    columns = {name: [getattr(p, name) for p in parts] for name in names}
    return {name: None if c[0] is None else np.concatenate(c) for name, c in columns.items()}


def check_history_free(drafter: Drafter | type[Drafter]) -> None:
    """RecordError for a drafter whose proposals depend on earlier rounds."""
    if not drafter.history_free:
        why = "depends on earlier rounds, so its recording would not replay exactly"
        raise RecordError(f"drafter {drafter.name!r} {why}; expected a history-free drafter")


def record_stepwise(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], tokens: np.ndarray,
    sequence: int
) -> RecordedRows:  # fmt: skip
    """Rows of `tokens`: at each position a free draft, then one along the sequence for the ranks.

    | slot | rank | draft margin |
    | --- | --- | --- |
    | of a drafter with logits | of the recorded token | best minus second score |
    | of a drafter without | 0 if it is the recorded token, else 255 | 255 |
    | not offered | 255 | 0 |

    RecordError for a drafter that is not history-free, ValueError for features without logits.
    """
    check_history_free(drafter)
    n, K, names, rule = len(tokens), settings.K, settings.features, settings.rule
    chain = np.zeros((n, K), np.int64)
    feature = np.zeros((n, K, len(names)), np.uint8)
    draft_margin, feature_margin = np.zeros((n, K), np.uint8), np.zeros((n, K), np.uint8)
    rank = np.zeros((n, K), np.uint8)
    depth = np.zeros(n, np.uint8)
    t, forced = 0, None

    def pick(logits, slot: int, hidden=None) -> int:
        scores = rule.scores(logits[None], sequence, [t + slot])
        if forced is not None:
            rank[t, slot] = min(int(rank_of(scores, forced[slot : slot + 1])), MAX_CODE)
            return int(forced[slot])
        draft_margin[t, slot] = encode_margin(margin(scores).cpu().numpy())[0]
        return int(scores.argmax())

    reader = FeatureReader(names, rule.temperature, drafter)
    for t, _, output in along(target, drafter, prompt, tokens.tolist(), pick):
        reader.begin(output)
        limit = min(K, settings.budget - t)
        depth[t] = K
        rank[t, : n - t] = MAX_CODE
        for slot in range(limit):
            step = drafter.next()
            if step is None:
                depth[t] = slot
                break
            chain[t, slot] = step.token
            if not drafter.has_logits:
                draft_margin[t, slot] = MAX_CODE
                if t + slot < n and step.token == tokens[t + slot]:
                    rank[t, slot] = 0
            if names:
                feature[t, slot], distance = reader.read(step, slot)
                feature_margin[t, slot] = encode_margin(distance.min())
            if step.token in settings.end_tokens:
                depth[t] = slot + 1
                break
        drafter.rollback(0)
        forced = torch.from_numpy(tokens[t:].astype(np.int64)).to(target.decoder.device)
        for _ in range(min(limit, n - t) if drafter.has_logits else 0):
            if drafter.next() is None:
                break
        drafter.rollback(0)
        forced = None
    return RecordedRows(
        token=tokens, depth=depth, run=accepted_lengths(chain, tokens, depth), feature=feature,
        rank=rank, margin=np.zeros(n, np.uint8), draft_margin=draft_margin,
        feature_margin=feature_margin
    )  # fmt: skip


CACHED_BYTES = 1 << 21
"""Bytes of float64 scores that are read several times; a core's cache holds them."""
MOST_ROWS = 1024
"""Rows of a pass of a drafter that is a language model, which bounds the memory of long texts."""


class SequenceScores:
    """`Rule.ranking` at the first `positions` positions; noise is drawn once, on the device."""

    def __init__(self, rule: Rule, sequence: int, positions: int):
        self.rule, self.sequence, self.positions = rule, sequence, positions
        self.noise: torch.Tensor | None = None

    def __call__(self, drafted: DraftedLogits, position: torch.Tensor) -> torch.Tensor:
        """Float64 scores `[n, N]` of logits that predict `position [n]`."""
        logits = drafted.logits
        if self.rule.name != "coupled":  # no noise, so no positions
            return self.rule.ranking(logits, self.sequence, [])
        if self.noise is None:
            vocab, device = drafted.vocab, logits.device
            places = [self.sequence] * self.positions, range(self.positions)
            self.noise = gumbel(self.rule.seed, *places, vocab, device)
        scores = self.rule.processed(logits)
        if drafted.token is None:
            scores += self.noise[position]
        else:
            scores += self.noise[position[:, None], drafted.token]
        return scores


def picks(drafted: DraftedLogits, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best token `[n]` of scores `[n, N]`, and its margin float64 `[n]`."""
    return drafted.tokens(scores.argmax(-1)), margin(scores)


def row_chunks(rows: int, vocab: int, device: torch.device) -> Iterator[slice]:
    """Slices of `rows` rows, whose float64 scores fit into a CPU's cache; all at once on a GPU."""
    size = rows if device.type != "cpu" else max(1, CACHED_BYTES // (8 * vocab))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


class SharedPass:
    """The pass and the scores that were asked for last, computed once while the sequence is the
    same."""

    def __init__(self) -> None:
        self.key: tuple | None = None
        self.scored: tuple | None = None
        self.sequence_scores = SequenceScores(Rule(), 0, 0)

    def target_pass(self, target: Decoder, prompt: list[int], tokens: list[int]) -> TargetPass:
        """The target's pass over a prompt and its new tokens."""
        key = id(target), prompt, tokens
        if key != self.key:
            self.full, self.key = TargetPass(target, prompt, tokens), key
        return self.full

    def scores(self, rule: Rule, sequence: int, positions: int) -> SequenceScores:
        """The scores at the first `positions` positions of a sequence."""
        scored = rule, sequence
        if scored != self.scored or positions > self.sequence_scores.positions:
            self.sequence_scores = SequenceScores(rule, sequence, positions)
            self.scored = scored
        return self.sequence_scores


@torch.inference_mode()
def hidden_states(lm: Decoder, prompt: list[int], tokens: np.ndarray) -> torch.Tensor:
    """Last hidden states `[n, width]` that predict `tokens [n]`, of one pass over all."""
    hidden = lm.through(torch.tensor([[*prompt, *tokens[:-1].tolist()]], device=lm.device))[0]
    return hidden[len(prompt) - 1 :]


class IdleTarget:
    """Answers every pass with empty output."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.empty = TargetOutput(None, torch.zeros(1, 1), {})

    def prefill(self, tokens: list[int]) -> TargetOutput:
        return self.empty

    def verify(self, tokens: list[int], parent: list[int], resume_from=None) -> TargetOutput:
        return self.empty

    def commit(self, path: list[int]) -> None:
        """Does nothing: there are no rows to keep."""


def parallel_batches(
    drafter: Drafter, full: TargetPass, n: int, width: int, drafts: int = 1
) -> tuple[int, Iterator[tuple[ParallelDrafter, torch.Tensor]]]:
    """(first of n positions that it drafts from, its parallel form with positions to draft from at
    a time)."""
    factory = parallel_form(drafter)
    assert factory is not None
    first = min(n, max(0, factory.min_context - full.prompt_length))

    def batches() -> Iterator[tuple[ParallelDrafter, torch.Tensor]]:
        if first < n:
            parallel = factory(drafter, full)
            positions = torch.arange(first, n, device=full.token.device)
            for batch in position_batches(positions, width, full, parallel, drafts):
                yield parallel, batch

    return first, batches()


def _padded(tokens: np.ndarray, K: int, device: torch.device) -> torch.Tensor:
    """The tokens, the last of them K times more: int64 `[n + K]`."""
    padded = np.concatenate((tokens, np.repeat(tokens[-1:], K))).astype(np.int64)
    return torch.from_numpy(padded).to(device)


@torch.inference_mode()
def record_parallel(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], tokens: np.ndarray,
    sequence: int, shared: SharedPass | None = None
) -> RecordedRows:  # fmt: skip
    """Rows of `tokens`; equal to `record_stepwise`.

    Each position drafts twice side by side: freely, and along the sequence for the ranks.
    """
    n, K, names, rule = len(tokens), settings.K, settings.features, settings.rule
    shared = shared or SharedPass()
    full = shared.target_pass(target.decoder, prompt, tokens.tolist())
    device = full.token.device
    depth = drafter.longest(K)
    predictors = {name: p.folded() for name, p in required_predictors(names, drafter).items()}
    sequence_scores = shared.scores(rule, sequence, n + K)
    expected = _padded(tokens, K, device)
    # chain, margin, rank and features of every position and slot
    columns = torch.zeros(3 + len(names), n, K, dtype=torch.float64, device=device)
    first, batches = parallel_batches(drafter, full, n, 1, 2)
    for parallel, batch in batches if depth else ():
        m, both = len(batch), torch.cat((batch, batch))
        target_odds = {
            name: folded.of_target(full.before(batch)) for name, folded in predictors.items()
        }
        root = torch.zeros_like(both)[:, None]
        step = parallel.start(both)
        for slot in range(depth):
            drafted, hidden = DraftedLogits.of(step[0])[:, 0], step[1][:, 0]
            token = torch.cat((expected[batch + slot], expected[batch + slot]))
            odds = {
                name: each[:, min(slot, each.shape[1] - 1)]
                + predictors[name].of_drafter(hidden[:m])
                for name, each in target_odds.items()
            }
            for part in row_chunks(m, drafted.logits.shape[-1], device):
                rows, own = batch[part], drafted[part]
                free = sequence_scores(own, rows + slot)
                token[part], columns[1, rows, slot] = picks(own, free)
                columns[0, rows, slot] = token[part].double()
                along = drafted[m + part.start : m + part.stop]
                scores = sequence_scores(along, rows + slot)
                columns[2, rows, slot] = along.rank(scores, token[m:][part]).double()
                if names:
                    columns[3:, rows, slot] = feature_values(
                        names,
                        own.logits,
                        rule.temperature,
                        {name: value[part] for name, value in odds.items()},
                        own.place(token[part])[0],
                    ).T
            if slot + 1 < depth:
                step = parallel.extend(root, token[:, None])
    offered = np.where(np.arange(n) < first, 0, depth)
    return rows_of(settings, tokens, offered, columns)


@torch.inference_mode()
def record_prefix_only(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], tokens: np.ndarray,
    sequence: int, shared: SharedPass | None = None
) -> RecordedRows:  # fmt: skip
    """Rows of `tokens` for a drafter that is a language model; equal to `record_stepwise`."""
    lm = drafter.lm
    assert lm is not None
    n, K, names, device = len(tokens), settings.K, settings.features, lm.device
    predictors = {name: p.folded() for name, p in required_predictors(names, drafter).items()}
    logit_features = tuple(name for name in names if name not in predictors)
    shared = shared or SharedPass()
    sequence_scores = shared.scores(settings.rule, sequence, n + K)

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float64, device=device)

    # [s, j]: the draft after a miss at position s; column 0 is the pick there
    token = torch.zeros(n, K, dtype=torch.int64, device=device)
    margins, value = zeros(n, K), zeros(n, K, len(logit_features))
    odds = zeros(len(predictors), n, K)

    expected = torch.from_numpy(tokens.astype(np.int64)).to(device)
    prefix_rank = torch.zeros(n, dtype=torch.int64, device=device)

    def read(positions, slot: int, hidden) -> None:
        drafted = DraftedLogits.from_head(lm.head, lm.norm(hidden))
        for part in row_chunks(len(positions), drafted.logits.shape[-1], device):
            rows, own = positions[part], drafted[part]
            scores = sequence_scores(own, rows + slot)
            token[rows, slot], margins[rows, slot] = picks(own, scores)
            if not slot:
                prefix_rank[rows] = own.rank(scores, expected[rows])
            if logit_features:
                value[rows, slot] = feature_values(
                    logit_features,
                    own.logits,
                    settings.rule.temperature,
                    token=own.place(token[rows, slot])[0],
                )
        for i, folded in enumerate(predictors.values()):
            odds[i, positions, slot] = folded.of_drafter(hidden)

    full = shared.target_pass(target.decoder, prompt, tokens.tolist())
    first, length = len(prompt), len(full.token)
    capacity = length + min(n, MOST_ROWS) * (K - 1)
    cache, layers = lm.cache(capacity=capacity), range(len(lm.layers))
    for start in range(0, length, MOST_ROWS):
        piece = full.token[start : start + MOST_ROWS]
        end = start + len(piece)
        rotation = lm.rotation(torch.arange(start, end, device=device))
        mask = torch.ones(len(piece), end, dtype=torch.bool, device=device).tril(start)
        hidden = lm.run(lm.embed(piece[None]), layers, rotation, mask, cache, start)
        skipped = max(0, first - 1 - start)  # rows that predict tokens of the prompt
        if skipped < len(piece):
            positions = torch.arange(start + skipped, end, device=device) - (first - 1)
            read(positions, 0, hidden[0, skipped:])

    miss = (token[:, 0] != expected).nonzero()[:, 0]
    for drafting in miss.split(MOST_ROWS) if K > 1 and len(miss) else ():
        mask = torch.arange(length, device=device) < (drafting + first)[:, None]
        itself = torch.eye(len(drafting), dtype=torch.bool, device=device)
        cached = length
        for slot in range(1, K):
            mask = torch.cat((mask, itself), 1)
            inputs = lm.embed(token[drafting, slot - 1][None])
            rotation = lm.rotation(drafting + first + slot - 1)
            hidden = lm.run(inputs, layers, rotation, mask, cache, cached)
            cached += len(drafting)
            read(drafting, slot, hidden[0])

    position = torch.arange(n, device=device)
    next_miss = torch.cat((miss, miss.new_tensor([n])))[torch.searchsorted(miss, position)]
    reached = position[:, None] + torch.arange(K, device=device)
    source = reached.minimum(next_miss[:, None]).clamp(max=n - 1)
    column = (reached - next_miss[:, None]).clamp(min=0)
    feature = dict(zip(logit_features, value[source, column].unbind(-1)))
    if predictors:
        before = full.before(position)
        for i, (name, folded) in enumerate(predictors.items()):
            target_odds = folded.of_target(before)
            slots = torch.arange(K, device=device).clamp(max=target_odds.shape[1] - 1)
            feature[name] = (target_odds[:, slots] + odds[i, source, column]).sigmoid()
    columns = [
        token[source, column].double(),
        margins[source, column],
        prefix_rank[reached.clamp(max=n - 1)].double(),
        *(feature[name] for name in names),
    ]
    return rows_of(settings, tokens, np.full(n, K), torch.stack(columns))


@torch.inference_mode()
def parallel_ratios(
    drafter: Drafter, settings: Settings, full: TargetPass, tokens: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(ratio float64 `[n, K]`, depth uint8 `[n]`) as the protocol gives them position by position.

    `p [n]` is the target's probability of each of `tokens [n]`.
    """
    n, K, device = len(tokens), settings.K, full.token.device
    offered = drafter.longest(K)
    first, batches = parallel_batches(drafter, full, n, 1)
    expected = _padded(tokens, K, device)
    q = torch.zeros(n, K, dtype=torch.float64, device=device)
    for parallel, batch in batches if offered else ():
        step = parallel.start(batch)
        for slot in range(offered):
            drafted = DraftedLogits.of(step[0])[:, 0]
            token = expected[batch + slot][:, None]
            for part in row_chunks(len(batch), drafted.logits.shape[-1], device):
                probabilities = settings.rule.probs(drafted.logits[part])
                column, inside = drafted.place(token[part][:, 0])
                found = probabilities.gather(-1, column[:, None])[:, 0]
                q[batch[part], slot] = found.where(inside, 0.0)
            if slot + 1 < offered:
                step = parallel.extend(torch.zeros_like(token), token)
    position = np.arange(n)[:, None] + np.arange(K)
    ratio = q.cpu().numpy() / p[np.minimum(position, n - 1)]
    offers = np.where(np.arange(n) < first, 0, offered)
    depth = np.where(offers < np.minimum(K, settings.budget - np.arange(n)), offers, K)
    return np.where(position < n, ratio, 0.0), depth.astype(np.uint8)


def record_rejection(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int],
    written: TargetSequence, shared: SharedPass | None = None
) -> RecordedRows:  # fmt: skip
    """The acceptance ratios of a sequence drawn from the target, which brings its p of each token.

    ratio[t, j] = q(y) / p(y) with y = token[t + j], and 0 past the sequence's end. p is the
    target's processed distribution there, q the drafter's in a draft from row t along the sequence.
    A drafter without logits has ratio 1 while its tokens equal the sequence's, then 0. `depth` is
    what the drafter offers; drafts do not stop at end tokens. RecordError for a drafter that is not
    history-free.
    """
    check_history_free(drafter)
    tokens, p = written
    n, K = len(tokens), settings.K
    if drafter.prefix_only and drafter.lm is not None:
        q, depth = _prefix_only(drafter, settings, prompt, tokens), np.full(n, K, np.uint8)
        position = np.arange(n)[:, None] + np.arange(K)
        ratio = np.where(position < n, (q / p)[np.minimum(position, n - 1)], 0.0)
    elif parallel_form(drafter) is not None:
        full = (shared or SharedPass()).target_pass(target.decoder, prompt, tokens.tolist())
        ratio, depth = parallel_ratios(drafter, settings, full, tokens, p)
    else:
        ratio, depth = _stepwise(target, drafter, settings, prompt, tokens, p)
    return RecordedRows(
        token=tokens, depth=depth, run=np.zeros(n, np.uint8),
        feature=np.zeros((n, K, 0), np.uint8), ratio=coarse_ratio(ratio)
    )  # fmt: skip


def _prefix_only(drafter, settings: Settings, prompt: list[int], tokens: np.ndarray) -> np.ndarray:
    """q of each token, in one pass of a drafter that is a language model."""
    expected = torch.from_numpy(tokens.astype(np.int64)).to(drafter.lm.device)
    logits = drafter.lm.logits(hidden_states(drafter.lm, prompt, tokens))
    return settings.rule.probs(logits).gather(-1, expected[:, None])[:, 0].cpu().numpy()


def _stepwise(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], tokens: np.ndarray,
    p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(ratio, depth) through the protocol: at each position a draft along the sequence."""
    n, K, rule = len(tokens), settings.K, settings.rule
    ratio, depth, t = np.zeros((n, K)), np.full(n, K, np.uint8), 0

    def pick(logits, slot: int, hidden=None) -> int:
        if t + slot >= n:
            return int(logits.argmax())
        token = int(tokens[t + slot])
        ratio[t, slot] = float(rule.probs(logits[None])[0, token]) / p[t + slot]
        return token

    for t, _, _ in along(target, drafter, prompt, tokens.tolist(), pick):
        equal = True
        for slot in range(min(K, settings.budget - t)):
            step = drafter.next()
            if step is None:
                depth[t] = slot
                break
            if not drafter.has_logits:
                equal = equal and t + slot < n and step.token == tokens[t + slot]
                ratio[t, slot] = equal
        drafter.rollback(0)
    return ratio, depth


def record_emitted(
    target: Target, drafter: Drafter, rule: Rule, trace: Trace, emitted: Sequence[np.ndarray]
) -> Trace:
    """Records the proposals of `drafter` along the tokens `emitted` after each prompt of `trace`.

    Budgets, addresses and depth are the trace's. Given these tokens, rounds of a run are
    distributed as replays of the result. RecordError for a drafter that is not history-free.
    """
    rows, prompts = [], []
    for s, (prompt, tokens) in enumerate(zip(prompts_of(trace), emitted)):
        budget = int(trace.budget[s])
        rows.append(emitted_rows(target, drafter, rule, prompt, tokens, trace.K, budget))
        prompts.append(Prompt(trace.meta.ids[s], trace.task[s], "", prompt))
    settings = Settings(trace.K, int(trace.budget.max()), rule, trace.meta.end_tokens, ())
    meta = replace(trace.meta, drafter=drafter.name, seed=rule.seed, largest_ratio=LARGEST_RATIO)
    recorded = assemble(rows, prompts, 0, settings, meta)
    return replace(recorded, budget=trace.budget, sequence=trace.sequence)


def emitted_rows(
    target: Target, drafter: Drafter, rule: Rule, prompt: list[int], tokens: np.ndarray, K: int,
    budget: int
) -> RecordedRows:  # fmt: skip
    """The rows of `tokens [n]` emitted after `prompt`, with drafts of up to K tokens.

    RecordError for a drafter that is not history-free.
    """
    written = tokens, _probabilities(target, rule, prompt, tokens)
    if drafter.tokens_only:
        target = cast(Target, IdleTarget(target.decoder))
    settings = Settings(K, budget, rule, (), ())
    return record_rejection(target, drafter, settings, prompt, written, SharedPass())


def _probabilities(target: Target, rule: Rule, prompt: list[int], tokens: np.ndarray) -> np.ndarray:
    """The target's probability of each of `tokens [n]`, float64 `[n]`, in one pass."""
    decoder = target.decoder
    logits = decoder.logits(hidden_states(decoder, prompt, tokens))
    columns = np.arange(len(tokens)), tokens
    p: np.ndarray = rule.probs(logits).cpu().numpy()[columns]
    return np.maximum(p, TINY)
