"""Recording in whole passes: drafters of a parallel form or of the prefix, and shared scores."""

from collections.abc import Iterator

import numpy as np
import torch

from real.decode.features import feature_values, required_predictors
from real.draft import Drafter
from real.draft.drafted_logits import DraftedLogits
from real.draft.kind import position_batches
from real.drafters import parallel_form
from real.model.decoder import Decoder
from real.model.full_pass import TargetPass
from real.model.target import Target, TargetOutput
from real.record.rows import FullDrafts, RecordedRows, rows_of
from real.record.settings import Settings
from real.sampling import Rule, gumbel, margin

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
            self.noise = gumbel(self.rule.seed, self.sequence, 0, self.positions, vocab, device)
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
def hidden_states(lm: Decoder, prompt: list[int], tokens: np.ndarray, ahead: int) -> torch.Tensor:
    """Last hidden states `[n, width]` of one pass over `prompt` and `tokens [n]`.

    Row t predicts token t + `ahead`, 0 or -1; with -1, zeros in front of the prompt's first token.
    """
    inputs = torch.tensor([[*prompt, *tokens[:-1].tolist()]], device=lm.device)
    rotation = lm.rotation(torch.arange(inputs.shape[1], device=lm.device))
    hidden = lm.run(lm.embed(inputs), range(len(lm.layers)), rotation)[0]
    first = len(prompt) - 1 + ahead
    if first >= 0:
        return hidden[first : first + len(tokens)]
    return torch.cat((torch.zeros_like(hidden[:1]), hidden[: len(tokens) - 1]))


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


@torch.inference_mode()
def record_parallel(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    tokens: np.ndarray,
    sequence: int,
    shared: SharedPass | None = None,
) -> RecordedRows:
    """Rows of `tokens`; equal to `record_stepwise`.

    Each position drafts twice side by side: freely, and along the sequence for the ranks.
    """
    n, K, names, rule = len(tokens), settings.K, settings.features, settings.rule
    shared = shared or SharedPass()
    full = shared.target_pass(target.decoder, prompt, tokens.tolist())
    device = full.token.device
    depth = drafter.longest(K)
    predictors = {
        name: predictor.folded() for name, predictor in required_predictors(names, drafter).items()
    }
    sequence_scores = shared.scores(rule, sequence, n + K)
    padded = np.concatenate((tokens, np.repeat(tokens[-1:], K))).astype(np.int64)
    expected = torch.from_numpy(padded).to(device)
    # chain, margin, rank and features of every position and slot
    columns = torch.zeros(3 + len(names), n, K, dtype=torch.float64, device=device)
    factory = parallel_form(drafter)
    assert factory is not None
    first = max(0, factory.min_context - len(prompt))
    if first < n and depth:
        parallel = factory(drafter, full)
        positions = torch.arange(first, n, device=device)
        for batch in position_batches(positions, 1, full, parallel, 2):
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
    chain, draft_margin, rank, *feature = columns.cpu().numpy()
    drafts = FullDrafts(
        offered=np.where(np.arange(n) < first, 0, depth),
        chain=chain.astype(np.int64),
        margin=draft_margin,
        feature=np.stack(feature, -1) if names else np.zeros((n, K, 0)),
        rank=rank.astype(np.int64),
    )
    return rows_of(settings, tokens, drafts)


@torch.inference_mode()
def record_prefix_only(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    tokens: np.ndarray,
    sequence: int,
    shared: SharedPass | None = None,
) -> RecordedRows:
    """Rows of `tokens` for a drafter that is a language model; equal to `record_stepwise`."""
    lm = drafter.lm
    assert lm is not None
    n, K, names, device = len(tokens), settings.K, settings.features, lm.device
    predictors = {
        name: predictor.folded() for name, predictor in required_predictors(names, drafter).items()
    }
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
    chain, draft_margin, rank, *recorded = torch.stack(columns).cpu().numpy()
    drafts = FullDrafts(
        offered=np.full(n, K),
        chain=chain.astype(np.int64),
        margin=draft_margin,
        feature=np.stack(recorded, -1) if names else np.zeros((n, K, 0)),
        rank=rank.astype(np.int64),
    )
    return rows_of(settings, tokens, drafts)
