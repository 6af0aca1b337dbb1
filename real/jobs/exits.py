"""Recording every exit of a sorted drafter along the sequences of its recording."""

from pathlib import Path

from real.drafters.sorted import SortedDrafter
from real.jobs.models import ModelSettings, open_recording
from real.record.exits import record_exits
from real.rerun import rule_of
from simspec.output.files import check_output
from simspec.trace.exits import ExitDrafts, exits_path, write_exits


def exits_of_recording(
    name: str, models: ModelSettings, out: Path | None = None
) -> tuple[ExitDrafts, Path]:
    """Writes the exits of the recording `name` to `out`, by default beside it.

    ValueError for a recording of another drafter, or of the rejection rule.
    """
    path, trace = open_recording(name)
    out = out or exits_path(path)
    check_output(out, path)
    rule = rule_of(trace)
    if trace.meta.drafter != "sorted":
        raise ValueError(
            f"{name} was recorded with drafter {trace.meta.drafter!r}; "
            "expected a recording of drafter 'sorted'"
        )
    pair = models.load_for(trace, name)
    assert isinstance(pair.drafter, SortedDrafter)  # by the recording's drafter
    drafts = record_exits(pair.drafter, pair.target.decoder, trace, rule)
    write_exits(drafts, trace, out)
    return drafts, out
