"""The command `simspec train`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import Device, Json, Seed
from real.cli.progress import show_progress


def train(  # noqa: PLR0913
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
            help="Exact steps in place of minutes: of target,model,early_exit and so on, "
            "the last for all that follow: 2662,1800,1800; of a drafter alone: 1800."
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
            help="Windows of 512 tokens in a step of the target, drafters take twice as many of "
            "192 [8]; windows of a drafter alone [16]."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads for torch; 0 leaves its default.")] = 0,
    device: Device = "cpu",
    seed: Seed = 0,
    toy: Annotated[bool, typer.Option(help="Minute sizes, to try the pipeline.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small target and its drafters from text, or one drafter for a target that exists.

    A second call continues where the first stopped.

    Example: simspec train corpus/ --heldout dev.txt --out models/mine --minutes 30

    Example: simspec train eagle corpus/ --out models/mine --set inputs=token --name eagle-token
    """
    import torch

    from real.jobs import (
        DrafterRequest,
        TrainingLength,
        TrainingPlace,
        TrainingText,
        train_drafter,
        train_models,
    )
    from real.train.arguments import split_arguments
    from real.train.drafter_card import card_lines

    if threads < 0:
        raise ValueError(f"threads {threads}; expected 0 or more")
    drafter, files = split_arguments(text)
    if drafter is None and (settings or name or against or rate):
        raise ValueError(
            "--set, --rate, --name and --against are for one drafter; "
            "name it in front of the text: simspec train eagle TEXT"
        )
    sources = TrainingText(files, heldout or (), distil_tokens, blend)
    length = TrainingLength(
        minutes if minutes is not None else 6.0 if drafter else 60.0,
        rows if rows is not None else 16 if drafter else 8,
        steps,
        patience,
        toy,
    )
    place = TrainingPlace(out, work, device, seed)
    if threads:
        torch.set_num_threads(threads)
    with show_progress() as progress:
        if drafter is None:
            card = train_models(sources, length, place, soft, progress)
        else:
            request = DrafterRequest(drafter, settings or (), name, rate, against)
            card = train_drafter(request, sources, length, place, soft, progress)
    if as_json:
        print(json.dumps(card))
    elif drafter is None:
        losses, agreement = card["heldout_loss_nats"], card["agreement_on_target_text"]
        print(f"wrote {out}: held-out loss {losses}, agreement {agreement}")
    else:
        print("\n".join([f"wrote {out / (name or drafter)}", *card_lines(card)]))
