"""simspec cost: costs fitted to a table of accepted length and speed, or stated."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import LONGEST_DRAFT, MOST_BATCH, Json, at_most

PANEL = "Exchange with engines"


def cost(
    out: Annotated[Path, typer.Option(help="The cost model, .json.")],
    from_table: Annotated[
        str | None,
        typer.Option(
            help="CSV or JSON with columns K, accepted_length and speedup (or tokens_per_second, "
            "plain_tokens_per_second; or tpot_ms, plain_tpot_ms); or a published table's name."
        ),
    ] = None,
    from_terms: Annotated[
        str | None,
        typer.Option(
            help="Milliseconds, NAME=MS,..: pass, token (a row of a pass), kv (a cached token), "
            "step (more than one row), draft (a draft step), draft_round, draft_row, draft_kv, "
            "overhead."
        ),
    ] = None,
    from_cost: Annotated[
        Path | None, typer.Option(help="A cost model to add the terms below to.")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            "-k",
            callback=at_most(LONGEST_DRAFT),
            help="Longest draft to price; default: the table's longest, else 8.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_BATCH), help="Batch size to fit, where the table has several."
        ),
    ] = None,
    by_batch: Annotated[
        bool,
        typer.Option(
            "--by-batch",
            help="Fit all batch sizes of the table together: seconds of a pass, a token, the "
            "kernel step, and with a column context of a cached token.",
        ),
    ] = False,
    plain: Annotated[
        float | None,
        typer.Option(
            help="tokens_per_second or tpot_ms of plain decoding, where no column has it."
        ),
    ] = None,
    context: Annotated[
        float | None,
        typer.Option(help="Cached tokens at which stated costs, or those of --from-cost, hold."),
    ] = None,
    kv_verify: Annotated[
        float | None, typer.Option(help="Seconds of each cached token that the target reads.")
    ] = None,
    kv_draft: Annotated[
        float | None, typer.Option(help="Seconds of each cached token that a draft step reads.")
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(help="Seconds of the kernel step from one verified row to several."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit costs to accepted length and speed, as engines report them, or state them by tokens.

    Example: simspec cost --from-table measured.csv --out measured.cost.json --depth 16

    Two terms make a cost scale with context and batch. Cached tokens: --kv-verify and --kv-draft
    are seconds for each; --context says at how many the other seconds hold. The kernel step: what
    a pass takes longer once a sequence has more than one row, a part of the verification's seconds.

    Example: simspec cost --from-cost mine.cost.json --kv-verify 4e-8 --context 300 --out kv.json

    Example: simspec cost --from-terms pass=5.9,token=0.021,kv=4e-5,draft=0.4 --out h100.json
    """
    from simspec.output.files import check_output

    sources = {"--from-table": from_table, "--from-terms": from_terms, "--from-cost": from_cost}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"{given or 'no source'} is given, expected one of {', '.join(sources)}")
    terms = {"kv_verify": kv_verify, "kv_draft": kv_draft, "step": step, "context": context}
    stated = {name: value for name, value in terms.items() if value is not None}
    _check_options(given[0], stated, {"--batch": batch, "--by-batch": by_batch, "--plain": plain})
    check_output(out, *(str(value) for value in sources.values() if value is not None))
    if from_table is not None:
        _fit(from_table, out, (depth, batch, by_batch, plain), as_json)
    else:
        model = _stated(from_terms, from_cost, depth, stated)
        model.to_json(out)
        _report(model, out, as_json)


def _check_options(source: str, stated: dict[str, float], table: dict[str, Any]) -> None:
    of_table = [name for name, value in table.items() if value not in (None, False)]
    of_terms = [f"--{name.replace('_', '-')}" for name in stated]
    allowed = {
        "--from-table": of_table,
        "--from-cost": of_terms,
        "--from-terms": [name for name in of_terms if name == "--context"],
    }[source]
    if wrong := [name for name in (*of_table, *of_terms) if name not in allowed]:
        raise ValueError(f"{wrong[0]} says nothing with {source}, expected it alone: drop it")
    if source == "--from-cost" and not stated:
        raise ValueError("--from-cost is given without terms, expected --kv-verify or another")


def _stated(
    from_terms: str | None, from_cost: Path | None, depth: int | None, stated: dict[str, Any]
) -> Any:
    from dataclasses import replace

    from simspec.cost.batch import parse_terms
    from simspec.cost.model import CostModel

    if from_terms is not None:
        return parse_terms(from_terms).cost(depth or 8, stated.get("context", 0.0), "stated")
    model = CostModel.from_json(from_cost)  # type: ignore[arg-type]
    if depth is not None:
        model = model.truncate(depth) if depth <= model.K else model.extend(depth)
    return replace(model, **stated)


def _fit(
    from_table: str, out: Path, options: tuple[int | None, int | None, bool, float | None],
    as_json: bool,
) -> None:  # fmt: skip
    from simspec.cost.fit import fit_cost, fit_tokens
    from simspec.cost.speed_table import read_speed_table, read_speed_tables
    from simspec.published import published_table

    depth, batch, by_batch, plain = options
    is_file = Path(from_table).is_file() or from_table.endswith((".csv", ".json"))
    if by_batch and batch is not None:
        raise ValueError("--by-batch fits all batch sizes, --batch one: drop one of them")
    if plain is not None and not is_file:
        published_table(from_table, batch)
        raise ValueError(f"--plain is given, but {from_table} has plain decoding's speed: drop it")
    if by_batch:
        tables = read_speed_tables(from_table, plain) if is_file else _published(from_table)
        fit = fit_tokens(tables, depth)
        fit.cost.to_json(out)
        _report_tokens(tables, fit, out, as_json)
        return
    table = (
        read_speed_table(from_table, batch, plain)
        if is_file
        else published_table(from_table, batch)
    )
    fitted = fit_cost(table, depth)
    fitted.cost.to_json(out)
    if as_json:
        line = {"intercept": fitted.line.intercept, "step": fitted.line.step}
        print(json.dumps(_errors(fitted) | line | {"cost": fitted.cost.to_dict()}))
    else:
        _print(table, fitted, out)


def _published(name: str) -> Any:
    from simspec.published import batch_tables

    tables = batch_tables()
    if name not in tables:
        raise ValueError(
            f"{name!r} is no file and no published table of several batch sizes, "
            f"expected a CSV or JSON file, or one of {', '.join(tables)}"
        )
    return tables[name]


def _errors(fitted: Any) -> dict[str, Any]:
    left_out = None if fitted.left_out is None else fitted.left_out.to_dict()
    return {"residuals": fitted.residuals.to_dict(), "left_out": left_out}


def _report(model: Any, out: Path, as_json: bool) -> None:
    from simspec.output.terminal import print_text

    if as_json:
        print(json.dumps({"cost": model.to_dict()}))
        return
    print_text(
        f"a cached token {1e6 * model.kv_verify:.4g} us in a pass of the target and "
        f"{1e6 * model.kv_draft:.4g} us in a draft step; the kernel step {1e3 * model.step:.4g} "
        f"ms; other seconds hold at {model.context:g} cached tokens"
    )
    print_text(f"wrote {out}, drafts up to {model.K}")


def _report_tokens(tables: Any, fit: Any, out: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from simspec.cost.fit import speedup_error
    from simspec.output.table import print_table

    if as_json:
        data = {"terms": asdict(fit.tokens), "cost": fit.cost.to_dict()}
        print(json.dumps(_errors(fit) | data))
        return
    print_table(
        ("task", "batch", "context", "K", "accepted length", "speedup", "error of the fit"),
        [
            (
                row.task or "-",
                table.batch,
                row.context or "-",
                row.K,
                f"{row.accepted_length:.3f}",
                f"{row.speedup:.3f}",
                f"{speedup_error(fit.tokens, table.batch, row):+.1%}",
            )
            for table in tables
            for row in table.rows
        ],
        names=4,
        title=tables[0].name,
    )
    _print_notes(fit.cost, out)


def _print(table: Any, fitted: Any, out: Path) -> None:
    from simspec.output.table import print_table

    print_table(
        ("task", "K", "accepted length", "round, plain steps", "speedup", "fitted", "error"),
        [
            (
                row.task or "-",
                row.K,
                f"{row.accepted_length:.3f}",
                f"{row.round_cost:.3f}",
                f"{row.speedup:.3f}",
                f"{fitted.line.speedup(row):.3f}",
                f"{fitted.line.error(row):+.1%}",
            )
            for row in table.rows
        ],
        names=2,
        title=table.name,
    )
    _print_notes(fitted.cost, out)


def _print_notes(model: Any, out: Path) -> None:
    from simspec.output.terminal import print_text

    for note in model.precision.warnings:
        print_text(note)
    print_text(f"wrote {out}, drafts up to {model.K}")
