"""Blocks of sequences that are written together, and found again when a recording continues."""

from collections.abc import Sequence

from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record.sequence_cache import SequenceCache
from real.record.settings import RecordError, Settings
from real.record.target_sequence import SequenceError, target_sequences

BATCHES_PER_BLOCK = 4
"""Ended sequences are replaced within a block, so only its last batch is partly empty."""


def blocks_of(settings: Settings, shard_size: int, sequences: int) -> list[range]:
    """The sequences that are written together: whole shards, some batches long.

    Blocks depend neither on the number of processes nor on where a recording was interrupted, so
    nor does the rounding.
    """
    return groups_of(-(-BATCHES_PER_BLOCK * settings.batch // shard_size) * shard_size, sequences)


def groups_of(size: int, sequences: int) -> list[range]:
    """The sequences in groups of so many, the last of what is left."""
    return [range(start, min(start + size, sequences)) for start in range(0, sequences, size)]


def write_block(
    target: Target,
    settings: Settings,
    prompts: Sequence[Prompt],
    block: range,
    cache: SequenceCache,
    progress: Progress = quiet,
) -> None:
    """Writes and saves the sequences of a block of the prompts that are not in the cache.

    RecordError naming the prompt of a sequence that cannot be written.
    """
    missing = [i for i in block if cache.find(i, prompts[i].token) is None]
    if not missing:
        return

    def overall(label: str, done: int, total: int, note: str = "") -> None:
        progress(label, block.stop - len(missing) + done, len(prompts), note)

    tokens = [prompts[i].token for i in missing]
    try:
        sequences = target_sequences(target, settings, tokens, missing, overall)
    except SequenceError as error:
        raise RecordError(
            f"sequence {error.address} (prompt {prompts[error.address].id!r}) cannot be recorded: "
            f"{error.reason}"
        ) from error
    for i, written in zip(missing, sequences):
        cache.add(i, prompts[i].token, written)
    cache.save()
