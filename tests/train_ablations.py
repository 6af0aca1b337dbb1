"""Trains every ablation of the papers for one target at one equal budget, and prints their table.

Usage: python tests/train_ablations.py TEXT... --out models/ablations --steps 600

TEXT are files or folders as for `simspec train`. Each ablation is a folder of --out with its card;
killed, a second call continues. All learn as many tokens: steps x rows x 192.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from real.jobs.train import (
    DrafterRequest,
    TrainingLength,
    TrainingPlace,
    TrainingText,
    train_drafter,
)
from real.pair import TINY


@dataclass(frozen=True)
class Ablation:
    """A drafter, what differs from our recipe, and the share of its text that the target wrote."""

    drafter: str
    settings: Mapping[str, object] = field(default_factory=dict)
    recipe: str = "ours"
    blend: float = 0.5


def ablations(layers: int) -> dict[str, Ablation]:
    """The ablations for a target of so many layers, by the name of their folder."""
    named = {}
    # EESD Table 4 (head alone, self-distillation) and Figures 4 and 5 (N, new layers); all train a
    # head of their own, so that they differ in layers alone
    for depth in range(1, min(4, layers)):
        for extra in (0, 1, 2):
            settings = {"depth": depth, "layers": extra, "own_head": True}
            named[f"early_exit-n{depth}-x{extra}"] = Ablation("early_exit", settings)
    alone = {"depth": 1, "layers": 1, "own_head": True}
    named["early_exit-text"] = Ablation("early_exit", alone, blend=0.0)
    # EAGLE Figure 10
    for name, inputs in {
        "eagle-shifted": "feature&shifted_token",
        "eagle-unshifted": "feature&unshifted_token",
        "eagle-token": "token",
        "eagle-feature": "feature",
    }.items():
        named[name] = Ablation("eagle", {"inputs": inputs})
    # GLIDE Figures 4 (without cross-attention) and 7 (layers of the cache)
    named["glide-blind"] = Ablation("glide", {"cross": False})
    for layer in sorted({0, layers // 2, layers - 1}):
        named[f"glide-layer{layer}"] = Ablation("glide", {"reads": layer})
    # Medusa's form beside ours
    named["medusa-deep"] = Ablation("medusa", {"blocks": 3})
    named["medusa-paper-form"] = Ablation("medusa", {"blocks": 1, "own_head": True, "decay": 0.8})
    # S2D: exits trained together, and the last one alone
    named["sorted-together"] = Ablation("sorted", {"together": True})
    named["sorted-single"] = Ablation("sorted", {"together": False})
    # each drafter as its authors trained it
    for drafter in ("early_exit", "eagle", "medusa", "hydra", "glide", "sorted"):
        named[f"{drafter}-recipe"] = Ablation(drafter, recipe="paper")
    return named


def train(name: str, ablation: Ablation, options: argparse.Namespace) -> dict:
    """Trains one ablation into its folder, and returns its card."""
    request = DrafterRequest(
        ablation.drafter,
        tuple(f"{key}={_value(value)}" for key, value in ablation.settings.items()),
        name,
        recipe=ablation.recipe,
    )
    text = TrainingText(options.text, distil_tokens=options.distil_tokens, blend=ablation.blend)
    length = TrainingLength(1.0, options.rows, str(options.steps), toy=options.toy)
    place = TrainingPlace(options.out, device=options.device)
    return train_drafter(request, text, length, place)


def _value(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def row(name: str, card: Mapping) -> str:
    """A line of the table."""
    length = card["evaluation"]["trained"]["accepted_length"]
    shown = f"{length['value']:.3f}"
    if length["low"] is not None:
        shown += f" [{length['low']:.3f}, {length['high']:.3f}]"
    trained = card["parameters"]["trained"]
    return f"| `{name}` | {card['steps']} | {card['tokens']:,} | {trained:,} | {shown} |"


def main(arguments: list[str] | None = None) -> dict[str, dict]:
    """The cards by name; ValueError where their budgets differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=Path, default=TINY / "target")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--distil-tokens", type=int, default=1_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", action="append", help="An ablation's name, repeatable.")
    parser.add_argument("--toy", action="store_true", help="Minute batches, to try it.")
    options = parser.parse_args(arguments)
    if not (options.out / "target").exists():
        shutil.copytree(options.target, options.out / "target")
    config = json.loads((options.out / "target" / "config.json").read_text())
    chosen = ablations(config["num_hidden_layers"])
    if unknown := set(options.only or ()) - set(chosen):
        raise SystemExit(f"{min(unknown)} is no ablation; expected some of {', '.join(chosen)}")
    print("| ablation | steps | tokens learned | parameters trained | accepted length |")
    print("| --- | --- | --- | --- | --- |")
    cards = {}
    for name, ablation in chosen.items():
        if not options.only or name in options.only:
            cards[name] = train(name, ablation, options)
            print(row(name, cards[name]), flush=True)
    if len(budgets := {card["tokens"] for card in cards.values()}) > 1:
        raise ValueError(f"budgets differ: {sorted(budgets)} tokens; delete {options.out}")
    return cards


if __name__ == "__main__":
    main()
