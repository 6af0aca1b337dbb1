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

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from real.decode.features import drafter_features
from real.draft import Drafter, check_grows
from real.drafters import parallel_form
from real.files import replace_json
from real.model.target import Target
from real.pair import Pair
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import Prompt, PromptOrigin, prompts_of
from real.record.rows import (
    IdleTarget,
    RecordedRows,
    SharedPass,
    assemble,
    join_traces,
    record_parallel,
    record_prefix_only,
    record_rejection,
    record_stepwise,
)
from real.record.sequences import (
    SequenceCache,
    blocks_of,
    default_batch,
    groups_of,
    target_sequence,
    write_block,
)
from real.record.settings import RecordError, Settings, card, describe
from real.record.tree_order import tree_order_parallel, tree_order_stepwise
from simspec import Trace, TraceError, TraceMeta, load_trace
from simspec.output.files import reraised

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]


class FolderClaim:
    """Claims a folder, which is made where it is missing, until `release` or the process ends.

    RecordError where another process has it. File systems without locks are used without.
    """

    def __init__(self, folder: Path):
        self.folder, self._handle = folder, -1
        while self._handle < 0:
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # removed by a recording that has just finished
                self._open()

    def _open(self) -> None:
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            _lock(handle, self.folder)
            if os.path.samestat(os.fstat(handle), os.stat(self.folder)):
                self._handle, handle = handle, -1
        finally:
            if handle >= 0:
                os.close(handle)

    def release(self) -> None:
        """Lets others have the folder; once more does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _lock(handle: int, folder: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordError(
            f"{folder} is in use by another process that makes this recording: "
            "wait for it, or name another --out"
        ) from None
    except OSError:
        return


@dataclass(frozen=True)
class RecordingFiles:
    """The files of a recording."""

    trace: Path  # the recording
    shard_size: int = 8  # sequences per shard
    sequence_cache: Path | None = None  # the target's sequences, for recordings of other drafters

    @property
    def shards(self) -> Path:
        """The folder of the shards while the recording is unfinished."""
        return self.trace.with_name(self.trace.name + ".parts")


class Shards:
    """Shards of a recording, each a valid trace written atomically, next to its settings.

    A folder with other settings is refused, and one that another job uses: RecordError. The first
    of several processes makes the folder for all, and removes it.
    """

    def __init__(
        self, files: RecordingFiles, settings: Settings, meta: TraceMeta,
        prompts: Sequence[Prompt], processes: Processes = ALONE
    ):  # fmt: skip
        self.files, self.settings, self.folder = files, settings, files.shards
        manifest = {
            "settings": asdict(settings),
            "meta": asdict(meta),
            "prompts": [p.token for p in prompts],
            "shard": files.shard_size,
        }
        manifest = json.loads(json.dumps(manifest))
        for key in ("argv", "git", "notes"):
            manifest["meta"].pop(key)
        self._claim = FolderClaim(self.folder) if processes.first else None
        try:
            self._begin(manifest)
        except BaseException:
            self.release()
            raise

    def _begin(self, manifest: dict) -> None:
        path = self.folder / "settings.json"
        if path.exists() and _read(path) != manifest:
            raise RecordError(
                f"{self.folder} holds a recording with other settings; "
                "finish it with those, or delete the folder"
            )
        if self._claim is None:
            if not path.exists():
                raise RecordError(
                    f"{self.folder}, which the first process makes, is not seen by another: "
                    "name an --out that all machines see"
                )
            return
        if not path.exists():  # killed while it was cleared: nothing vouches for these shards
            self._clear()
        replace_json(path, manifest)

    def release(self) -> None:
        """Lets another job go on with this recording."""
        if self._claim is not None:
            self._claim.release()

    @property
    def sequences(self) -> Path:
        """The cache of the target's sequences, where several are written at a time."""
        return self.folder / "sequences.json"

    def path(self, first: int) -> Path:
        """The shard whose first sequence is `first`."""
        return self.folder / f"{first:06d}.parquet"

    def load(self, first: int, group: Sequence[Prompt]) -> Trace:
        """The shard of `group`; RecordError if it is damaged or holds other sequences."""
        path = self.path(first)
        try:
            trace = load_trace(path)
        except TraceError as error:
            raise RecordError(
                f"{error}; delete this file and its sequences are recorded again"
            ) from None
        if (
            trace.K != self.settings.K
            or prompts_of(trace) != [p.token for p in group]
            or trace.sequence.tolist() != list(range(first, first + len(group)))
        ):
            raise RecordError(
                f"{path} holds other sequences than expected; "
                "delete this file and they are recorded again"
            )
        return trace

    def finish(self, trace: Trace) -> None:
        """Writes the whole recording and removes the shards."""
        whole = self.folder / "whole"  # among the shards: a killed write is cleared with them
        trace.save(whole)
        whole.replace(self.files.trace)
        self._remove()

    def remove_if_empty(self) -> None:
        """Removes the folder of a recording that failed before anything was done."""
        kept = any(self.folder.glob("*.parquet")) or any(self.folder.glob("sequences.json*"))
        if self._claim is not None and not kept:
            self._remove()

    def _remove(self) -> None:
        self._clear()
        self.folder.rmdir()

    def _clear(self) -> None:
        """Deletes all files, the settings last: shards without settings must not be resumed."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "settings.json"):
            path.unlink()


def _read(manifest: Path) -> dict:
    with reraised(RecordError, f"{manifest} is damaged", "delete its folder to record again"):
        return json.loads(manifest.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Recording:
    """A drafter with the target that it drafts for, and the files that its recording goes to.

    `target` has the taps of this drafter; several recordings share its decoder.
    """

    target: Target
    drafter: Drafter
    settings: Settings
    files: RecordingFiles
    meta: TraceMeta


def record_all(
    recordings: Sequence[Recording],
    prompts: Sequence[Prompt],
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> list[Trace]:
    """Records all prompts into the files of drafters of one target.

    A killed recording continues at its last whole shard.
    Each sequence is written once, and passed once through the target for all drafters that read
    such a pass. Each drafter has separate shards; rule, budget, end tokens, batch and decoder are
    those of all.

    Several `processes` share the work, on files that all of them see. The first merges the shards,
    with the content that one process alone would write; the others end with ShareDone.

    RecordError for shards with other settings or of another process, a damaged shard, or a sequence
    that cannot be recorded.
    """
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
    first: Recording, shards: Sequence[Shards], prompts: Sequence[Prompt], cache: SequenceCache,
    progress: Progress, processes: Processes
) -> None:  # fmt: skip
    """The target writes the blocks that shards are missing of; each process knows all of them."""
    size = first.files.shard_size
    for i, block in enumerate(blocks_of(first.settings, size, len(prompts))):
        paths = [own.path(start) for own in shards for start in block[::size]]
        if processes.has(i) and not all(path.exists() for path in paths):
            write_block(first.target, first.settings, prompts, block, cache, progress)
    processes.wait()
    cache.refresh()


def _record_missing(
    recordings: Sequence[Recording], shards: Sequence[Shards], prompts: Sequence[Prompt],
    groups: Sequence[range], cache: SequenceCache | None, progress: Progress
) -> None:  # fmt: skip
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
    missing: Sequence[tuple[Recording, Shards]], prompts: Sequence[Prompt], group: range,
    cache: SequenceCache | None, progress: Progress
) -> None:  # fmt: skip
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
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], sequence: int,
    cache: SequenceCache | None = None, shared: SharedPass | None = None, stepwise: bool = False
) -> RecordedRows:  # fmt: skip
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


def complete_settings(settings: Settings, pair: Pair, batch: int | None) -> Settings:
    """The settings with what the models determine."""
    if settings.tree:
        check_grows(pair.drafter, settings.tree[1])
    return replace(
        settings,
        end_tokens=pair.end_tokens,
        features=() if settings.rule.sampled else drafter_features(pair.drafter),
        batch=default_batch(pair.target) if batch is None else batch,
    )


def make_recording(
    pair: Pair, settings: Settings, prompts: Sequence[Prompt], files: RecordingFiles,
    origin: PromptOrigin
) -> Recording:  # fmt: skip
    """The drafter's part of a recording job; ValueError for sequences beyond a model's window."""
    pair.check_length(max(len(p.token) for p in prompts) + settings.budget)
    decoder = pair.target.decoder
    meta = describe(
        pair.name, pair.drafter, settings, prompts, pair.tokenizer_sha256, decoder.device,
        decoder.dtype
    )  # fmt: skip
    meta = replace(meta, chat=dict(origin.chat), drafter_sha256=pair.drafter_sha256)
    return Recording(pair.target, pair.drafter, settings, files, meta)


def record_to(
    out: Path, pair: Pair, prompts: Sequence[Prompt], settings: Settings, progress: Progress = quiet
) -> dict:
    """Records a trace with its data card next to it (`<out>.json`), and returns the card."""
    origin = PromptOrigin()
    recording = make_recording(pair, settings, prompts, RecordingFiles(out), origin)
    (trace,) = record_all([recording], prompts, progress)
    return write_card(out, trace, origin, len(prompts))


def write_card(out: Path, trace: Trace, origin: PromptOrigin, recorded: int) -> dict:
    """Writes the data card of a recording of `recorded` prompts next to it, and returns it."""
    described = card(out, trace)
    if origin.left_out is not None:
        described["prompts"] = asdict(origin.left_out) | {"recorded": recorded}
    replace_json(out.with_suffix(".json"), described)
    return described


def is_finished(recording: Recording, prompts: Sequence[Prompt]) -> bool:
    """Whether the recording is there, whole, with these settings on these prompts."""
    if not recording.files.trace.exists():
        return False
    trace = load_trace(recording.files.trace)
    wanted = replace(
        recording.meta, tasks=tuple(p.task for p in prompts), ids=tuple(p.id for p in prompts),
        argv=trace.meta.argv, git=trace.meta.git, notes=trace.meta.notes
    )  # fmt: skip
    return (
        trace.meta == wanted
        and prompts_of(trace) == [p.token for p in prompts]
        and set(trace.budget.tolist()) == {recording.settings.budget}
        and trace.sequence.tolist() == list(range(len(prompts)))
    )
