"""A day's work on a GPU that is lent for minutes: simspec commands in order, each of which resumes.

    python tools/gpu.py --list
    python tools/gpu.py --minutes 9 --out $OUT            # again, until it says that all are done
    python tools/gpu.py --toy --work out/toy --out out/toy/home --minutes 5

A step that the minutes end is stopped by SIGINT, which all commands keep their work at, and goes on
in the next call. After each step its files are copied to --out in pieces that a transfer takes;
`cat NAME.tar.xz.* | tar xJ` puts them together. Models go in the same way:
`split -b 15900000 model.gguf lab/model.gguf.`, a few pieces a call, and `cat` there.

A line of a list is `NAME | COMMAND without simspec | FILES to take home, relative to --work`.
"""

import argparse
import hashlib
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

PIECE = 15_900_000  # bytes
GRACE = 20.0  # seconds that a stopped command has to keep its work

STEPS = """
drafter  | train eagle {text} --target {target} {training} --out {work} --work {work}/training --device {device} | eagle
greedy   | record {prompts} {models} --drafter eagle --rule greedy -k {K} --budget {budget} {sizes} --device {device} --engine {engine} --out {work}/greedy.parquet | greedy.parquet
coupled  | record {prompts} {models} --drafter eagle --rule coupled --temperature 0.8 -k {K} --budget {budget} {sizes} --device {device} --engine {engine} --out {work}/coupled.parquet | coupled.parquet
costs    | measure --for {work}/greedy.parquet --for {work}/coupled.parquet {models} --device {device} --engine {engine} {timing} | greedy.cost.json coupled.cost.json
equal    | run {work}/greedy.parquet {models} --policy beta_ts --cost {work}/greedy.cost.json --prompts {few} --device {device} --engine {engine} --save {work}/equal.jsonl | equal.jsonl
audited  | audit {work}/equal.jsonl {models} --device {device} |
forced   | run {work}/coupled.parquet {models} --teacher-force --policy fixed:3 --prompts {few} --device {device} --dtype bfloat16 |
compared | run {work}/greedy.parquet {models} --compare --policy fixed:2 --policy beta_ts --cost {work}/greedy.cost.json --prompts {many} --repeats {repeats} --device {device} --dtype {dtype} --engine {engine} --save {work}/compared.json | compared.json
"""  # noqa: E501

FULL = {
    "text": "lab/learn/text.jsonl.xz",
    "target": "{work}/target",
    "models": "--models {work}",
    "training": "--prompts lab/learn/prompts.jsonl --draft-vocab 8192 --minutes 5",
    "prompts": "lab/prompts.jsonl",
    "sizes": "--per-task 24 --longest 600",
    "timing": "--rows 48 --context 192",
    "K": "16", "budget": "128", "few": "12", "many": "20", "repeats": "5",
    "device": "cuda", "engine": "fast", "dtype": "bfloat16",
}  # fmt: skip
"""What the steps are told; the target is `{work}/target`, as `simspec import gguf` makes it."""

TOY = FULL | {
    "prompts": "{work}/prompts.jsonl",
    "models": "",
    "sizes": "--longest 100",
    "timing": "--seconds 2",
    "K": "3", "budget": "8", "few": "2", "many": "2", "repeats": "2",
    "device": "cpu", "engine": "eager", "dtype": "float32",
}  # fmt: skip
"""The same with the embedded models, which are not trained."""


@dataclass(frozen=True)
class Step:
    """One command: its name, its words after simspec, and what of --work to take home."""

    name: str
    command: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def key(self) -> str:
        """Changes with the command: a step of another command is not done."""
        return hashlib.sha256("\0".join(self.command).encode()).hexdigest()[:16]


def read_steps(text: str, told: dict[str, str], work: Path) -> list[Step]:
    """The steps of a list; ValueError for a line that is none, and for a name given twice."""
    told = {name: value.format(work=work) for name, value in told.items()} | {"work": str(work)}
    steps: list[Step] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, *rest = (part.strip() for part in line.split("|"))
        if len(rest) != 2 or not name or name in [step.name for step in steps]:
            raise ValueError(f"{line[:60]!r} is no new step; expected NAME | COMMAND | FILES")
        command, files = (part.format(**told) for part in rest)
        steps.append(Step(name, tuple(shlex.split(command)), tuple(files.split())))
    return steps


def is_done(step: Step, work: Path) -> bool:
    """Whether a call has ended this very command."""
    mark = work / "done" / step.name
    return mark.is_file() and mark.read_text() == step.key


def run(step: Step, work: Path, deadline: float) -> int | None:
    """The command's exit code; None where it was stopped at the deadline. Output goes to a log."""
    log = work / "logs" / f"{step.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "simspec.cli", *step.command], stdout=output, stderr=output
        )
        try:
            return process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return None


def take_home(step: Step, work: Path, out: Path) -> list[Path]:
    """Writes the step's files and its log as pieces of one archive; the pieces."""
    archive = work / f"{step.name}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=3) as tar:
        for name in (f"logs/{step.name}.txt", *step.files):
            if (work / name).exists():
                tar.add(work / name, name)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{archive.name}.*"):
        old.unlink()
    pieces = []
    with open(archive, "rb") as file:
        while data := file.read(PIECE):
            pieces.append(out / f"{archive.name}.{len(pieces):03d}")
            pieces[-1].write_bytes(data)
    archive.unlink()
    return pieces


def run_all(steps: list[Step], work: Path, out: Path, minutes: float) -> int:
    """Runs what is not done; 0 where all is, 3 where the minutes ended, else the code of a step
    that failed."""
    deadline = time.monotonic() + 60 * minutes - GRACE
    (work / "done").mkdir(parents=True, exist_ok=True)
    for step in steps:
        if is_done(step, work):
            continue
        if time.monotonic() >= deadline:
            return _left(steps, work)
        begin = time.monotonic()
        code = run(step, work, deadline)
        if code == 0:
            (work / "done" / step.name).write_text(step.key)
        pieces = take_home(step, work, out)
        size = sum(piece.stat().st_size for piece in pieces) / 1e6
        said = {None: "stopped, goes on next time", 0: "done"}.get(code, f"FAILED with {code}")
        seconds = time.monotonic() - begin
        sent = f"{len(pieces)} pieces, {size:.1f} MB"
        print(f"{step.name}: {said} after {seconds:.0f} s; {sent}", flush=True)
        if code is None:
            return _left(steps, work)
        if code:
            log = (work / "logs" / f"{step.name}.txt").read_text(errors="replace")
            print("\n".join(log.splitlines()[-12:]))
            return code
    print("all steps are done")
    return 0


def _left(steps: list[Step], work: Path) -> int:
    left = [step.name for step in steps if not is_done(step, work)]
    print(f"{len(left)} steps left: {', '.join(left)}; give the same command again")
    return 3


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("out/gpu"), help="outlives the calls")
    parser.add_argument("--out", type=Path, default=None, help="pieces; default: WORK/home")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--steps", type=Path, help="another list")
    parser.add_argument("--toy", action="store_true", help="small, with the embedded models, CPU")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    given = parser.parse_args(arguments)
    work = given.work
    told = TOY if given.toy else FULL
    text = given.steps.read_text() if given.steps else STEPS
    if given.toy and not given.steps:  # the embedded drafter is trained
        text = "\n".join(line for line in text.splitlines() if not line.startswith("drafter "))
    steps = read_steps(text, told, work)
    for step in steps if given.list else ():
        state = "done" if is_done(step, work) else "to do"
        print(f"{step.name} ({state}): simspec {shlex.join(step.command)}")
    if given.list:
        return 0
    if given.toy:
        work.mkdir(parents=True, exist_ok=True)
        rows = (f'{{"task": "toy", "text": "Number {i} of the list is"}}\n' for i in range(4))
        (work / "prompts.jsonl").write_text("".join(rows))
    return run_all(steps, work, given.out or work / "home", given.minutes)


if __name__ == "__main__":
    sys.exit(main())
