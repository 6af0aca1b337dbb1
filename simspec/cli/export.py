"""simspec export: settings for serving engines, chosen by replay."""

import json

from simspec.cli.replayed import print_notes
from simspec.engines import EXPORT_FORMATS, EXTRA_EXPORTS, Export
from simspec.output.frames import frame, show
from simspec.output.terminal import print_fields, print_text
from simspec.settings import command

PANEL = "Engines"


@command
def export(settings: Export) -> None:
    """Write settings for a serving engine: draft lengths chosen by replay, with their origin.

    Example: simspec export vllm tiny-eagle-greedy --draft-model DRAFT --out vllm.json

    A trained drafter, as an engine loads it: simspec export drafter models/mine/eagle --engine vllm
    --target models/mine/target --out served/eagle
    """
    from simspec.cli import _load_extras

    out = settings.out
    if settings.format not in EXPORT_FORMATS:
        _load_extras()
    if settings.format in EXTRA_EXPORTS:
        card = EXTRA_EXPORTS[settings.format](settings)
        print(json.dumps(card)) if settings.as_json else print_fields(card)
        return
    from simspec.engines.exports import write_export
    from simspec.trace.recordings import cost_notes, locate, whole_costs

    origin, notes = write_export(settings)
    print_notes(notes)
    if settings.as_json:
        print(json.dumps(origin))
        return
    rows = []
    for row in origin["predicted"]:
        value, low, high = (row["speedup"][key] for key in ("value", "low", "high"))
        interval = "-" if low is None else f"[{low:.3f}, {high:.3f}]"
        rows.append((str(row["batch"]), row["policy"], f"{value:.3f}", interval))
    paths = locate(settings.recordings)
    priced = cost_notes(paths, whole_costs(paths, settings.cost), settings.cost)
    show(frame(rows, ("batch", "policy", "speedup", "interval"), names=2, notes=priced))
    print_text(f"wrote {out}; {out}.provenance.json has its origin")
