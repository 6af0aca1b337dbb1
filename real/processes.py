"""The processes of one job, which torchrun or another launcher of its kind has started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed

from simspec.output.files import reraised

LAUNCHED = "RANK", "WORLD_SIZE", "LOCAL_RANK"
"""Environment variables of a launched process; torch reads those of its address."""
START, WAIT = timedelta(minutes=10), timedelta(days=30)
"""How long the processes may take to find each other, and then to end a share."""


class ShareDone(Exception):
    """The share of a process other than the first is done; the first goes on alone."""


@dataclass(frozen=True)
class Processes:
    """This process among those of its job."""

    # rank, count: its number from 0, and how many there are
    rank: int = 0
    count: int = 1
    local: int = 0  # its number on this machine

    @property
    def first(self) -> bool:
        """Whether it is the one that writes what the job has once."""
        return self.rank == 0

    def has(self, part: int) -> bool:
        """Whether part number `part` of the work is in this process's share."""
        return part % self.count == self.rank

    def wait(self) -> None:
        """Returns when all processes are here; ValueError where one has ended."""
        if self.count == 1:
            return
        try:
            torch.distributed.monitored_barrier(timeout=WAIT)
        except RuntimeError:
            raise ValueError(
                f"process {self.rank} of {self.count} stops, since another one has ended early: "
                "give the same command again, what is whole is kept"
            ) from None

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """The others run the body once the first has, and find the files that it leaves."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def leave_to_first(self) -> None:
        """Waits for all shares; ShareDone in every process but the first."""
        self.wait()
        if not self.first:
            raise ShareDone

    def device(self, name: str) -> str:
        """The device of this process: the GPU of its local number, where `name` is cuda."""
        return f"cuda:{self.local}" if name == "cuda" and self.count > 1 else name


ALONE = Processes()


@contextmanager
def launched_processes() -> Iterator[Processes]:
    """The processes that a launcher started this one among; ALONE without a launcher.

    The body ends at `ShareDone`. ValueError for environment variables that cannot be.
    """
    processes = _from_environment()
    if processes.count == 1:
        yield processes
        return
    what = f"process {processes.rank} of {processes.count} does not reach the others"
    remedy = "start all of them by one torchrun"
    with reraised(ValueError, what, remedy, (RuntimeError, ValueError)):
        torch.distributed.init_process_group("gloo", timeout=START)
    try:
        yield processes
    except ShareDone:
        pass
    finally:
        torch.distributed.destroy_process_group()


def _from_environment() -> Processes:
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return ALONE
    remedy = "start the processes by torchrun, or unset WORLD_SIZE"
    with reraised(ValueError, f"{', '.join(LAUNCHED)} are not as torchrun sets them", remedy):
        rank, count, local = (int(os.environ[name]) for name in LAUNCHED)
        if not 0 <= local <= rank < count:  # which would wait for processes that never come
            raise ValueError(f"RANK {rank}, WORLD_SIZE {count}, LOCAL_RANK {local}")
    return Processes(rank, count, local)
