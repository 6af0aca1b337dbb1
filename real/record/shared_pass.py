"""What recorders share of one sequence: the target's pass, its noise, scores, hidden states."""

from collections.abc import Iterator

import numpy as np
import torch

from real.draft.drafted_logits import DraftedLogits
from real.model.decoder import Decoder
from real.model.full_pass import TargetPass
from real.model.target import TargetOutput
from real.sampling import Rule, gumbel, margin

CACHED_BYTES = 1 << 21
"""Of float64 scores that are read several times: what a core's cache holds."""


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
