"""The parts of a campaign in their order: each leaves one file that says what it found, and is never done twice."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from real.campaign.baselines import EAGER, LAB, TUNED, climbed, raced, waited
from real.campaign.config import GROWN, MORE, MUST, OFFERS
from real.campaign.experiments import (
    audited,
    driven,
    equal,
    figures,
    forced,
    grown,
    priced,
    scored,
    treed,
)
from real.campaign.workspace import Folder
from real.decode.features import drafter_features
from real.drafters import BUILTIN
from real.jobs import RULES, record_to
from real.record import Settings
from real.train.config import TrainConfig
from real.train.drafter_card import read_card
from real.train.model_card import write_model_card
from real.train.pipeline import train_all_predictors
from real.train.search_skips import SkipSearch, search_skips
from real.train.train_drafter import train_drafter
from real.train.train_target import train_target
from simspec import policies

RANKS = ("must", "should", "could")
FIRST = ("model", "eagle")
"""Drafters, one that reads tokens and one that reads the target, whose free runs must be audited and drive the large shape."""
SLOWER = {
    "cost-model-greedy": 40,
    "cost-eagle-greedy": 25,
    "record-model-greedy": 25,
    "record-model-coupled": 25,
}
"""Seconds of those that compile layers or write texts which others then find made."""
FEATURES = ("confidence", "entropy", "theta")
"""What recordings hold of what their drafters show."""


@dataclass(frozen=True)
class Part:
    """One part of a campaign.

    | field | meaning |
    | --- | --- |
    | name, rank | what it is called; must, should or could |
    | seconds | what it takes on a card, roughly |
    | make | (folder) -> what it found, for the report |
    | needs | parts that must be done before |
    | resumes | whether it goes on where it was stopped: then it is begun with less time than it takes |
    """

    name: str
    rank: str
    seconds: float
    make: Callable[[Folder], dict]
    needs: tuple[str, ...] = ()
    resumes: bool = False


def parts() -> list[Part]:
    """All parts, those that a bundle must have first."""
    silent = "prompt_lookup"
    drafters = (*MUST, silent)
    made = [
        Part("text", "must", 20, _text),
        Part("target", "must", 265, _target, ("text",), True),
        Part("distil", "must", 40, _distil, ("target",), True),
        *(
            Part(f"drafter-{d}", "must", 35, partial(_drafter, drafter=d), ("distil",), True)
            for d in MUST
        ),
        Part("predictors", "must", 12, _predictors, ("drafter-model", "drafter-early_exit")),
        Part("card", "must", 10, _card, ("predictors", *(f"drafter-{d}" for d in MUST))),
    ]
    for d in drafters:
        made += _of(d, "must", ("distil",) if d == silent else (f"drafter-{d}", "predictors"))
    made.append(Part("tree-eagle", "must", 15, partial(treed, drafter="eagle"), _recorded("eagle")))
    made += [
        Part(f"ladder-{name}", "must", 65, partial(climbed, name=name), (), True)
        for name in ("8b", "7b")
    ]
    made.append(Part(f"ladder-{LAB}", "must", 15, partial(climbed, name=LAB), ("target",), True))
    made.append(Part("wait", "must", 2, waited))
    made += [
        Part(f"ladder-{name}", "could", 60, partial(climbed, name=name), ("target",), True)
        for name in (TUNED, EAGER)
    ]
    greedy = tuple(f"{what}-{d}-greedy" for d in drafters for what in ("record", "cost"))
    made.append(Part("race", "must", 120, raced, greedy))
    made += [
        Part(
            f"drive-{d}",
            "must" if d in FIRST else "should",
            50,
            partial(driven, drafter=d),
            _recorded(d),
        )
        for d in MUST
    ]
    made.append(Part("figures", "should", 20, figures, _recorded("model")))
    for d in (*MORE, "self_skip"):
        make = _self_skip if d == "self_skip" else partial(_drafter, drafter=d)
        made.append(Part(f"drafter-{d}", "should", 50, make, ("distil",), d != "self_skip"))
        made += _of(d, "should", (f"drafter-{d}",))
    made.append(
        Part(
            "card-of-more", "should", 15, _card, tuple(f"drafter-{d}" for d in (*MORE, "self_skip"))
        )
    )
    made += [
        Part(f"trees-{d}", "should", 60, partial(grown, drafter=d), _recorded(d), True)
        for d in GROWN
    ]
    made += [
        Part(f"tree-{d}", "could", 15, partial(treed, drafter=d), _recorded(d))
        for d in GROWN
        if d != "eagle"
    ]
    return sorted(made, key=lambda part: RANKS.index(part.rank))


def _recorded(drafter: str) -> tuple[str, ...]:
    return tuple(f"{what}-{drafter}-{rule}" for rule in RULES for what in ("record", "cost"))


def _of(drafter: str, rank: str, needs: tuple[str, ...]) -> list[Part]:
    """What is done with a drafter that has learnt; those of one dtype stand together, so that models are loaded twice, not six times."""
    there = _recorded(drafter)
    silent = drafter == "prompt_lookup"
    made = [
        Part(f"cost-{drafter}-{r}", rank, 8, partial(_cost, drafter=drafter, rule=r), needs)
        for r in RULES
    ]
    made += [
        Part(
            f"record-{drafter}-{r}", rank, 6, partial(_record, drafter=drafter, rule=r), needs, True
        )
        for r in RULES
    ]
    made = [replace(part, seconds=SLOWER.get(part.name, part.seconds)) for part in made]
    made.append(Part(f"equal-{drafter}", rank, 12, partial(equal, drafter=drafter), there))
    last = (
        ("forced", rank, 8, forced),
        ("audit", rank if drafter in FIRST else "should", 8, audited),
    )
    last += (("score", "should" if silent else rank, 25, scored),)
    return made + [
        Part(f"{name}-{drafter}", each, seconds, partial(make, drafter=drafter), there)
        for name, each, seconds, make in last
    ]


def _text(folder: Folder) -> dict:
    read = folder.read
    return {
        "tokens": len(read.tokens),
        "heldout": {name: len(tokens) for name, tokens in read.heldout.items()},
    }


def _target(folder: Folder) -> dict:
    train_target(folder.lab, folder.read, folder.models, folder.work, folder.progress)
    folder.named()
    return {"sha256": folder.target}


def _distil(folder: Folder) -> dict:
    return {"tokens": int(folder.known.distilled.size)}


def _drafter(folder: Folder, drafter: str) -> dict:
    (training,) = (each for each in folder.lab.drafters if each.drafter == drafter)
    card = train_drafter(training, folder.known.data, folder.models, folder.work, folder.progress)
    return {
        "steps": card["steps"],
        "parameters": card["parameters"],
        "evaluation": card["evaluation"],
    }


def _self_skip(folder: Folder) -> dict:
    lab, known = folder.lab, folder.known
    card = search_skips(SkipSearch(lab.trials, lab.seed), known, folder.models, folder.progress)
    return {"settings": card["settings"], "evaluation": card["evaluation"]}


def _there(folder: Folder) -> TrainConfig:
    """The lab with those drafters that have learnt."""
    lab = folder.lab
    drafters = tuple(
        each for each in lab.drafters if (folder.models / each.place / "card.json").exists()
    )
    return replace(
        lab,
        drafters=drafters,
        trials=lab.trials * (folder.models / "self_skip" / "card.json").exists(),
    )


def _predictors(folder: Folder) -> dict:
    train_all_predictors(_there(folder), folder.read, folder.known, folder.models, folder.progress)
    return {}


def _card(folder: Folder) -> dict:
    write_model_card(
        _there(folder), folder.read, folder.known, folder.models, folder.work, folder.progress
    )
    card = read_card(folder.models / "card.json")
    return {
        name: card[name] for name in ("parameters", "heldout_loss_nats", "steps", "text_tokens")
    }


def _deepest(folder: Folder, drafter: str) -> int:
    return min(folder.size.K, OFFERS.get(drafter, folder.size.K))


def _cost(folder: Folder, drafter: str, rule: str) -> dict:
    path = folder.trace(drafter, rule).with_suffix(".cost.json")
    K = _deepest(folder, drafter)
    rows = policies.parse(folder.size.tree).submitted(K) if drafter in GROWN else 0
    cost = priced(folder, path, drafter, RULES[rule], K, rows)
    return {
        "baseline": cost.baseline,
        "first_draft": float(cost.draft[1]),
        "verify": [float(v) for v in cost.verify],
    }


def _record(folder: Folder, drafter: str, rule: str) -> dict:
    size, path = folder.size, folder.trace(drafter, rule)
    pair = folder.pair(drafter, "float32")
    shows = tuple(name for name in drafter_features(pair.drafter) if name in FEATURES)
    asked = Settings(
        _deepest(folder, drafter), size.budget, RULES[rule], pair.end_tokens, shows, ()
    )
    if not (path.exists() and path.with_suffix(".json").exists()):
        record_to(
            path,
            pair,
            folder.drawn(pair.tokenizer),
            asked,
            folder.progress,
            folder.work / f"texts-{rule}.json",
        )
    card = read_card(path.with_suffix(".json"))
    return {
        name: card[name]
        for name in (
            "texts",
            "rows",
            "mean_accepted_length",
            "repeated_8grams",
            "by_task",
            "sha256",
        )
    }


assert set(BUILTIN) == {*MUST, *MORE, "self_skip", "prompt_lookup"}
