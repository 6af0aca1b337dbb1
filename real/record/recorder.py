"""The recorder: what a drafter would propose from every position of the target's own output.

There are four ways to the rows of a sequence. All give the same rows as the first, which is the
definition.

| module | drafters | passes |
| --- | --- | --- |
| `stepwise` | any that is history-free | one position at a time, through the protocol |
| `prefix_only` | language models of the token prefix | one, then K - 1 steps at the misses |
| `parallel` | those with a parallel form | K steps, each for all positions |
| `rejection` | any that is history-free | acceptance ratios, under the rejection rule |
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from real.draft import Drafter
from real.drafters import parallel_form
from real.model.target import Target
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record.parallel import IdleTarget, SharedPass, record_parallel, record_prefix_only
from real.record.rejection import record_rejection
from real.record.rows import RecordedRows, assemble, join_traces, record_stepwise
from real.record.sequence_cache import SequenceCache, blocks_of, groups_of, write_block
from real.record.settings import RecordError, Settings
from real.record.shards import Recording, RecordingFiles, Shards, check_shared
from real.record.target_sequence import target_sequence
from real.record.tree_order import tree_order_parallel, tree_order_stepwise
from simspec import Trace, TraceMeta


def record(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompts: Sequence[Prompt],
    files: RecordingFiles,
    meta: TraceMeta,
    progress: Progress = quiet,
) -> Trace:
    """Records all prompts into `files.trace`; a killed recording continues at its last whole shard.

    RecordError for shards with other settings or of another process, a damaged shard, or a sequence
    that cannot be recorded.
    """
    return record_all([Recording(target, drafter, settings, files, meta)], prompts, progress)[0]


def record_all(
    recordings: Sequence[Recording],
    prompts: Sequence[Prompt],
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> list[Trace]:
    """Records several drafters on the sequences of one target, each like `record`.

    Each sequence is written once, and passed once through the target for all drafters that read
    such a pass. Each drafter has separate shards. RecordError for drafters that do not share
    rule, budget and files of sequences too.

    Several `processes` share the work, on files that all of them see. The first merges the shards,
    with the content that one process alone would write; the others end with ShareDone.
    """
    check_shared(recordings)
    first = recordings[0]
    made_with = first.settings, first.meta, first.target, processes
    cache = None
    if first.files.sequence_cache is not None:
        cache = SequenceCache(first.files.sequence_cache, *made_with)
    shards: list[Shards] = []
    groups = groups_of(first.files.shard_size, len(prompts))
    with ExitStack() as claims:
        try:
            with processes.first_before_others():
                for r in recordings:
                    shards.append(Shards(r.files, r.settings, r.meta, prompts, processes))
                    claims.callback(shards[-1].release)
            if cache is None and (first.settings.batch > 1 or len(recordings) > 1):
                cache = SequenceCache(shards[0].sequences, *made_with)
            if cache is not None and first.settings.batch > 1:
                _write_missing(first, shards, prompts, cache, progress, processes)
            own_groups = [group for i, group in enumerate(groups) if processes.has(i)]
            _record_missing(recordings, shards, prompts, own_groups, cache, progress)
            processes.leave_to_first()
            traces = [_joined(r, own, prompts, groups) for r, own in zip(recordings, shards)]
        except BaseException:
            for own in shards:
                own.remove_if_empty()
            raise
        if first.files.sequence_cache is not None and cache is not None:
            cache.merge()
        for own, trace in zip(shards, traces):
            own.finish(trace)
    return traces


def _write_missing(
    first: Recording,
    shards: Sequence[Shards],
    prompts: Sequence[Prompt],
    cache: SequenceCache,
    progress: Progress,
    processes: Processes,
) -> None:
    """The target writes the blocks that shards are missing of; each process knows all of them."""
    size = first.files.shard_size
    for i, block in enumerate(blocks_of(first.settings, size, len(prompts))):
        paths = [own.path(start) for own in shards for start in block[::size]]
        if processes.has(i) and not all(path.exists() for path in paths):
            write_block(first.target, first.settings, prompts, block, cache, progress)
    processes.wait()
    cache.refresh()


def _record_missing(
    recordings: Sequence[Recording],
    shards: Sequence[Shards],
    prompts: Sequence[Prompt],
    groups: Sequence[range],
    cache: SequenceCache | None,
    progress: Progress,
) -> None:
    """Records the shards of these groups that are missing."""
    for group in groups:
        paths = [own.path(group.start) for own in shards]
        missing = [(r, own) for r, own, p in zip(recordings, shards, paths) if not p.exists()]
        _record_shards(missing, prompts, group, cache, progress)
        for r, own in zip(recordings, shards):
            own.load(group.start, prompts[group.start : group.stop])  # a damaged one is named now
            progress(_label(r), group.stop, len(prompts))


def _joined(
    recording: Recording, shards: Shards, prompts: Sequence[Prompt], groups: Sequence[range]
) -> Trace:
    """The whole recording, of the shards of all groups."""
    parts = [shards.load(group.start, prompts[group.start : group.stop]) for group in groups]
    return join_traces(parts, recording.meta)


def _label(recording: Recording) -> str:
    return f"recording {recording.files.trace.stem}"


def _record_shards(
    missing: Sequence[tuple[Recording, Shards]],
    prompts: Sequence[Prompt],
    group: range,
    cache: SequenceCache | None,
    progress: Progress,
) -> None:
    """Records the sequences of `group` with every drafter that misses their shard."""
    rows: list[list[RecordedRows]] = [[] for _ in missing]
    for sequence in group:
        prompt, shared = prompts[sequence], SharedPass()
        for (r, _), own in zip(missing, rows):
            try:
                own.append(
                    record_sequence(
                        r.target, r.drafter, r.settings, prompt.token, sequence, cache, shared
                    )
                )
            except ValueError as error:
                raise RecordError(
                    f"sequence {sequence} (prompt {prompt.id!r}) cannot be recorded: {error}"
                ) from error
            progress(_label(r), sequence + 1, len(prompts))
    if cache is not None:
        cache.save()
    for (r, shards), own in zip(missing, rows):
        recorded = assemble(own, prompts[group.start : group.stop], group.start, r.settings, r.meta)
        recorded.save(shards.path(group.start))


def record_sequence(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    sequence: int,
    cache: SequenceCache | None = None,
    shared: SharedPass | None = None,
    stepwise: bool = False,
) -> RecordedRows:
    """The rows of the target's sequence after `prompt`, whose draw address is `sequence`.

    A cached sequence is read, another one is added to `cache`. `shared` keeps what recorders of
    other drafters use again. `stepwise` forces the definition.
    """
    shared = shared or SharedPass()
    written = cache.find(sequence, prompt) if cache else None
    if written is None:
        written = target_sequence(target, settings, prompt, sequence)
        if cache:
            cache.add(sequence, prompt, written)
    if drafter.tokens_only and not stepwise:
        target = cast(Target, IdleTarget(target.decoder))
    tokens, margins = written
    parallel = parallel_form(drafter) is not None and not stepwise
    known = prompt, tokens, sequence
    sampled = settings.rule.sampled
    if sampled:
        rows = record_rejection(target, drafter, settings, prompt, written, shared)
    elif drafter.prefix_only and drafter.lm is not None and not stepwise:
        rows = record_prefix_only(target, drafter, settings, *known, shared)
    elif parallel and drafter.history_free:
        rows = record_parallel(target, drafter, settings, *known, shared)
    else:
        rows = record_stepwise(target, drafter, settings, *known)
    order = beam = None
    if settings.tree:
        if parallel:
            order, beam = tree_order_parallel(target, drafter, settings, *known, shared)
        else:
            order, beam = tree_order_stepwise(target, drafter, settings, *known)
    return replace(rows, margin=None if sampled else margins, order=order, beam=beam)
