"""What a predictor learns from: drafted tokens up to the first miss, on texts that the target writes for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from real.decode.acceptance_predictor import NAMES, Predictor, load_predictor, save_predictor
from real.model.checkpoint import WeightsError, identity
from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet, relabel
from real.record import Settings
from real.record.hidden_states import hidden_states
from real.record.target_sequence import target_sequence
from real.sampling import Rule
from real.train.corpus import windows


@dataclass(frozen=True)
class Examples:
    """M drafted tokens whose fate is known, on T positions of texts.

    | field | meaning |
    | --- | --- |
    | of_target `[T, d_T]` | the target's state that produced the token before each position |
    | of_drafter `[T, d_D]` | the drafter's state that produces its pick at each position, the text before it being the target's |
    | row, position `[M]` | where the draft began, and where the drafted token stands |
    | label `[M]` | whether it is the target's token |
    | text `[T]` | which text each position belongs to |
    """

    of_target: Tensor
    of_drafter: Tensor
    row: Tensor
    position: Tensor
    label: Tensor
    text: Tensor

    @property
    def slot(self) -> Tensor:
        return self.position - self.row

    def of_texts(self, wanted: Tensor) -> "Examples":
        """The examples of the texts `wanted [texts]`, bool."""
        mine = wanted[self.text[self.row]]
        return replace(
            self, row=self.row[mine], position=self.position[mine], label=self.label[mine]
        )


@dataclass(frozen=True)
class Written:
    """A text `[n]` of the target after `prompt`, and the states `[n, d_T]` that produced the token before each of it."""

    settings: Settings
    sequence: int
    prompt: list[int]
    text: np.ndarray
    of_target: Tensor


@torch.inference_mode()
def write(
    target: Target,
    asked: Sequence[Settings],
    prompts: Sequence[list[int]],
    first: int,
    progress: Progress = quiet,
) -> list[Written]:
    """The target's own texts after all prompts under all of `asked`, at the draw addresses `first`, `first + 1`, ..."""
    made: list[Written] = []
    for settings in asked:
        for prompt in prompts:
            text, _ = target_sequence(target, settings, prompt, first + len(made))
            made.append(
                Written(
                    settings,
                    first + len(made),
                    prompt,
                    text,
                    hidden_states(target.decoder, prompt, text, -1),
                )
            )
            progress("writing", len(made), len(asked) * len(prompts))
    return made


@torch.inference_mode()
def examples(written: Sequence[Written], lm: Decoder) -> Examples:
    """Slots up to and including the first miss of drafts of `lm` from every position.

    Up to there the draft is the text, so that one pass of the drafter over it has every state, and a label is what the
    recorder would find.
    """
    parts, start = [], 0
    for number, one in enumerate(written):
        n, text, ahead = len(one.text), one.text, np.arange(one.settings.K)
        of_drafter = hidden_states(lm, one.prompt, text, 0)
        scores = one.settings.rule.scores(lm.logits(of_drafter), one.sequence, list(range(n)))
        hit = scores.argmax(-1).cpu().numpy() == text
        ahead = np.arange(n)[:, None] + ahead
        follows = np.cumprod(hit[np.minimum(ahead, n - 1)], 1)
        reached = np.concatenate((np.ones((n, 1), int), follows[:, :-1]), 1) * (ahead < n)
        row, slot = np.nonzero(reached)
        parts.append(
            (
                one.of_target,
                of_drafter,
                row + start,
                row + slot + start,
                hit[row + slot],
                np.full(n, number),
            )
        )
        start += n
    columns = [
        torch.cat([torch.as_tensor(x) for x in column]).to(lm.device) for column in zip(*parts)
    ]
    return Examples(columns[0].double(), columns[1].double(), *columns[2:])


def learn(
    found: Examples,
    rank: int | None,
    seed: int = 0,
    steps: int = 300,
    rate: float = 0.02,
    patience: int = 60,
) -> tuple[Predictor, dict]:
    """A predictor of `found` by cross-entropy, and its card: full batches, stopped by the loss on a fifth of the texts.

    States enter scaled by their spread; the scales are folded into the weights. The weights returned are those of the
    least held-out loss, rounded to bfloat16 as they are stored.
    """
    torch.manual_seed(seed)
    texts = int(found.text.max()) + 1
    held = torch.zeros(texts, dtype=torch.bool)
    held[torch.randperm(texts)[: max(1, texts // 5)]] = True
    held = held.to(found.text.device)
    if texts < 2:
        raise ValueError(f"{texts} text to learn from; a predictor needs two, one of them held out")
    parts = found.of_texts(~held), found.of_texts(held)
    scale = [x.std(0).clamp(min=1e-6) for x in (found.of_target, found.of_drafter)]
    of_target, of_drafter = (x / s for x, s in zip((found.of_target, found.of_drafter), scale))
    predictor = Predictor(of_target.shape[1], of_drafter.shape[1], rank).to(found.of_target.device)

    def loss(part: Examples) -> Tensor:
        folded, depth = predictor.folded(), part.slot.clamp(max=predictor.depths - 1)
        logit = (
            folded.of_target(of_target)[part.row, depth]
            + folded.of_drafter(of_drafter)[part.position]
        )
        return F.binary_cross_entropy_with_logits(logit, part.label.double())

    optimiser = torch.optim.Adam(predictor.parameters(), lr=rate)
    best, since, kept = float("inf"), 0, {}
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - step / steps)
        value = loss(parts[0])
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        with torch.no_grad():
            now = loss(parts[1]).item()
        since += 1
        if now < best:
            best, since = now, 0
            kept = {
                "step": step + 1,
                "state": {k: v.clone() for k, v in predictor.state_dict().items()},
            }
        if since == patience:
            break
    predictor.load_state_dict(kept["state"])
    with torch.no_grad():
        inner = predictor.turn if rank is None else predictor.right
        inner /= scale[0]
        predictor.judge[predictor.target_width :] /= scale[1]
        for p in predictor.parameters():
            p.copy_(p.bfloat16().double())
        of_target, of_drafter = found.of_target, found.of_drafter
        losses = [round(loss(part).item(), 4) for part in parts]
    draws = [part.label.double().mean().item() for part in parts]
    card = {
        "parameters": sum(p.numel() for p in predictor.parameters()),
        "texts": texts,
        "examples": len(found.label),
        "steps": kept["step"],
        "loss": losses[0],
        "heldout_loss": losses[1],
        "heldout_accepted": round(draws[1], 4),
    }
    return predictor.requires_grad_(False), card


def train_predictors(
    target: Decoder,
    drafters: Iterable[tuple[str, Decoder]],
    tokens: np.ndarray,
    out: Path,
    end: int,
    texts: int,
    rank: int,
    seed: int,
    progress: Progress,
    writer: Callable[..., list[Written]] = write,
) -> None:
    """Trains both forms for every drafter of the bundle `out`, but those that are there for its very weights.

    `texts` windows of `tokens` are continued under each rule that recordings are made by, at draw addresses far from theirs.
    """
    known, written = identity(out / "target"), []
    for drafter, lm in drafters:
        missing = {
            name: size
            for name, size in zip(NAMES, (None, rank))
            if not _fits(out / drafter, name, known)
        }
        if missing and not written:
            asked = [
                Settings(16, 96, rule, (end,)) for rule in (Rule(), Rule("coupled", 0.8, seed))
            ]
            prompts = windows(tokens, texts, 96, seed + 2, 0)[:, :96].tolist()
            written = writer(
                Target(target), asked, prompts, 1 << 20, relabel(progress, "texts for predictors")
            )
        found = examples(written, lm) if missing else None
        for name, size in missing.items():
            predictor, training = learn(found, size, seed)
            save_predictor(predictor, out / drafter, name, known, training)
            progress(
                f"{name} of {drafter}",
                1,
                1,
                f"held-out loss {training['heldout_loss']:.3f} nats a token",
            )


def _fits(folder: Path, name: str, target: str) -> bool:
    try:
        load_predictor(folder, name, target)
    except WeightsError:
        return False
    return True
