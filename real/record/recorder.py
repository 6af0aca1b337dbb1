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
from dataclasses import replace
from typing import cast

from real.draft import Drafter
from real.drafters import parallel_form
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record.assembly import assemble, join_traces
from real.record.idle_target import IdleTarget
from real.record.parallel import record_parallel
from real.record.parallel_tree_order import tree_order_parallel
from real.record.prefix_only import record_prefix_only
from real.record.rejection import record_rejection
from real.record.rows import RecordedRows
from real.record.sequence_block import block_of, write_block
from real.record.sequence_cache import SequenceCache
from real.record.settings import RecordError, Settings
from real.record.shards import RecordingFiles, Shards
from real.record.stepwise import record_stepwise
from real.record.target_sequence import target_sequence
from real.record.tree_order import tree_order_stepwise
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

    RecordError for shards with other settings, a damaged shard, or a sequence that cannot be
    recorded.
    """
    cache = None
    if files.sequence_cache is not None:
        cache = SequenceCache(files.sequence_cache, settings, meta, target)
    shards = Shards(files, settings, meta, prompts)
    traces = []
    try:
        if settings.batch > 1 and cache is None:
            cache = SequenceCache(shards.sequences, settings, meta, target)
        for first in range(0, len(prompts), files.shard_size):
            group = prompts[first : first + files.shard_size]
            if not shards.path(first).exists():
                if settings.batch > 1 and cache is not None:
                    block = block_of(first, settings, files.shard_size, len(prompts))
                    write_block(target, settings, prompts, block, cache, progress)
                rows = []
                for sequence, prompt in enumerate(group, first):
                    try:
                        rows.append(
                            record_sequence(
                                target, drafter, settings, prompt.token, sequence, cache
                            )
                        )
                    except ValueError as error:
                        raise RecordError(
                            f"sequence {sequence} (prompt {prompt.id!r}) "
                            f"cannot be recorded: {error}"
                        ) from error
                    progress("recording", sequence + 1, len(prompts))
                if cache is not None:
                    cache.save()
                assemble(rows, group, first, settings, meta).save(shards.path(first))
            traces.append(shards.load(first, group))
            progress("recording", first + len(group), len(prompts))
        trace = join_traces(traces, meta)
    except BaseException:
        shards.remove_if_empty()
        raise
    shards.finish(trace)
    return trace


def record_sequence(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    sequence: int,
    cache: SequenceCache | None = None,
    stepwise: bool = False,
) -> RecordedRows:
    """The rows of the target's sequence after `prompt`, whose draw address is `sequence`.

    A cached sequence is read, another one is added to `cache`. `stepwise` forces the definition.
    """
    written = cache.find(sequence, prompt) if cache else None
    if written is None:
        written = target_sequence(target, settings, prompt, sequence)
        if cache:
            cache.add(sequence, prompt, written)
    if settings.rule.sampled:
        return record_rejection(target, drafter, settings, prompt, written)
    tokens, margins = written
    parallel = parallel_form(drafter) is not None and not stepwise
    known = prompt, tokens, sequence
    if drafter.prefix_only and drafter.lm is not None and not stepwise:
        rows = record_prefix_only(target, drafter, settings, *known)
    elif parallel and drafter.history_free:
        rows = record_parallel(target, drafter, settings, *known)
    elif type(drafter) is PromptLookupDrafter and not stepwise:  # it reads tokens only
        idle = cast(Target, IdleTarget(target.decoder))
        rows = record_stepwise(idle, drafter, settings, *known)
    else:
        rows = record_stepwise(target, drafter, settings, *known)
    order = beam = None
    if settings.tree:
        tree_order = tree_order_parallel if parallel else tree_order_stepwise
        order, beam = tree_order(target, drafter, settings, *known)
    return replace(rows, margin=margins, order=order, beam=beam)
