"""InferenceX: accepted lengths of a drafter by draft length, one run for each."""

from simspec.exports.golden_al import read
from simspec.imports.kinds import PooledCounts
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Source
from simspec.imports.totals import origin_of

MEANS = "mean tokens a round, one run for each K (bonus token included)"
NO_COUNTS = "accepted lengths without counts, to two decimals: no intervals"
NO_DEPTHS = "each K is a run of its own: differences between K are no marginals"


def read_golden_al(source: Source, options: ImportOptions) -> PooledCounts:
    """The accepted lengths of one mode; `options.mode` chooses where the file has both."""
    model, modes = read(source.text)
    if options.mode is None and len(modes) > 1:
        raise ValueError(
            f"the file holds {' and '.join(modes)}: choose with --thinking or --no-thinking"
        )
    mode = options.mode or next(iter(modes))
    if mode not in modes:
        raise ValueError(f"the file has no {mode}, expected {' or '.join(modes)}")
    return PooledCounts(
        origin_of(source), length_means=MEANS,
        withheld={"rounds": NO_COUNTS, "acceptance by depth": NO_DEPTHS}, lengths=modes[mode],
        notes=(f"{model[:80]}, {mode}",),
    )  # fmt: skip


FORMATS = (ImportFormat("golden-al", read_golden_al, ("mode",)),)
