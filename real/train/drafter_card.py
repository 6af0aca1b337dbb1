"""Cards of trained drafters and model folders, and their evaluation on held-out text."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from real.decode.features import PREDICTOR_NAMES
from real.draft import TrainingBatch
from real.draft.losses import next_token_loss
from real.drafters import BUILTIN
from real.files import read_card, replace_json
from real.model.decoder import Decoder
from real.model.stored_weights import sha256
from real.progress import Progress, quiet
from real.prompts import repeated_ngrams
from real.provenance import device_name, revision, versions
from real.train.accepted_length import (
    AcceptedLengths,
    accepted_lengths,
    compare,
    lengths_of_hits,
    longest_offer,
    summary,
)
from real.train.config import DrafterTraining, TrainConfig, recipe_of
from real.train.corpus import EncodedText, whole_windows
from real.train.drafter_data import DrafterData, K, TrainedTarget, coverage, prepared_head
from real.train.feature_store import read_tokens
from real.train.generate import heldout_count
from real.train.optimizers import TrainSchedule
from real.train.trigram import count_trigrams


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
    """The "evaluation" of a card: the saved drafter, an untrained drafter and a trigram table."""
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
    steps = steps or schedule.steps or 4000
    if data.seen is not None:
        yield from data.seen(schedule, steps)[0]
        return
    draw = data.batches(schedule)
    for step in range(steps):
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
    """The card of a drafter that was saved to `folder`; `step_starts` are times in seconds.

    "learning_curve": [step, accepted length of the validation sequences].
    """
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
        "learning_curve": [[row["step"], row["score"]] for row in validations],
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
    if data.seen is None:
        return steps * schedule.rows * schedule.length
    return data.seen(schedule, steps)[1]


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


def language_models(
    config: TrainConfig, data: DrafterData, out: Path
) -> Iterator[tuple[str, Decoder]]:
    """The drafters that are language models of the prefix, by folder."""
    for training in config.drafters:
        folder = out / training.place
        drafter = BUILTIN[training.drafter].load(folder, data.target, data.made_for)
        if drafter.prefix_only and drafter.lm is not None:
            yield training.place, drafter.lm


def write_model_card(
    config: TrainConfig,
    text: EncodedText,
    trained: TrainedTarget,
    out: Path,
    work: Path,
    progress: Progress = quiet,
) -> None:
    """Writes `<out>/card.json`, which includes the cards of all drafters."""
    places = [d.place for d in config.drafters] + ["self_skip"] * bool(config.trials)
    cards = {place: read_card(out / place / "card.json") for place in places}
    progress("card", 0, 1, "held-out losses")
    length, target, distilled = config.target_plan.length, trained.data.target, trained.distilled
    drafters = dict(language_models(config, trained.data, out))
    models = {"target": target, **drafters}
    card = {
        "settings": config.stored(),
        "text": [Path(p).name for p in config.text],
        "text_tokens": len(text.tokens),
        "distilled_tokens": int(distilled.size),
        "steps": {
            "target": _steps(work / "target.json"),
            **{place: card["steps"] for place, card in cards.items() if "steps" in card},
        },
        "parameters": {name: sum(p.numel() for p in m.parameters()) for name, m in models.items()},
        "heldout_loss_nats": {
            name: {
                part: round(heldout_loss(m, tokens, length), 4)
                for part, tokens in text.heldout.items()
            }
            for name, m in models.items()
        },
        "predictors": {
            drafter: {
                name: _predictor_card(out / drafter / f"{name}.json") for name in PREDICTOR_NAMES
            }
            for drafter in drafters
        },
        "agreement_on_target_text": {
            name: round(agreement(m, target, distilled), 4) for name, m in drafters.items()
        },
        "drafters": cards,
        "sha256": {
            str(p.relative_to(out)): sha256(p)
            for p in sorted([*out.rglob("*.safetensors"), *out.rglob("tokenizer.json")])
        },
        **environment(config.device),
    }
    replace_json(out / "card.json", card)
    progress("card", 1, 1, str(out / "card.json"))


def _predictor_card(path: Path) -> dict:
    return json.loads(path.read_text()).get("training", {})


def _steps(path: Path) -> int | None:
    return json.loads(path.read_text())[-1]["step"] if path.exists() else None
