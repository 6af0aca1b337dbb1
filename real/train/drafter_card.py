"""The card of a trained drafter: settings, steps, parameters and evaluation."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from real.draft import TrainingBatch
from real.drafters import BUILTIN
from real.files import replace_json
from real.model.decoder import Decoder
from real.model.fingerprint import sha256
from real.provenance import device_name, revision, versions
from real.train.accepted_length import (
    AcceptedLengths,
    accepted_lengths,
    compare,
    lengths_of_hits,
    summary,
)
from real.train.card_file import read_card
from real.train.draft_vocabulary import coverage
from real.train.drafter_data import DrafterData
from real.train.drafter_training import DrafterTraining, recipe_of
from real.train.evaluate import evaluate_drafter, evaluation_size
from real.train.prepared_head import prepared_head
from real.train.schedule import TrainSchedule
from real.train.training_set import learned_tokens, read_tokens
from real.train.trigram import count_trigrams


def environment(device) -> dict:
    """Device, library versions and revision that a card's figures were made with."""
    return {"device": device_name(device), "versions": versions(), "git": revision()}


@torch.no_grad()
def loaded_parameters(head: nn.Module, target: Decoder, run: Callable[[], object]) -> int:
    """Parameters that training must hold: the head's, and those of target modules `run()` calls."""
    used = {id(p): p.numel() for p in head.parameters()}

    def count(module, *_):
        used.update({id(p): p.numel() for p in module.parameters(recurse=False)})

    hooks = [m.register_forward_hook(count) for m in target.modules()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return sum(used.values())


def evaluate_trained(
    training: DrafterTraining, data: DrafterData, folder: Path, steps: int
) -> dict:
    """The "evaluation" of a card: the saved drafter beside an untrained one and a trigram table."""
    target = data.target
    trained = evaluate_drafter(training.drafter, folder, data)
    longest = trained.K  # compared at what it offers
    head = prepared_head(replace(training, start=None), data)
    untrained_drafter = recipe_of(training.drafter).drafter(target, head)
    untrained = accepted_lengths(target, untrained_drafter, data.evaluation, longest)
    table = count_trigrams(_seen_windows(data, training.plan, steps), target.config.vocab)
    rows = (lengths_of_hits(table.hits(*pair), longest) for pair in data.evaluation)
    trigram = AcceptedLengths(longest, *zip(*rows))
    return {
        **evaluation_size(data),
        "K": longest,
        "trained": summary(trained) | {"by_sequence": trained.by_sequence()},
        "untrained": summary(untrained),
        "trigram": summary(trigram),
        "beats_untrained": compare(trained, untrained),
        "beats_trigram": compare(trained, trigram),
    }


def _seen_windows(data: DrafterData, schedule: TrainSchedule, steps: int) -> Iterable[np.ndarray]:
    """The sequences of all training steps; of 4,000 steps where weights came without their log."""
    draw = data.batches(schedule)
    for step in range(steps or schedule.steps or 4000):
        yield from read_tokens(TrainingBatch.of(draw(step)))


def drafter_card(
    training: DrafterTraining,
    head: nn.Module,
    data: DrafterData,
    requested: dict,
    log: list[dict],
    step_starts: list[float],
    loss: Callable[[int], Tensor],
    folder: Path,
) -> dict:
    """The card of a drafter that was saved to `folder`; `step_starts` are times in seconds."""
    schedule, steps = training.plan, log[-1]["step"] if log else 0
    validations = [{"step": row["step"]} | row["valid"] for row in log if "valid" in row]
    seconds = [b - a for a, b in zip(step_starts, step_starts[1:])]
    evaluation = evaluate_trained(training, data, folder, steps)
    card = {
        "drafter": training.drafter,
        "asked": requested,
        "steps": steps,
        "tokens": _learned(data, schedule, steps),
        "seconds_per_batch": round(median(seconds), 4) if seconds else None,
        "parameters": {
            "trained": sum(p.numel() for p in head.parameters()),
            "loaded": loaded_parameters(head, data.target, lambda: loss(0)),
        },
        "validation": max(validations, key=lambda row: row["score"], default=None),
        "evaluation": evaluation,
        "sha256": sha256(folder / f"{recipe_of(training.drafter).file}.safetensors"),
        **environment(data.target.device),
    }
    if data.source:
        card["text"] = dict(data.source)
    paper = recipe_of(training.drafter).paper
    if training.paper and paper is not None:
        card["recipe"] = {"source": paper.source, "not_printed": list(paper.silent)}
    token = getattr(head, "draft_token", None)
    if token is not None:
        new_tokens = [new_tokens for _, new_tokens in data.evaluation]
        card["draft_vocabulary"] = {"tokens": len(token), "coverage": coverage(token, new_tokens)}
    return card


def _learned(data: DrafterData, schedule: TrainSchedule, steps: int) -> int:
    """Tokens learned in all steps, repetitions included."""
    if not data.source:
        return steps * schedule.rows * schedule.length
    draw = data.batches(schedule)
    return sum(learned_tokens(TrainingBatch.of(draw(step))) for step in range(steps))


def compare_with(card: Path, data: DrafterData, out: Path, other: str) -> dict:
    """Compares a drafter with that in `<out>/<other>` on the same sequences, within its card."""
    content = read_card(card)
    names: dict[Path, str] = {}
    if out / other == card.parent:
        raise ValueError(
            f"{card.parent} would be compared with itself; name the folder of another drafter"
        )
    for folder in (card.parent, out / other):
        path = folder / "card.json"
        names[folder] = str(read_card(path).get("drafter")) if path.exists() else folder.name
        if names[folder] not in BUILTIN:
            raise ValueError(
                f"{folder} holds no drafter that is known; "
                "expected the folder of one trained for this target"
            )
    own, others = (evaluate_drafter(name, folder, data) for folder, name in names.items())
    longest = min(own.K, others.K)
    own, others = own.upto(longest), others.upto(longest)
    comparison = evaluation_size(data) | {
        "K": longest,
        "other": summary(others),
        "difference": compare(own, others),
    }
    content["against"] = content.get("against", {}) | {other: comparison}
    replace_json(card, content)
    return content


def card_lines(card: dict) -> list[str]:
    """A drafter's card as lines of text."""
    evaluation = card["evaluation"]
    lengths = {name: value for name, value in evaluation.items() if isinstance(value, dict)}
    lines = [
        f"accepted length at K = {evaluation['K']}, {evaluation['texts']} held-out texts: "
        f"{_with_interval(lengths['trained']['accepted_length'])}"
    ]
    for name in ("untrained", "trigram"):
        if name in lengths:
            lines.append(f"  {name} {_with_interval(lengths[name]['accepted_length'])}")
    for name in ("untrained", "trigram"):
        if (key := f"beats_{name}") in lengths:
            lines.append(f"  longer than {name} by {_with_interval(lengths[key])}")
    if replay := card.get("replay"):
        search = card["search"]
        priced = "measured seconds" if "price" in search else "the number of sub-layers"
        lines.append(
            f"  speedup {search['score']:.2f} promised by the search at K = {search['k']}, "
            f"{_with_interval(replay)} in its replay; both priced by {priced}"
        )
    for name, comparison in card.get("against", {}).items():
        lines.append(f"  longer than {name} by {_with_interval(comparison['difference'])}")
    if vocabulary := card.get("draft_vocabulary"):
        lines.append(
            f"  draft vocabulary of {vocabulary['tokens']:,} tokens, "
            f"{vocabulary['coverage']:.1%} of the held-out tokens inside"
        )
    shares = ("-" if share is None else f"{share:.3f}" for share in lengths["trained"]["by_depth"])
    return [*lines, f"  by depth {', '.join(shares)}"]


def _with_interval(figure: dict) -> str:
    interval = f" [{figure['low']:.3f}, {figure['high']:.3f}]" if figure["low"] is not None else ""
    return f"{figure['value']:.3f}{interval}"
