"""The command `simspec train`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import (
    MOST_TOKENS,
    ChatTemplate,
    Device,
    Json,
    Seed,
    System,
    show_progress,
)
from simspec.cli.options import MOST_BATCH, MOST_ROWS, MOST_THREADS, at_most
from simspec.output.terminal import print_note, print_text

PANEL = "Record and train"


def train(
    text: Annotated[
        list[str],
        typer.Argument(
            metavar="[DRAFTER] TEXT...",
            help='A drafter\'s name to train it alone, or "predictors" for those of drafters that \
are there; then files or folders: .txt, .md, .jsonl or .jsonl.xz with a "text" field.',
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The model folder: target/, and a folder for every drafter.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="Any checkpoint, folder or hub name, in place of <out>/target: "
            "it writes what its drafter learns from."
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Prompts that the target continues, repeatable: JSON lines as for record. \
Text is cut into prompts of 64 tokens."
        ),
    ] = None,
    longest: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_TOKENS), help="Longest prompt of --prompts taken, in tokens."
        ),
    ] = 1024,
    chat_template: ChatTemplate = "auto",
    system: System = "",
    draft_vocab: Annotated[
        int,
        typer.Option(
            help="Number of tokens that the drafter's head scores, the most frequent in its data; "
            "0: all. The output stays the target's."
        ),
    ] = 0,
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
        float | None,
        typer.Option(
            help="Peak learning rate of a drafter alone; default: its recipe's, which falls with "
            "the width of the target."
        ),
    ] = None,
    patience: Annotated[
        int,
        typer.Option(
            help="Stop a drafter after this number of validations without a better one; 0 never."
        ),
    ] = 0,
    recipe: Annotated[
        str,
        typer.Option(
            help="Of a drafter alone: ours, for minutes of training; or paper: loss weights, "
            "optimizer, clip, labels and rate as its authors print them."
        ),
    ] = "ours",
    name: Annotated[
        str | None, typer.Option(help="Its folder among the models; default: the drafter's name.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from the weights in another folder among the models; --steps 0 keeps them, "
            "as for a draft vocabulary of a drafter that is trained.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Another drafter's folder among the models, to be compared with on equal texts."
        ),
    ] = None,
    distil_tokens: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_ROWS), help="Tokens that the target writes for its drafters."
        ),
    ] = 1_000_000,
    learn_text: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_ROWS),
            help="Tokens of TEXT that a drafter of --target learns as they are, chats in its "
            "template; TEXT is then not cut into prompts.",
        ),
    ] = 0,
    blend: Annotated[
        float | None,
        typer.Option(
            help="Share of what drafters learn from that the target wrote; the rest is the text "
            "[0.5]. With --target or --prompts the target writes all of it."
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_BATCH),
            help="Windows of 512 tokens in a step of the target, drafters take twice as many of "
            "192 [8]; windows of a drafter alone [16].",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="In which --target writes its text and computes features: float32, or bfloat16, "
            "which is faster where the device multiplies it. Drafters train for float32."
        ),
    ] = "float32",
    threads: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_THREADS), help="CPU threads for torch; 0 leaves its default."
        ),
    ] = 0,
    device: Device = "cpu",
    seed: Seed = 0,
    toy: Annotated[bool, typer.Option(help="Minute sizes, to try the pipeline.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small target and its drafters from text, or one drafter for a target that exists.

    A second call continues where the first stopped.

    Several processes, or one for each GPU, share what the target writes: torchrun --nproc-per-node
    4 --no-python simspec train ... The first then trains alone.

    Example: simspec train corpus/ --heldout dev.txt --out models/mine --minutes 30

    Example: simspec train eagle corpus/ --out models/mine --set inputs=token --name eagle-token

    Example: simspec train medusa corpus/ --out models/mine --recipe paper --name medusa-paper

    Example: simspec train eagle --target my-llama --prompts prompts.jsonl --out models/llama \
--draft-vocab 32000 --distil-tokens 2000000
    """
    import torch

    from real.jobs import (
        DrafterRequest,
        PromptFiles,
        TrainingLength,
        TrainingPlace,
        TrainingText,
        train_drafter,
        train_models,
    )
    from real.jobs.train import PREDICTORS, split_arguments
    from real.processes import launched_processes
    from real.provenance import multiplies_bfloat16
    from real.train.drafter_card import card_lines

    if threads < 0:
        raise ValueError(f"threads {threads}; expected 0 or more")
    drafter, files = split_arguments(text)
    of_one = settings or name or against or rate or target or prompts or draft_vocab or start
    of_one = of_one or learn_text
    if drafter is None and (of_one or recipe != "ours"):
        raise ValueError(
            "--set, --rate, --recipe, --name, --from, --against, --target, --prompts, "
            "--learn-text and --draft-vocab are for one drafter; name it in front of the text: "
            "simspec train eagle TEXT"
        )
    if blend is not None and (target or prompts):
        raise ValueError(
            "--blend mixes text with what a target of simspec train wrote; "
            "leave it out with --target or --prompts"
        )
    if heldout and (target or prompts):
        raise ValueError(
            "--heldout is for a target that is trained; with --target or --prompts a share of the "
            "prompts is held out: leave it out"
        )
    prompt_files = PromptFiles(tuple(prompts or ()), chat_template, system, longest)
    sources = TrainingText(
        files,
        heldout or (),
        distil_tokens,
        0.5 if blend is None else blend,
        prompt_files,
        learn_text,
    )
    length = TrainingLength(
        minutes if minutes is not None else 6.0 if drafter else 60.0,
        rows if rows is not None else 16 if drafter else 8,
        steps,
        patience,
        toy,
    )
    if threads:
        torch.set_num_threads(threads)
    if (target or prompts) and dtype == "bfloat16" and not multiplies_bfloat16(device):
        print_note("this processor only emulates bfloat16: --dtype float32 is many times as fast")
    card = None
    with launched_processes() as processes, show_progress(processes.first) as progress:
        place = TrainingPlace(out, work, processes.device(device), seed)
        if drafter is None:
            card = train_models(sources, length, place, soft, progress, processes)
        else:
            request = DrafterRequest(
                drafter,
                settings or (),
                name,
                rate,
                against,
                draft_vocab,
                target,
                dtype,
                start,
                recipe,
            )
            card = train_drafter(request, sources, length, place, soft, progress, processes)
    if card is None:  # of the first process
        return
    if as_json:
        print(json.dumps(card))
    elif drafter is None:
        losses, agreement = card["heldout_loss_nats"], card["agreement_on_target_text"]
        print_text(f"wrote {out}: held-out loss {losses}, agreement {agreement}")
    elif drafter == PREDICTORS:
        print_text(f"wrote predictors of {', '.join(card['predictors'])} in {out}")
    else:
        print_text("\n".join([f"wrote {out / (name or drafter)}", *card_lines(card)]))
