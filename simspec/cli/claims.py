"""simspec claims: the papers' claims, tested on recordings and cards."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simspec.cli.options import Json, Markdown, Replicates, Seed, at_most, print_result

if TYPE_CHECKING:
    from simspec.papers.claim import Claim, Inputs, Verdict

PANEL = "Simulate"


def claims(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Recordings, laid out as traces/ of a checkout; default: this checkout's.",
            show_default=False,
        ),
    ] = None,
    claim: Annotated[
        list[int] | None,
        typer.Option(
            "--claim",
            help="A claim's number, repeatable: it alone is tested and corrected for; default all.",
        ),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            callback=at_most(1_000_000),
            help="Prompts of each recording, evenly spread, at least 8; default: all.",
        ),
    ] = None,
    replicates: Replicates = 4,
    seed: Seed = 0,
    write: Annotated[
        Path | None,
        typer.Option(
            help="Renew the verdicts between the markers of this page, such as docs/claims.md."
        ),
    ] = None,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence/--no-evidence",
            help="With --markdown: every effect with its interval, or verdicts alone.",
        ),
    ] = True,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Test the papers' claims: held, did not hold or undecided, at measured and the papers' prices.

    The chance of any wrong 'held' or 'did not hold' is 5% at most over the draw of prompts (Holm);
    training seeds, errors of costs, and tests changed after a look are not covered.

    Example: simspec claims --claim 1 --claim 16
    """
    from simspec.numerics.stats import MIN_PROMPTS
    from simspec.output.files import check_output
    from simspec.papers.card import find_cards
    from simspec.papers.claim import Inputs, markdown, renew, verdict_tables
    from simspec.papers.recorded import Recordings
    from simspec.trace.recordings import CHECKOUT

    chosen = _chosen(claim)
    root = CHECKOUT if folder is None else folder
    if folder is not None and not root.is_dir():
        raise ValueError(f"{folder} is no folder: give one laid out as traces/ of a checkout")
    if prompts is not None and prompts < MIN_PROMPTS:
        raise ValueError(f"--prompts is {prompts}, expected at least {MIN_PROMPTS}")
    if replicates < 1:
        raise ValueError(f"replicates is {replicates}, expected at least 1")
    if write is not None:
        check_output(write)
    recordings = Recordings(root, prompts)
    inputs = Inputs(recordings, find_cards(root.resolve().parent), seed, replicates)
    verdicts = _tested(chosen, inputs)
    if write is not None:
        renew(write, markdown(verdicts, evidence=False))
    if as_json:
        print_result(_report(chosen, verdicts, inputs), (), as_json)
    elif as_markdown:
        print(markdown(verdicts, evidence))
    elif write is None:
        print_result({}, verdict_tables(verdicts), as_json)


def _chosen(numbers: list[int] | None) -> "list[Claim]":
    from simspec.papers.catalogue import CLAIMS

    known = {claim.number for claim in CLAIMS}
    unknown = [number for number in numbers or () if number not in known]
    if unknown:
        raise ValueError(f"there is no claim {unknown[0]}: expected 1 to {max(known)}")
    return [claim for claim in CLAIMS if not numbers or claim.number in numbers]


def _tested(chosen: "Sequence[Claim]", inputs: "Inputs") -> "list[Verdict]":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from simspec.papers.claim import verdicts_on

    columns = (
        TextColumn("testing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(chosen))

        def progress(claim: "Claim") -> None:
            bar.update(task, completed=chosen.index(claim), description=claim.sentence[:60])

        return verdicts_on(chosen, inputs, progress)


def _report(
    chosen: "Sequence[Claim]", verdicts: "Sequence[Verdict]", inputs: "Inputs"
) -> dict[str, Any]:
    from simspec.papers.claim import ALPHA, COVERED

    return {
        "seed": inputs.seed,
        "replicates": inputs.draws,
        "level": 0.95,
        "false_alarm": ALPHA,
        "covered": COVERED,
        "family": sum(any(e.source.counted for e in v.evidence) for v in verdicts),
        "cards": [card.name for card in inputs.cards],
        "claims": [
            {
                name: getattr(claim, name)
                for name in (
                    "number", "part", "sentence", "paper", "table", "detail", "regime",
                    "construction",
                )
            }
            | {"verdicts": [v for v in verdicts if v.claim is claim]}
            for claim in chosen
        ],
    }  # fmt: skip
