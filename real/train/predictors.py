"""Acceptance predictors (EESD Eq. 5) of the drafters that are language models of the prefix."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from real.decode.features import (
    PREDICTOR_NAMES,
    AcceptancePredictor,
    load_predictor,
    save_predictor,
)
from real.drafters import BUILTIN
from real.files import read_card
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder
from real.model.passes import TargetPass
from real.model.target import Target
from real.progress import Progress, quiet, relabel
from real.record import Settings
from real.record.rows import hidden_states
from real.record.sequences import default_batch, target_sequences
from real.sampling import Rule
from real.train.data import TrainingData
from real.train.loop import BestWeights
from real.train.settings import Training

FIRST_ADDRESS = 1 << 20
"""Draw addresses of the generated sequences begin here, far from those of recordings."""
SIZES = {"texts": 400, "rank": 8}
"""Prompts that the target continues under each rule, and the rank of the low-rank form."""


def train_predictors(settings: Training, data: TrainingData, progress: Progress = quiet) -> dict:
    """Trains both forms for every drafter in `out`, except those that exist for its very weights.

    `--set texts=N` and `--set rank=N` replace SIZES. ValueError where no drafter in `out` is a
    language model of the prefix, and for other settings.
    """
    sizes = SIZES | settings.chosen
    if sizes.keys() != SIZES.keys() or any(type(n) is not int or n < 1 for n in sizes.values()):
        raise ValueError(
            f"predictors cannot be trained with {settings.chosen}; "
            f"expected whole numbers for some of {', '.join(SIZES)}"
        )
    weights = data.made_for["weights"]
    found = list(_prefix_models(settings.out, data))
    if not found:
        raise ValueError(
            f"{settings.out} holds no drafter that predictors are trained for; "
            "train model or early_exit there first"
        )
    forms = dict(zip(PREDICTOR_NAMES, (None, sizes["rank"])))
    generated: list[GeneratedSequence] = []
    for folder, lm in found:
        missing = {n: rank for n, rank in forms.items() if not _is_current(folder, n, weights)}
        if not missing:
            continue
        if not generated:
            prompts = data.prompts[: sizes["texts"]]
            generated = generate(data, prompts, settings.seed, progress)
        examples = acceptance_examples(generated, lm)
        for name, rank in missing.items():
            predictor, card = train_predictor(examples, rank, settings.seed)
            save_predictor(predictor, folder, name, weights, card)
            note = f"held-out loss {card['heldout_loss']:.3f} nats a token"
            progress(f"{name} of {folder.name}", 1, 1, note)
    return {
        "predictors": {
            folder.name: {
                name: read_card(folder / f"{name}.json").get("training", {}) for name in forms
            }
            for folder, _ in found
        }
    }


def _prefix_models(out: Path, data: TrainingData) -> Iterator[tuple[Path, Decoder]]:
    """The language models of the prefix among the trained drafters in `out`, by folder."""
    for path in sorted(out.glob("*/card.json")):
        name = str(read_card(path).get("drafter"))
        if name in BUILTIN:
            drafter = BUILTIN[name].load(path.parent, data.target, data.made_for)
            if drafter.prefix_only and drafter.lm is not None:
                yield path.parent, drafter.lm


@dataclass(frozen=True)
class GeneratedSequence:
    """New tokens `[n]` of the target after `prompt`, at a draw address.

    `of_target [n, d_T]` are the states that produced the token before each of them.
    """

    settings: Settings
    sequence: int
    prompt: list[int]
    new_tokens: np.ndarray
    of_target: Tensor


@torch.inference_mode()
def generate(
    data: TrainingData, prompts: Sequence[list[int]], seed: int, progress: Progress = quiet
) -> list[GeneratedSequence]:
    """The target's sequences of up to 96 tokens after all prompts under the rules of recordings."""
    target, generated = Target(data.target), list[GeneratedSequence]()
    for rule in (Rule(), Rule("coupled", 0.8, seed)):
        settings = Settings(16, 96, rule, data.end_tokens, batch=default_batch(target))
        first = FIRST_ADDRESS + len(generated)
        addresses = range(first, first + len(prompts))
        report = relabel(progress, "texts for predictors")
        written = target_sequences(target, settings, prompts, addresses, report)
        for sequence, prompt, (new_tokens, _) in zip(addresses, prompts, written):
            full = TargetPass(target.decoder, prompt, new_tokens.tolist())
            before = full.before(torch.arange(len(new_tokens), device=full.token.device))
            generated.append(GeneratedSequence(settings, sequence, prompt, new_tokens, before))
    return generated


@dataclass(frozen=True)
class AcceptanceExamples:
    """M drafted tokens with labels, on T positions of sequences."""

    of_target: Tensor  # [T, d_T]: the target's state that produced the token before each position
    of_drafter: Tensor  # [T, d_D]: the drafter's state that produces its pick, on the true prefix
    # row, position [M]: where the draft began, and the position of the drafted token
    row: Tensor
    position: Tensor
    label: Tensor  # [M]: whether it is the target's token
    sequence: Tensor  # [T]: the sequence that each position belongs to

    @property
    def slot(self) -> Tensor:
        return self.position - self.row

    def of_sequences(self, selected: Tensor) -> "AcceptanceExamples":
        """The examples of the sequences that are `selected`, bool `[sequences]`."""
        mask = selected[self.sequence[self.row]]
        return replace(
            self, row=self.row[mask], position=self.position[mask], label=self.label[mask]
        )


@torch.inference_mode()
def acceptance_examples(generated: Sequence[GeneratedSequence], lm: Decoder) -> AcceptanceExamples:
    """Slots up to and including the first miss of drafts of `lm` from every position.

    Up to there the draft equals the sequence, so that one pass of the drafter has every state and
    every label is what the recorder would find.
    """
    parts, start = [], 0
    for number, one in enumerate(generated):
        n, new_tokens = len(one.new_tokens), one.new_tokens
        of_drafter = hidden_states(lm, one.prompt, new_tokens)
        rule = one.settings.rule
        scores = rule.scores(lm.logits(of_drafter), one.sequence, list(range(n)))
        hit = scores.argmax(-1).cpu().numpy() == new_tokens
        ahead = np.arange(n)[:, None] + np.arange(one.settings.K)
        accepted = np.cumprod(hit[np.minimum(ahead, n - 1)], 1)
        reached = np.concatenate((np.ones((n, 1), int), accepted[:, :-1]), 1) * (ahead < n)
        row, slot = np.nonzero(reached)
        position = row + slot
        drafted = row + start, position + start, hit[position]
        parts.append((one.of_target, of_drafter, *drafted, np.full(n, number)))
        start += n
    columns = [
        torch.cat([torch.as_tensor(x) for x in column]).to(lm.device) for column in zip(*parts)
    ]
    return AcceptanceExamples(columns[0].double(), columns[1].double(), *columns[2:])


def train_predictor(
    examples: AcceptanceExamples,
    rank: int | None,
    seed: int = 0,
    steps: int = 300,
    rate: float | None = None,
    patience: int = 60,
) -> tuple[AcceptancePredictor, dict]:
    """A predictor by cross-entropy, and its card: full batches, stopped by the held-out loss.

    A fifth of the sequences is held out. States are scaled by their deviation; the scales are
    folded into the weights. Returned are the weights of the least held-out loss, rounded to
    bfloat16 as they are stored. The default `rate` moves a logit by less than 1 in the first step.
    """
    torch.manual_seed(seed)
    count = int(examples.sequence.max()) + 1
    heldout = torch.zeros(count, dtype=torch.bool)
    heldout[torch.randperm(count)[: max(1, count // 5)]] = True
    heldout = heldout.to(examples.sequence.device)
    if count < 2:
        raise ValueError(
            f"{count} sequence to learn from; a predictor needs two, one of them held out"
        )
    parts = examples.of_sequences(~heldout), examples.of_sequences(heldout)
    scale = [x.std(0).clamp(min=1e-6) for x in (examples.of_target, examples.of_drafter)]
    scaled = examples.of_target / scale[0], examples.of_drafter / scale[1]
    widths = scaled[0].shape[1], scaled[1].shape[1]
    predictor = AcceptancePredictor(*widths, rank).to(examples.of_target.device)
    schedule = steps, rate or 0.5 / sum(widths), patience
    step = _minimize(predictor, parts, scaled, schedule)
    with torch.no_grad():
        inner = predictor.turn if rank is None else predictor.right
        inner.div_(scale[0])
        predictor.judge[predictor.target_width :] /= scale[1]
        for p in predictor.parameters():
            p.copy_(p.bfloat16().double())
        states = examples.of_target, examples.of_drafter
        losses = [round(_loss(predictor, part, states).item(), 4) for part in parts]
    card = {
        "parameters": sum(p.numel() for p in predictor.parameters()),
        "texts": count,
        "examples": len(examples.label),
        "steps": step,
        "loss": losses[0],
        "heldout_loss": losses[1],
        "heldout_accepted": round(parts[1].label.double().mean().item(), 4),
    }
    return predictor.requires_grad_(False), card


def _loss(
    predictor: AcceptancePredictor, part: AcceptanceExamples, states: tuple[Tensor, Tensor]
) -> Tensor:
    folded, depth = predictor.folded(), part.slot.clamp(max=predictor.depths - 1)
    of_target = folded.of_target(states[0])[part.row, depth]
    logit = of_target + folded.of_drafter(states[1])[part.position]
    return F.binary_cross_entropy_with_logits(logit, part.label.double())


def _minimize(
    predictor: AcceptancePredictor,
    parts: tuple[AcceptanceExamples, AcceptanceExamples],
    states: tuple[Tensor, Tensor],
    schedule: tuple[int, float, int],
) -> int:
    """Trains on the first part, restores the weights of the least loss on the second.

    `schedule` is (steps, rate, patience). Returns the step of these weights.
    """
    steps, rate, patience = schedule
    optimizer, best = torch.optim.Adam(predictor.parameters(), lr=rate), BestWeights()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimizer.zero_grad()
        _loss(predictor, parts[0], states).backward()
        optimizer.step()
        with torch.no_grad():
            heldout_loss = _loss(predictor, parts[1], states).item()
        best.update(-heldout_loss, step + 1, patience, dict(predictor.named_parameters()))
        if best.stopped:
            break
    predictor.load_state_dict(best.weights)
    return best.step


def _is_current(folder: Path, name: str, target: str) -> bool:
    """Whether the predictor exists and was trained for these very weights."""
    try:
        load_predictor(folder, name, target)
    except WeightsError:
        return False
    return True
