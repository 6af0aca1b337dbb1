"""simspec check: simulator and recordings against closed forms."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from simspec.settings import Settings, argument, command, option

PANEL = "Run and verify"


@dataclass(frozen=True)
class CheckSettings(Settings):
    """What to check."""

    traces: Annotated[
        tuple[str, ...],
        argument("Recordings: files, or names of bundled ones; default: all bundled ones."),
    ] = ()
    seed: Annotated[int, option("Seed of the synthetic texts and of every draw.")] = 0
    as_json: Annotated[bool, option("Print one JSON object instead of tables.", "--json")] = False


@command
def check(settings: CheckSettings) -> None:
    """Check the simulator against closed forms, and recordings against EESD's Eq. 13.

    The exit code is 1 if anything disagrees, or if a planted fault is not found.

    Example: simspec check traces/prose.parquet --json
    """
    from simspec.check import check as run_checks
    from simspec.numerics.rng import check_seed
    from simspec.trace.recordings import locate

    check_seed(settings.seed)
    report = run_checks(locate(settings.traces), settings.seed)
    print(json.dumps(report)) if settings.as_json else _print(report)
    if not report["ok"]:
        raise typer.Exit(1)


def _print(report: dict[str, Any]) -> None:
    from simspec.output.frames import frame, show
    from simspec.output.terminal import print_text

    families: dict[str, list[dict[str, Any]]] = {}
    for result in report["checks"]:
        families.setdefault(result["name"].partition(":")[0], []).append(result)
    rows = [(name, len(of), sum(not c["ok"] for c in of)) for name, of in families.items()]
    show(frame(rows, ("checks of", "number", "failed")))
    if shown := [row for row in report["recordings"] if row["K"] in (1, 4, 16)]:
        texts = [[f"{v:.3f}" if type(v) is float else v for v in row.values()] for row in shown]
        show(frame(texts, tuple(shown[0]), title="tokens a round, replayed and by formulas"))
    for result in [result for result in report["checks"] if not result["ok"]][:20]:
        got, expected = (f"{result[key]:.6g}" for key in ("got", "expected"))
        span = f"[{result['low']:.6g}, {result['high']:.6g}]"
        print_text(f"FAILED {result['name']}: got {got}, expected {expected} in {span}")
    for fault, found in report["controls"].items():
        print_text(f"control, {fault}: {'found' if found else 'NOT FOUND'}")
    verdict = "all hold" if report["ok"] else "NOT ALL HOLD"
    risk = f"a correct simulator fails with probability {report['false_alarm']:g} at most"
    print_text(f"{len(report['checks'])} checks: {verdict} ({risk})")
