"""Examples that acceptance predictors learn from: drafted tokens up to the first miss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet
from real.record import Settings
from real.record.hidden_states import hidden_states
from real.record.target_sequence import target_sequence


@dataclass(frozen=True)
class AcceptanceExamples:
    """M drafted tokens with labels, on T positions of sequences.

    | field | meaning |
    | --- | --- |
    | of_target `[T, d_T]` | the target's state that produced the token before each position |
    | of_drafter `[T, d_D]` | the drafter's state that produces its pick, on the true prefix |
    | row, position `[M]` | where the draft began, and the position of the drafted token |
    | label `[M]` | whether it is the target's token |
    | sequence `[T]` | the sequence that each position belongs to |
    """

    of_target: Tensor
    of_drafter: Tensor
    row: Tensor
    position: Tensor
    label: Tensor
    sequence: Tensor

    @property
    def slot(self) -> Tensor:
        return self.position - self.row

    def of_sequences(self, selected: Tensor) -> "AcceptanceExamples":
        """The examples of the sequences that are `selected`, bool `[sequences]`."""
        mask = selected[self.sequence[self.row]]
        return replace(
            self, row=self.row[mask], position=self.position[mask], label=self.label[mask]
        )


@dataclass(frozen=True)
class GeneratedSequence:
    """New tokens `[n]` of the target after `prompt`.

    `of_target [n, d_T]` are the states that produced the token before each of them.
    """

    settings: Settings
    sequence: int
    prompt: list[int]
    new_tokens: np.ndarray
    of_target: Tensor


Generate = Callable[..., list[GeneratedSequence]]


@torch.inference_mode()
def generate_one_by_one(
    target: Target,
    settings: Sequence[Settings],
    prompts: Sequence[list[int]],
    first: int,
    progress: Progress = quiet,
) -> list[GeneratedSequence]:
    """The target's sequences after all prompts under all settings.

    Their draw addresses are `first`, `first + 1`, ...
    """
    generated: list[GeneratedSequence] = []
    for rule_settings in settings:
        for prompt in prompts:
            sequence = first + len(generated)
            new_tokens, _ = target_sequence(target, rule_settings, prompt, sequence)
            before = hidden_states(target.decoder, prompt, new_tokens, -1)
            generated.append(GeneratedSequence(rule_settings, sequence, prompt, new_tokens, before))
            progress("texts", len(generated), len(settings) * len(prompts))
    return generated


@torch.inference_mode()
def acceptance_examples(generated: Sequence[GeneratedSequence], lm: Decoder) -> AcceptanceExamples:
    """Slots up to and including the first miss of drafts of `lm` from every position.

    Up to there the draft equals the sequence, so that one pass of the drafter has every state and
    every label is what the recorder would find.
    """
    parts, start = [], 0
    for number, one in enumerate(generated):
        n, new_tokens = len(one.new_tokens), one.new_tokens
        of_drafter = hidden_states(lm, one.prompt, new_tokens, 0)
        rule = one.settings.rule
        scores = rule.scores(lm.logits(of_drafter), one.sequence, list(range(n)))
        hit = scores.argmax(-1).cpu().numpy() == new_tokens
        ahead = np.arange(n)[:, None] + np.arange(one.settings.K)
        accepted = np.cumprod(hit[np.minimum(ahead, n - 1)], 1)
        reached = np.concatenate((np.ones((n, 1), int), accepted[:, :-1]), 1) * (ahead < n)
        row, slot = np.nonzero(reached)
        position = row + slot
        parts.append(
            (
                one.of_target,
                of_drafter,
                row + start,
                position + start,
                hit[position],
                np.full(n, number),
            )
        )
        start += n
    columns = [
        torch.cat([torch.as_tensor(x) for x in column]).to(lm.device) for column in zip(*parts)
    ]
    return AcceptanceExamples(columns[0].double(), columns[1].double(), *columns[2:])
