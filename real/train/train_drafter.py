"""One trainer for every drafter: it learns, its best weights are kept, what was saved is judged, and a card says all of it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from real.drafters import BUILTIN
from real.files import replace_json
from real.model.checkpoint import save_decoder, sha256
from real.model.compressed import is_there
from real.model.decoder import Decoder
from real.model.draft_head import save_draft_head
from real.progress import Progress, quiet, relabel
from real.provenance import device_name, revision, versions
from real.train.accepted_length import (
    Accepted,
    Text,
    acceptance,
    compare,
    described,
    offers,
    straight,
)
from real.train.recipes import DrafterTraining, fresh, loss_settings, recipe_of
from real.train.trainer import Plan, curve, fit
from real.train.trigram import count

K = 5
"""Draft length of every figure in a card."""


@dataclass(frozen=True)
class Material:
    """What all lessons on one target share.

    | field | meaning |
    | --- | --- |
    | target, made_for | it, and what names it |
    | end, context | tokens that end a text, and the longest text it is meant for |
    | batches | plan -> (step -> token `[rows, length + 1]`) |
    | check, exam | texts that the target wrote and nobody learns from: to choose weights by, and to judge them by |
    | mixed | train in bf16 autocast |
    | blend | share of `batches` that the target wrote, for the record |
    """

    target: Decoder
    made_for: Mapping[str, str]
    end: tuple[int, ...]
    context: int
    batches: Callable[[Plan], Callable[[int], Tensor]]
    check: Sequence[Text]
    exam: Sequence[Text]
    mixed: bool
    blend: float


def teach(
    training: DrafterTraining, material: Material, out: Path, work: Path, progress: Progress = quiet
) -> dict:
    """Trains one drafter into `<out>/<folder>`, judges what was saved, and returns its card.

    What is there is kept: a card says that all was done, weights without one are judged only. ValueError where that folder, or the
    checkpoint in `<work>/<folder>`, was asked for with other settings.
    """
    recipe, folder, store = recipe_of(training.drafter), out / training.place, work / training.place
    part = fresh(training, material.target)
    asked = _asked(training, part, material)
    card = folder / "card.json"
    if card.exists():
        said = read_card(card)
        same(said.get("asked", {}), asked, folder)
        return said
    if (store / "asked.json").exists():
        same(read_card(store / "asked.json"), asked, store)
    clock: list[float] = []
    loss = _loss(training, part, material, clock)
    beside = "config.json" if isinstance(part, Decoder) else f"{recipe.file}.json"
    if (
        is_there(folder / f"{recipe.file}.safetensors") and (folder / beside).exists()
    ):  # one without the other: killed between them
        log = (
            json.loads(path.read_text())
            if (path := work / f"{training.place}.json").exists()
            else []
        )
    else:
        replace_json(store / "asked.json", asked)
        drafter = recipe.drafter(material.target, part)

        def validate():
            found = acceptance(material.target, drafter, material.check, K)
            return {"score": round(found.length(), 4), "by_depth": found.by_depth()}

        log = fit(
            store,
            part,
            loss,
            training.plan,
            relabel(progress, training.place),
            validate if material.check else None,
        )
        curve(log, work / f"{training.place}.png", f"drafter {training.place}: training loss")
        if isinstance(part, Decoder):
            save_decoder(part, folder, material.end[0], material.context)
        else:
            save_draft_head(part, folder, recipe.file, material.made_for)
    progress(f"judging {training.place}", 0, 1)
    made = _card(training, part, material, asked, log, clock, folder, loss)
    replace_json(card, made)
    judged = made["evaluation"]
    progress(
        f"judging {training.place}",
        1,
        1,
        f"accepted length {judged['trained']['accepted_length']['value']:.2f} of {judged['K']}",
    )
    return made


def _asked(training: DrafterTraining, part: nn.Module, material: Material) -> dict:
    plan = {k: v for k, v in asdict(training.plan).items() if k not in ("minutes", "save_every")}
    asked = {
        "drafter": training.drafter,
        "settings": part.settings,
        "loss": loss_settings(training),
        "soft": training.soft,
        "plan": plan,
    }
    return json.loads(
        json.dumps(asked | {"blend": material.blend, "target": dict(material.made_for)})
    )


def read_card(path: Path) -> dict:
    """What a JSON file of ours holds; ValueError, saying what to delete, where it is damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and it is made anew") from error


def same(there: dict, asked: dict, where: Path) -> None:
    """ValueError naming the first thing that was asked for otherwise before."""
    flat = [
        {
            (k, n): v
            for k in d
            for n, v in (d[k].items() if isinstance(d[k], dict) else [("", d[k])])
        }
        for d in (there, asked)
    ]
    for key in flat[0] | flat[1]:
        was, now = (f.get(key) for f in flat)
        if was != now:
            what = f"{key[0]} {key[1]}".strip()
            raise ValueError(
                f"{where} was made with {what} {was!r}, now {now!r} is asked for; choose another --name, or delete it"
            )


def _loss(
    training: DrafterTraining, part: nn.Module, material: Material, clock: list[float]
) -> Callable[[int], Tensor]:
    draw, target, recipe = (
        material.batches(training.plan),
        material.target,
        recipe_of(training.drafter),
    )
    more = loss_settings(training)
    mixed = (
        torch.autocast(target.device.type, dtype=torch.bfloat16)
        if material.mixed
        else nullcontext()
    )

    def loss(step: int) -> Tensor:
        clock.append(perf_counter())
        generator = torch.Generator().manual_seed((training.plan.seed << 32) + step)
        with mixed:
            return recipe.loss(part, target, draw(step), training.soft, generator, **more)

    return loss


@torch.no_grad()
def loaded(part: nn.Module, target: Decoder, run: Callable[[], object]) -> int:
    """Parameters that training must hold: those of `part`, and of all modules of the target that `run()` calls."""
    used = {id(p): p.numel() for p in part.parameters()}

    def hear(module, *_):
        used.update({id(p): p.numel() for p in module.parameters(recurse=False)})

    hooks = [m.register_forward_hook(hear) for m in target.modules()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return sum(used.values())


def examined(drafter: str, folder: Path, material: Material) -> Accepted:
    """How a drafter, as it was saved, does on the exam; at what it offers, if that is less than K."""
    made = BUILTIN[drafter].load(folder, material.target, material.made_for)
    return acceptance(
        material.target, made, material.exam, offers(material.target, made, material.exam, K)
    )


def _card(
    training: DrafterTraining,
    part,
    material: Material,
    asked: dict,
    log: list[dict],
    clock: list[float],
    folder: Path,
    loss,
) -> dict:
    target, plan, recipe = material.target, training.plan, recipe_of(training.drafter)
    steps = log[-1]["step"] if log else 0
    valid = [row for row in log if "valid" in row]
    laps = [b - a for a, b in zip(clock, clock[1:])]
    trained = examined(training.drafter, folder, material)
    reach = trained.K  # what it never offers is not held against it
    untrained = acceptance(
        target, recipe.drafter(target, fresh(training, target)), material.exam, reach
    )
    table = count(_learnt_from(material, plan, steps), target.config.vocab)
    trigram = Accepted(reach, *zip(*(straight(table.hits(*text), reach) for text in material.exam)))
    return {
        "drafter": training.drafter,
        "asked": asked,
        "steps": steps,
        "tokens": steps * plan.rows * plan.length,
        "seconds_per_batch": round(median(laps), 4) if laps else None,
        "parameters": {
            "trained": sum(p.numel() for p in part.parameters()),
            "loaded": loaded(part, target, lambda: loss(0)),
        },
        "validation": max(
            ({"step": row["step"]} | row["valid"] for row in valid),
            key=lambda v: v["score"],
            default=None,
        ),
        "evaluation": {
            **_texts(material),
            "K": reach,
            **{
                name: described(found)
                for name, found in (
                    ("trained", trained),
                    ("untrained", untrained),
                    ("trigram", trigram),
                )
            },
            "beats_untrained": compare(trained, untrained),
            "beats_trigram": compare(trained, trigram),
        },
        "sha256": sha256(folder / f"{recipe.file}.safetensors"),
        **made_by(target.device),
    }


def judged(drafter: str, folder: Path, material: Material) -> dict:
    """The exam of a drafter that learns nothing, for its card."""
    found = examined(drafter, folder, material)
    return _texts(material) | {"K": found.K, "trained": described(found)}


def made_by(device) -> dict:
    """Where and with what a card's figures were made."""
    return {"device": device_name(device), "versions": versions(), "git": revision()}


def _texts(material: Material) -> dict:
    return {
        "K": K,
        "texts": len(material.exam),
        "tokens": sum(len(text) for _, text in material.exam),
    }


def _learnt_from(material: Material, plan: Plan, steps: int) -> Iterable[np.ndarray]:
    """The windows of all steps, as many as `count` takes; of 4,000 steps where weights came without their log."""
    draw = material.batches(plan)
    return (draw(step).cpu().numpy() for step in range(steps or plan.steps or 4000))


def against(card: Path, material: Material, out: Path, other: str) -> dict:
    """Compares the drafter of `card` with that in the bundle's folder `other` on the same texts; the answer goes into the card."""
    said, names = read_card(card), {}
    if out / other == card.parent:
        raise ValueError(
            f"{card.parent} would be compared with itself; name the folder of another drafter"
        )
    for folder in (card.parent, out / other):
        there = folder / "card.json"
        names[folder] = read_card(there).get("drafter") if there.exists() else folder.name
        if names[folder] not in BUILTIN:
            raise ValueError(
                f"{folder} holds no drafter that is known; expected the folder of one trained for this target"
            )
    mine, theirs = (examined(name, folder, material) for folder, name in names.items())
    reach = min(mine.K, theirs.K)
    mine, theirs = mine.upto(reach), theirs.upto(reach)
    found = _texts(material) | {
        "K": reach,
        "other": described(theirs),
        "difference": compare(mine, theirs),
    }
    said["against"] = said.get("against", {}) | {other: found}
    replace_json(card, said)
    return said


def lines(card: dict) -> list[str]:
    """A drafter's card for people."""
    found = card["evaluation"]
    made = [
        f"accepted length at K = {found['K']}, {found['texts']} texts kept out: {_words(found['trained']['accepted_length'])}"
    ]
    made += [
        f"  {name} {_words(found[name]['accepted_length'])}"
        for name in ("untrained", "trigram")
        if name in found
    ]
    made += [
        f"  longer than {name[6:]} by {_words(found[name])}"
        for name in ("beats_untrained", "beats_trigram")
        if name in found
    ]
    made += [
        f"  longer than {name} by {_words(told['difference'])}"
        for name, told in card.get("against", {}).items()
    ]
    made.append(
        "  by depth "
        + ", ".join("-" if a is None else f"{a:.3f}" for a in found["trained"]["by_depth"])
    )
    return made


def _words(found: dict) -> str:
    return f"{found['value']:.3f}" + (
        "" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]"
    )
