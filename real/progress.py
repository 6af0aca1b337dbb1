"""Progress of long jobs: one callback for all of them."""

from typing import Protocol


class Progress(Protocol):
    """Receives how far a job is: `done` of `total` steps of `label`, and a short `note`.

    A job may stop where its callback raises.
    """

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None: ...


def quiet(label: str, done: int, total: int, note: str = "") -> None:
    """Reports nothing."""


def relabel(progress: Progress, new_label: str) -> Progress:
    """Reports a job's steps under `new_label` in place of the job's own."""

    def relabeled(label: str, done: int, total: int, note: str = "") -> None:
        progress(new_label, done, total, note)

    return relabeled
