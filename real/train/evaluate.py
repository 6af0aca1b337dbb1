"""Evaluation of models on held-out text."""

from pathlib import Path

import numpy as np
import torch

from real.drafters import BUILTIN
from real.model.decoder import Decoder
from real.model.losses import next_token_loss
from real.prompts import repeated_ngrams
from real.train.accepted_length import AcceptedLengths, accepted_lengths, longest_offer, summary
from real.train.distillation import heldout_count
from real.train.drafter_data import DrafterData, K
from real.train.training_text import whole_windows


@torch.inference_mode()
def heldout_loss(decoder: Decoder, tokens: np.ndarray, length: int, most: int = 64) -> float:
    """Mean loss in nats per token over up to `most` whole windows of `tokens`, in float32."""
    count = min(most, whole_windows(tokens, length))
    row = torch.from_numpy(tokens[: count * length + 1].astype(np.int64)).to(decoder.device)
    x, y = row[:-1].view(count, length), row[1:].view(count, length)
    losses = [
        next_token_loss(decoder(x[i : i + 8]), y[i : i + 8]).item() * len(x[i : i + 8])
        for i in range(0, count, 8)
    ]
    return sum(losses) / count


@torch.inference_mode()
def agreement(lm: Decoder, target: Decoder, distilled: np.ndarray) -> float:
    """Share of positions of held-out sequences where both models have the same argmax."""
    heldout = distilled[-heldout_count(distilled) :].astype(np.int64)
    x = torch.from_numpy(heldout).to(target.device)
    shares = [
        (lm(x[i : i + 8]).argmax(-1) == target(x[i : i + 8]).argmax(-1)).float().mean().item()
        for i in range(0, len(x), 8)
    ]
    return sum(shares) / len(shares)


def evaluate_drafter(drafter: str, folder: Path, data: DrafterData) -> AcceptedLengths:
    """Accepted lengths of a drafter as it was saved, at its longest offer if that is below K."""
    loaded = BUILTIN[drafter].load(folder, data.target, data.made_for)
    longest = longest_offer(data.target, loaded, data.evaluation, K)
    return accepted_lengths(data.target, loaded, data.evaluation, longest)


def evaluation_size(data: DrafterData) -> dict:
    """K, sequences, tokens and repetition of an evaluation, for a card."""
    sequences = [new_tokens for _, new_tokens in data.evaluation]
    return {
        "K": K,
        "texts": len(sequences),
        "tokens": sum(map(len, sequences)),
        "repeated_8grams": round(repeated_ngrams(sequences), 4),
    }


def evaluation_summary(drafter: str, folder: Path, data: DrafterData) -> dict:
    """The evaluation of a drafter without trained weights, for its card."""
    lengths = evaluate_drafter(drafter, folder, data)
    return evaluation_size(data) | {"K": lengths.K, "trained": summary(lengths)}
