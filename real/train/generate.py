"""Many texts at once: a target that writes by the batch what others learn from."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet
from real.record import Settings
from real.record.hidden_states import hidden_states
from real.sampling import gumbel
from real.train.train_predictor import Written


@torch.inference_mode()
def continued(
    decoder: Decoder, prompt: Tensor, length: int, pick: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """All rows of `prompt [b, n]` and `length` tokens more, `[b, n + length]`: `pick(logits [b, vocab], step)` gives the next, `[b]`."""
    batch, start = prompt.shape
    cache = decoder.cache(batch=batch, capacity=start + length)
    layers, rows, token = range(len(decoder.layers)), 0, prompt
    made = [prompt]
    for step in range(length):
        count = token.shape[1]
        position = torch.arange(rows, rows + count, device=prompt.device)
        mask = (
            None
            if count == 1
            else torch.ones(count, rows + count, dtype=torch.bool, device=prompt.device).tril(rows)
        )
        x = decoder.run(decoder.embed(token), layers, decoder.rotation(position), mask, cache, rows)
        rows += count
        token = pick(decoder.logits(x[:, -1]).float(), step)[:, None]
        made.append(token)
    return torch.cat(made, 1)


def write(decoder: Decoder, prompt: Tensor, length: int, greedy: Tensor, seed: int) -> Tensor:
    """Continues all rows of `prompt [b, n]` by `length` tokens at once: argmax where `greedy [b]`, else sampled at T = 1."""
    torch.manual_seed(seed)

    def pick(logits: Tensor, step: int) -> Tensor:
        drawn = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        return torch.where(greedy, logits.argmax(-1), drawn)

    return continued(decoder, prompt, length, pick)


@torch.inference_mode()
def together(
    target: Target,
    asked: Sequence[Settings],
    prompts: Sequence[list[int]],
    first: int,
    progress: Progress = quiet,
) -> list[Written]:
    """As `real.train.train_predictor.write`, all prompts at once, which must be of one length: the same texts but where rounding flips a near-tie."""
    decoder, made = target.decoder, []
    for settings in asked:
        rows, rule, start = (
            torch.tensor(prompts, device=decoder.device),
            settings.rule,
            first + len(made),
        )
        noise = None
        if rule.name != "greedy":  # of all texts and positions, drawn once
            size = settings.budget, decoder.config.vocab, decoder.device
            noise = torch.stack(
                [gumbel(rule.seed, start + i, 0, *size) for i in range(len(prompts))]
            )

        def pick(logits: Tensor, step: int, rule=rule, noise=noise) -> Tensor:
            return (logits if noise is None else rule.processed(logits) + noise[:, step]).argmax(-1)

        texts = continued(decoder, rows, settings.budget, pick)[:, rows.shape[1] :].cpu().numpy()
        for prompt, row in zip(prompts, texts):
            stops = np.flatnonzero(np.isin(row, settings.end_tokens))
            text = row[: stops[0] + 1] if len(stops) else row
            made.append(
                Written(
                    settings,
                    first + len(made),
                    prompt,
                    text,
                    hidden_states(decoder, prompt, text, -1),
                )
            )
        progress("writing", len(made), len(asked) * len(prompts))
    return made
