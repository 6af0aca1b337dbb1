"""A fuzzer of everything that commands read: damaged files give documented errors, soon and small.

| a file fails where its reader | |
| --- | --- |
| raises | anything but a ValueError of one line, of at most 1,000 characters |
| takes | over 2 s of processor time, or does not return within the wall limit |
| needs | over 10 times the file and its kind's `room` of memory |
| dies | by a signal, or an abort of a library |

File n of a seed is always the same, so that pieces of the range may run anywhere, at the same time:

    python tests/fuzz.py --files 100000 --jobs 8
    python tests/fuzz.py --first 4711 --files 1 --out out/fuzz
"""

import argparse
import importlib
import json
import multiprocessing
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

PROCESSOR_SECONDS = 2.0
WALL_SECONDS = 30.0
"""A process that says nothing for so long hangs; on a busy machine this is longer than its 2 s."""
START_SECONDS = 600.0
"""Of the imports, and of the valid files."""
TIMES_THE_FILE = 10
LONGEST_LINE = 1000
SPARE = 4 << 30
"""Bytes that a reader may take before the machine is protected from it."""
MEMORY_WORDS = re.compile("MemoryError|Unable to allocate|allocate memory|bad_alloc|out of memory")


@dataclass(frozen=True)
class Outcome:
    """What became of one file; `fault` is "" where all is well."""

    number: int
    kind: str
    bytes: int
    refused: bool
    seconds: float
    memory: int
    fault: str


class PeakMemory:
    """Bytes that this process needed at most since `begin`, beyond what it had then."""

    def begin(self) -> None:
        with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts anew
        self.before = self._read("VmRSS")

    def grown(self) -> int:
        return max(0, self._read("VmHWM") - self.before)

    @staticmethod
    def _read(name: str) -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


class Fuzzer:
    """Makes file `number` of a seed and reads it, in folders below `work`."""

    def __init__(self, readers: str, seed: int, work: Path, only: str = ""):
        kinds = importlib.import_module(readers).KINDS
        self.kinds = {name: kind for name, kind in kinds.items() if only in name}
        self.seed, self.work = seed, work
        self.samples: dict[str, dict[str, bytes]] = {}

    def samples_of(self, name: str) -> Mapping[str, bytes]:
        """The valid files of a kind; its reader reads each once, so that it has all it imports."""
        if name not in self.samples:
            kind, folder = self.kinds[name], self.folder(name)
            folder.mkdir(parents=True)
            kind.prepare(folder)
            chosen = kind.damaged or sorted(path.name for path in folder.iterdir())
            self.samples[name] = {file: (folder / file).read_bytes() for file in chosen}
            for file in chosen:
                self._read(name, file)
        return self.samples[name]

    def folder(self, name: str) -> Path:
        return self.work / re.sub(r"\W+", "_", name)

    def made(self, number: int) -> tuple[str, str, bytes]:
        """(kind, file name, content) of a file."""
        draw = Random(f"{self.seed}:{number}")
        weights = [kind.weight for kind in self.kinds.values()]
        (name,) = draw.choices(list(self.kinds), weights)
        samples = self.samples_of(name)
        file = draw.choice(sorted(samples))
        return name, file, self.kinds[name].forge(samples[file], draw)

    def examine(self, number: int) -> Outcome:
        """Makes a file, reads it and puts the valid one back."""
        name, file, content = self.made(number)
        path, memory, fault, refused = self.folder(name) / file, PeakMemory(), "", False
        path.write_bytes(content)
        memory.begin()
        begin = time.process_time()
        try:
            self._read(name, file)
        except ValueError as error:
            refused, fault = True, _undocumented(str(error))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            refused, fault = True, f"{type(error).__name__}: {str(error)[:300]}"
        seconds, grown = time.process_time() - begin, memory.grown()
        limit = TIMES_THE_FILE * len(content) + self.kinds[name].room
        if not fault and seconds > PROCESSOR_SECONDS:
            fault = f"it took {seconds:.1f} s"
        if not fault and grown > limit:
            fault = f"it took {grown >> 20} MiB for a file of {len(content)} bytes"
        for other in self.folder(name).iterdir():  # what a reader writes beside its file
            if other.name not in self.samples[name] and not self.kinds[name].damaged:
                shutil.rmtree(other) if other.is_dir() else other.unlink()
        path.write_bytes(self.samples[name][file])
        return Outcome(number, name, len(content), refused, seconds, grown, fault)

    def _read(self, name: str, file: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # numpy would print its place
            self.kinds[name].read(self.folder(name) / file)


def _undocumented(message: str) -> str:
    """What is wrong with the message of an error."""
    if "\n" in message or len(message) > LONGEST_LINE or not message.strip():
        return f"a message of {message.count(chr(10)) + 1} lines, {len(message)} characters"
    if MEMORY_WORDS.search(message):
        return f"memory ran out first: {message[:200]}"
    return ""


def work_through(arguments: argparse.Namespace, numbers: range, answers: Any) -> None:
    """The process that reads: None once it has begun, then the outcome of each file."""
    with tempfile.TemporaryDirectory() as work:
        fuzzer = Fuzzer(arguments.readers, arguments.seed, Path(work), arguments.only)
        for name in fuzzer.kinds:
            fuzzer.samples_of(name)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (size + SPARE, size + SPARE))
        answers.send(None)
        for number in numbers:
            answers.send(fuzzer.examine(number))


def outcomes(arguments: argparse.Namespace, numbers: range) -> Iterator[Outcome]:
    """The outcomes of these files, from processes that are replaced where they die or hang."""
    spawn, left = multiprocessing.get_context("spawn"), numbers
    while left:
        answers, theirs = spawn.Pipe(duplex=False)
        worker = spawn.Process(target=work_through, args=(arguments, left, theirs), daemon=True)
        worker.start()
        theirs.close()
        wall, fault = START_SECONDS, ""
        try:
            while left and not fault:
                if not answers.poll(wall):
                    fault = f"no answer within {wall:g} s"
                elif (outcome := answers.recv()) is not None:
                    yield outcome
                    left = left[1:]
                wall = arguments.wall
        except (EOFError, OSError):  # in the middle of an answer
            worker.join()
            fault = f"its process ended with {worker.exitcode}"
        finally:
            worker.kill()
            worker.join()
        if left and wall == START_SECONDS:
            raise SystemExit(f"the reading process cannot start: {fault}")
        if left:
            yield Outcome(left[0], "unknown", 0, False, 0.0, 0, fault)
            left = left[1:]


def fuzz(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the files of `arguments`, and returns the counts and the faults."""
    everything = range(arguments.first, arguments.first + arguments.files)
    pieces = [everything[job :: arguments.jobs] for job in range(arguments.jobs)]
    began, total = time.perf_counter(), 0
    counts: dict[str, Counter] = {}
    faults: list[dict[str, Any]] = []

    def run(piece: range) -> None:
        nonlocal total
        for outcome in outcomes(arguments, piece) if piece else ():
            count = counts.setdefault(outcome.kind, Counter())
            count["files"] += 1
            count["refused"] += outcome.refused
            total += 1
            if outcome.fault:
                faults.append(asdict(outcome))
                print(f"{outcome.number} ({outcome.kind}): {outcome.fault}", file=sys.stderr)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, pieces))
    return {
        "seed": arguments.seed,
        "first": arguments.first,
        "files": total,
        "seconds": round(time.perf_counter() - began, 1),
        "faults": sorted(faults, key=lambda fault: fault["number"]),
        "kinds": {name: dict(counts[name]) for name in sorted(counts)},
    }


def save(arguments: argparse.Namespace, faults: list[dict[str, Any]]) -> None:
    """Writes the files of the faults, made once more."""
    with tempfile.TemporaryDirectory() as work:
        fuzzer = Fuzzer(arguments.readers, arguments.seed, Path(work), arguments.only)
        arguments.out.mkdir(parents=True, exist_ok=True)
        for fault in faults:
            name, file, content = fuzzer.made(fault["number"])
            (arguments.out / f"{fault['number']}-{file}").write_bytes(content)


def parse(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=100_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="folder for the files that fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose names hold this text")
    parser.add_argument("--readers", default="fuzz_readers", help="the module of kinds")
    parser.add_argument("--wall", type=float, default=WALL_SECONDS, help="seconds of silence")
    return parser.parse_args(given)


if __name__ == "__main__":
    arguments = parse(sys.argv[1:])
    result = fuzz(arguments)
    if arguments.out:
        save(arguments, result["faults"])
    print(json.dumps(result, indent=1))
    sys.exit(bool(result["faults"]))
