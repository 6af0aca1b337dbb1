"""The command `simspec train`."""

import json

from real.commands.options import show_progress
from real.train.settings import Training
from simspec.output.terminal import print_text
from simspec.settings import command

PANEL = "Record and train"


@command
def train(settings: Training) -> None:
    """Train one drafter for a target, from text that the target writes.

    A second call continues where the first stopped, and the next drafter takes the same text.

    Several processes, or one for each GPU, share what the target writes: torchrun --nproc-per-node
    4 --no-python simspec train ... The first then trains alone.

    Example: simspec train eagle --target my-llama --prompts prompts.jsonl --out models/llama \
--draft-vocab 32000 --distil-tokens 2000000

    Example: simspec train medusa corpus/ --out models/mine --recipe paper --name medusa-paper
    """
    from real.processes import launched_processes
    from real.train.evaluation import card_lines
    from real.train.train import train_drafter

    card = None
    with launched_processes() as processes, show_progress(processes.first) as progress:
        card = train_drafter(settings, progress, processes)
    if card is None:  # of the first process
        return
    if settings.as_json:
        print(json.dumps(card))
    elif "predictors" in card:
        print_text(f"wrote predictors of {', '.join(card['predictors'])} in {settings.out}")
    else:
        print_text("\n".join([f"wrote {settings.out / settings.place}", *card_lines(card)]))
