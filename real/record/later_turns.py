"""Later turns of a recording: each follows the target's own answers to the earlier ones."""

from collections.abc import Sequence

from real.model.target import Target
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import Conversation, LeftOut, Prompt
from real.record.sequence_cache import SequenceCache
from real.record.settings import Settings
from real.record.target_sequence import target_sequences

SAVED_BATCHES = 4
"""Batches of answers that are written between two saves."""


def add_later_turns(
    target: Target,
    settings: Settings,
    prompts: Sequence[Prompt],
    conversation: Conversation,
    cache: SequenceCache,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> tuple[list[Prompt], LeftOut]:
    """All prompts with those of later turns behind them, turn by turn: (prompts, left out).

    The answers are the sequences that the recording of these prompts holds: they are written into
    `cache` at the same draw addresses, where the recorder finds them. Several `processes` share
    them.
    """
    every, left_out = list(prompts), LeftOut()
    active: list[tuple[Prompt, int, list[str]]] = [
        (p, i, []) for i, p in enumerate(prompts) if len(p.turns) > 1
    ]
    while active:
        places, size = [place for _, place, _ in active], SAVED_BATCHES * settings.batch
        for i, start in enumerate(range(0, len(places), size)):
            if processes.has(i):
                _write(target, settings, every, places[start : start + size], cache)
            progress("answering", min(start + size, len(places)), len(places))
        processes.wait()
        cache.refresh()
        following = []
        for first, place, answers in active:
            written = cache.find(place, every[place].token)
            assert written is not None  # it was written above
            answers.append(conversation.answer(written[0].tolist(), settings.end_tokens))
            prompt, left = conversation.follow(first, answers)
            left_out += left
            if prompt is not None:
                following.append((first, len(every), answers))
                every.append(prompt)
        active = [entry for entry in following if len(entry[2]) + 1 < len(entry[0].turns)]
    return every, left_out


def _write(
    target: Target,
    settings: Settings,
    prompts: Sequence[Prompt],
    places: Sequence[int],
    cache: SequenceCache,
) -> None:
    """Writes the missing ones of the sequences at these places, and saves them."""
    missing = [i for i in places if cache.find(i, prompts[i].token) is None]
    tokens = [prompts[i].token for i in missing]
    for i, written in zip(missing, target_sequences(target, settings, tokens, missing)):
        cache.add(i, prompts[i].token, written)
    cache.save()
