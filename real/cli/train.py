"""The command `simspec train`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import Device, Json, Seed
from real.cli.progress import show_progress


def train(
    text: Annotated[
        list[str],
        typer.Argument(
            metavar="[DRAFTER] TEXT...",
            help='A drafter\'s name to train it alone; then files or \
folders: .txt, .md, .jsonl or .jsonl.xz with a "text" field.',
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The model folder: target/, and a folder for every drafter.")
    ],
    work: Annotated[
        Path | None, typer.Option(help="Tokens, checkpoints, curves; default <out>-work.")
    ] = None,
    heldout: Annotated[
        list[Path] | None,
        typer.Option(help="Text kept apart, repeatable; its loss goes into the card."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="For the target, each drafter a tenth [60]; for a drafter alone [6]."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            help="Exact steps in place of minutes: of target,model,early_exit and so on, the last for \
all that follow: 2662,1800,1800; of a drafter alone: 1800."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value for the drafter named, repeatable: inputs=token."),
    ] = None,
    soft: Annotated[
        bool | None,
        typer.Option(
            "--soft/--hard",
            help="Learn the target's distribution, or the text's tokens; \
default: the drafter's own.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Peak learning rate of a drafter alone; default: its own.")
    ] = None,
    patience: Annotated[
        int,
        typer.Option(
            help="Stop a drafter after so many validations without a better one; 0 never."
        ),
    ] = 0,
    name: Annotated[
        str | None, typer.Option(help="Its folder among the models; default: the drafter's name.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Another drafter's folder among the models, to be compared with on equal texts."
        ),
    ] = None,
    distil_tokens: Annotated[
        int, typer.Option(help="Tokens that the target writes for its drafters.")
    ] = 1_000_000,
    blend: Annotated[
        float,
        typer.Option(
            help="Share of what drafters learn from that the target wrote; the rest is the text."
        ),
    ] = 0.5,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Windows of 512 tokens in a step of the target, drafters take twice as many of 192 [8]; \
windows of a drafter alone [16]."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads for torch; 0 leaves its default.")] = 0,
    device: Device = "cpu",
    seed: Seed = 0,
    toy: Annotated[bool, typer.Option(help="Minute sizes, to try the pipeline.")] = False,
    as_json: Json = False,
):
    """Train a small target and its drafters from text, or one drafter for a target that is there; killed, it continues where it was.

    Example of all: simspec train corpus/ --heldout dev.txt --out models/mine --minutes 30

    Example: simspec train eagle corpus/ --out models/mine --set inputs=token --name eagle-token --against eagle
    """
    import torch

    from real.provenance import check_device
    from real.train.arguments import read_settings, split_arguments
    from real.train.config import TrainConfig, toy_config, with_minutes, with_objective, with_steps
    from real.train.drafter_card import card_lines
    from real.train.drafter_training import drafter_training
    from real.train.pipeline import build, train_one
    from real.train.schedule import TrainSchedule
    from real.train.search_skips import configured_search
    from simspec.rng import check_seed

    check_device(device)
    check_seed(seed)
    drafter, files = split_arguments(text)
    minutes = minutes if minutes is not None else 6.0 if drafter else 60.0
    rows = rows if rows is not None else 16 if drafter else 8
    if not 0 < minutes < float("inf") or min(distil_tokens, rows) < 1 or min(threads, patience) < 0:
        given = f"minutes {minutes}, distil-tokens {distil_tokens}, rows {rows}, threads {threads}, patience {patience}"
        raise ValueError(
            f"{given}; expected minutes > 0, at least one token and row, threads and patience >= 0"
        )
    for folder in (out, work):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file, expected a folder for the models or their work")
    counts = [] if steps is None else steps.split(",")
    few, many = (1, 1) if drafter else (3, 99)
    if counts and not (few <= len(counts) <= many and all(c.isdigit() and int(c) for c in counts)):
        wanted = (
            "a positive number such as 1800"
            if drafter
            else "three positive numbers or more such as 2662,1800,1800"
        )
        raise ValueError(f"--steps is {steps!r}; expected {wanted}")
    if drafter is None and (settings or name or against or rate):
        raise ValueError(
            "--set, --rate, --name and --against are for one drafter; name it in front of the text: simspec train eagle TEXT"
        )
    if threads:
        torch.set_num_threads(threads)
    if not 0 <= blend <= 1:
        raise ValueError(f"--blend is {blend}; expected a share, from 0 to 1")
    lab = TrainConfig(
        files,
        tuple(map(str, heldout or ())),
        distil_tokens=distil_tokens,
        blend=blend,
        device=device,
        seed=seed,
    )
    lab = toy_config(lab) if toy else with_minutes(lab, minutes, minutes / 10, rows)
    work = work or out.with_name(out.name + "-work")
    with show_progress() as progress:
        if drafter is None:
            lab = lab if soft is None and not patience else with_objective(lab, soft, patience)
            build(with_steps(lab, *map(int, counts)) if counts else lab, out, work, progress)
            card = json.loads((out / "card.json").read_text())
        else:
            plan = TrainSchedule(
                *map(int, counts),
                minutes=0 if counts else minutes,
                rows=rows,
                length=192,
                seed=seed,
                patience=patience,
            )
            if toy:
                plan = replace(plan, steps=plan.steps or 4, rows=2, length=16)
            more = read_settings(settings or ())
            asked = (
                configured_search(lab, more, name)
                if drafter == "self_skip"
                else drafter_training(drafter, plan, soft, more, name or "", rate)
            )
            card = train_one(lab, asked, out, work, progress, against)
    if as_json:
        print(json.dumps(card))
    elif drafter is None:
        print(
            f"wrote {out}: held-out loss {card['heldout_loss_nats']}, agreement {card['agreement_on_target_text']}"
        )
    else:
        print("\n".join([f"wrote {out / (name or drafter)}", *card_lines(card)]))
