"""simspec check: simulator and recordings against closed forms."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from msgspec import Meta

from simspec.output.frames import frame, show
from simspec.output.terminal import print_text
from simspec.settings import Settings, argument, command, option

PANEL = "Run and verify"


@dataclass(frozen=True)
class CheckSettings(Settings):
    """What to check."""

    traces: Annotated[
        tuple[str, ...],
        argument("Recordings: files, or names of bundled ones; default: all bundled ones."),
    ] = ()
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of the synthetic texts and of every draw."""
    as_json: Annotated[bool, option("Print one JSON object instead of tables.", "--json")] = False


@command
def check(settings: CheckSettings) -> None:
    """Check the simulator against closed forms, and recordings against EESD's Eq. 13.

    The exit code is 1 if anything disagrees, or if a planted fault is not found.

    Example: simspec check mine.parquet --json
    """
    from simspec.check import FALSE_ALARM, controls, recording_checks, synthetic_checks
    from simspec.trace.recordings import locate
    from simspec.trace.trace import load_trace

    traces = {name: load_trace(path) for name, path in locate(settings.traces).items()}
    checks = synthetic_checks(settings.seed)
    for name, trace in traces.items():
        checks += recording_checks(name, trace, settings.seed)
    planted, failed = controls(settings.seed), [check for check in checks if not check.ok]
    ok = not failed and all(planted.values())
    if settings.as_json:
        listed = [asdict(check) | {"ok": check.ok} for check in checks]
        about = {"ok": ok, "checks": listed, "controls": planted, "false_alarm": FALSE_ALARM}
        print(json.dumps(about))
    else:
        families: dict[str, list[bool]] = {}
        for check in checks:
            families.setdefault(check.name.partition(":")[0], []).append(check.ok)
        rows = [(name, len(of), of.count(False)) for name, of in families.items()]
        show(frame(rows, ("checks of", "number", "failed")))
        for check in failed[:20]:
            span = f"[{check.low:.6g}, {check.high:.6g}]"
            print_text(f"FAILED {check.name}: got {check.got:.6g}, expected it in {span}")
        for fault, found in planted.items():
            print_text(f"control, {fault}: {'found' if found else 'NOT FOUND'}")
        verdict = "all hold" if ok else "NOT ALL HOLD"
        risk = f"a correct simulator fails with probability {FALSE_ALARM:g} at most"
        print_text(f"{len(checks)} checks: {verdict} ({risk})")
    if not ok:
        raise typer.Exit(1)
