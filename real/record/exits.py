"""Recording of all exits of a sorted drafter along the sequences of a recording."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from real.decode.features import encode_features, feature_values
from real.draft.kind import DraftedLogits
from real.drafters.sorted import ParallelSorted, SortedDrafter
from real.model.decoder import Decoder
from real.model.passes import TargetPass
from real.record.rows import SequenceScores, picks
from real.record.settings import MAX_CODE, RecordError
from real.sampling import Rule
from simspec import Trace
from simspec.trace.exits import ExitDrafts
from simspec.trace.quantization import LOG_ODDS, encode, encode_margin

MAX_NODES = 1 << 22
"""Drafts of one recording; more would exceed the usual memory."""


@dataclass
class Node:
    """A draft after a position of the sequence that some thresholds reach.

    position: of the row that the draft misses at; number: among the recording's nodes; low, high:
    least confidence codes of each exit but the last that lead here; row: its place among the
    position's nodes of its depth.
    """

    position: int
    number: int
    low: np.ndarray
    high: np.ndarray
    row: int = 0


@dataclass
class Columns:
    """The arrays of `ExitDrafts`, filled node by node; -1 children until they are known."""

    parts: list[dict[str, np.ndarray]] = field(default_factory=list)
    count: int = 0

    def add(self, values: dict[str, np.ndarray]) -> int:
        """Appends nodes; returns the number of the first."""
        first, self.count = self.count, self.count + len(values["token"])
        if self.count > MAX_NODES:
            raise RecordError(
                f"the exits have over {MAX_NODES:,} different drafts; record with a smaller K"
            )
        self.parts.append(values)
        return first


@torch.inference_mode()
def record_exits(drafter: SortedDrafter, target: Decoder, trace: Trace, rule: Rule) -> ExitDrafts:
    """All exits' drafts from every row of `trace`, a recording of this drafter.

    The target only supplies its dtype and device: the recorded tokens are its own. RecordError for
    a rejection recording, whose drafts are drawn.
    """
    if rule.sampled:
        raise RecordError(
            "exits are recorded under a greedy or coupled rule: the rejection rule draws drafts, "
            "one recording for each tuple of thresholds"
        )
    rows, tails = Columns(), Columns()
    for s in range(trace.sequences):
        part = slice(*trace.prompt_offset[s : s + 2]), slice(*trace.offset[s : s + 2])
        prompt, tokens = trace.prompt[part[0]].tolist(), trace.token[part[1]]
        full = TargetPass(target, prompt, tokens.tolist())
        walk = _Walk(ParallelSorted(drafter, full), trace, rule, int(trace.sequence[s]))
        walk.record(tokens, int(trace.budget[s]), rows, tails)
    merged = {
        name: np.concatenate([part[name] for part in (*rows.parts, *tails.parts)])
        for name in rows.parts[0]
    }
    # children among rows count rows, those in tails count tails from -2 down
    child = merged["child"]
    merged["child"] = np.where(child < -1, -2 - child + trace.rows, child).astype(np.int32)
    return ExitDrafts(layers=drafter.cascade.exits, **merged)


class _Walk:
    """One sequence: its rows, then the drafts after their misses, level by level."""

    def __init__(self, parallel: ParallelSorted, trace: Trace, rule: Rule, sequence: int):
        self.parallel, self.trace, self.rule = parallel, trace, rule
        self.names = tuple(name for name, _ in trace.meta.features)
        self.ends = set(trace.meta.end_tokens)
        self.sequence = sequence

    def record(self, tokens: np.ndarray, budget: int, rows: Columns, tails: Columns) -> None:
        n, K = len(tokens), self.trace.K
        self.scores = SequenceScores(self.rule, self.sequence, n + K)
        device = self.parallel.lm.device
        position = torch.arange(n, device=device)
        wanted = torch.from_numpy(tokens.astype(np.int64)).to(device)
        values = self.values(self.parallel.at(position), position[:, None], wanted)
        exits = values["token"].shape[1]
        first, end = rows.count, position.numpy(force=True) + 1
        hit = (values["token"] == tokens[:, None]) & (end < n)[:, None]
        values["child"][hit] = np.repeat((first + end)[:, None], exits, 1)[hit]
        rows.add(values)
        open_to = np.zeros(exits - 1, np.int64), np.full(exits - 1, 256)
        level = [Node(t, first + t, *open_to) for t in range(n)]
        held = {node.number: (values, t) for t, node in enumerate(level)}
        for slot in range(1, K):
            children = list(self._children(level, held, tokens, slot, budget))
            if not children:
                break
            if slot == 1:
                misses = sorted({child.position for child, *_ in children})
                place = {t: i for i, t in enumerate(misses)}
                self.parallel.at(torch.tensor(misses, device=device))
            level, held = self._level(children, place, slot, tails)

    def _children(
        self, level: Sequence[Node], held: dict, tokens: np.ndarray, slot: int, budget: int
    ) -> Iterator[tuple[Node, int, int, list[tuple[dict, int, int]]]]:
        """(node, its parent's place, token, the cells that name it) of the next level."""
        for node in level:
            values, i = held[node.number]
            if node.position + slot >= budget:
                continue
            found: dict[int, tuple[Node, list]] = {}
            low, high = node.low.copy(), node.high.copy()
            for exit, token in enumerate(values["token"][i].tolist()):
                code = int(values["confidence"][i, exit])
                reach = high.copy()
                if exit < len(low):
                    reach[exit] = min(reach[exit], code)
                # slot 1 leaves the sequence here: its own token is the next row's matter
                follows = slot == 1 and token == tokens[node.position]
                if (low <= reach).all() and token not in self.ends and not follows:
                    child, cells = found.setdefault(
                        token, (Node(node.position, -1, low.copy(), reach), [])
                    )
                    child.low = np.minimum(child.low, low)
                    child.high = np.maximum(child.high, reach)
                    cells.append((values, i, exit))
                if exit < len(low):
                    low[exit] = max(low[exit], code + 1)
            for token, (child, cells) in found.items():
                yield child, node.row, token, cells

    def _level(
        self, children: list, place: dict[int, int], slot: int, tails: Columns
    ) -> tuple[list[Node], dict]:
        """Passes the nodes of one level, padded to the same number at every position."""
        device, m = self.parallel.lm.device, len(place)
        count = np.zeros(m, np.int64)
        for child, *_ in children:
            child.row = int(count[place[child.position]])
            count[place[child.position]] += 1
        parent, token = (np.zeros((m, int(count.max())), np.int64) for _ in range(2))
        for child, above, drafted, _ in children:
            at = place[child.position], child.row
            parent[at], token[at] = above, drafted
        hidden = self.parallel.behind(*(torch.from_numpy(x).to(device) for x in (parent, token)))
        places = torch.tensor([(place[c.position], c.row) for c, *_ in children], device=device)
        position = torch.tensor([c.position + slot for c, *_ in children], device=device)
        chosen = [rows[places[:, 0], places[:, 1]][:, None] for rows in hidden]
        values = self.values(chosen, position[:, None], None)
        first = tails.add(values)
        for i, (child, _, _, cells) in enumerate(children):
            child.number = -2 - (first + i)
            for above, j, exit in cells:
                above["child"][j, exit] = child.number
        level = [child for child, *_ in children]
        return level, {child.number: (values, i) for i, child in enumerate(level)}

    def values(
        self, hidden: Sequence[Tensor], position: Tensor, wanted: Tensor | None
    ) -> dict[str, np.ndarray]:
        """The arrays of nodes with hidden states `[m, 1, width]` of every exit."""
        columns: dict[str, list[np.ndarray]] = {}
        for rows in hidden:
            logits = self.parallel.lm.logits(rows[:, 0])
            drafted = DraftedLogits.of(logits)
            scores = self.scores(drafted, position[:, 0])
            token, margin = picks(drafted, scores)
            rank = torch.zeros_like(token) if wanted is None else drafted.rank(scores, wanted)
            sure = feature_values(("confidence",), logits, 1.0)[:, 0]
            code = np.zeros((len(token), 0), np.uint8)
            edge = np.zeros(len(token), np.uint8)
            if self.names:
                shown = feature_values(
                    self.names, drafted.logits, self.rule.temperature,
                    token=drafted.place(token)[0],
                )  # fmt: skip
                code, distance = encode_features(self.names, shown.numpy(force=True))
                edge = encode_margin(distance.min(-1))
            own = {
                "token": token.numpy(force=True).astype(np.int32),
                "child": np.full(len(token), -1, np.int32),
                "confidence": encode(sure.numpy(force=True), LOG_ODDS)[0],
                "feature": code,
                "draft_margin": encode_margin(margin.double().numpy(force=True)),
                "feature_margin": edge,
                "rank": rank.clamp(max=MAX_CODE).numpy(force=True).astype(np.uint8),
            }
            for name, array in own.items():
                columns.setdefault(name, []).append(array)
        return {name: np.stack(arrays, 1) for name, arrays in columns.items()}
