"""What runs when a GPU is lent for minutes: simspec commands in order of value a minute.

    python tools/gpu.py --list                      # name, state, predicted minutes, command
    python tools/gpu.py --minutes 9 --work /tmp/gpu --out $OUT
    python tools/gpu.py --toy --minutes 5           # all of it on a CPU, with small things

Give the same command again until all are done. A step that the minutes or a signal end is stopped
by SIGTERM and goes on in the next call; one that fails is tried once more there. After each step
results, logs and states go to --out in pieces that a transfer takes; `cat results.tar.gz.* | tar xz
-C WORK` puts them back on the next machine.

Half of a first lease was lost waiting. A call carries 64 MB, this tree included: the first brings
vLLM, copies the tree to /tmp and starts the list there: `setsid ... --wait --minutes 13 &`. Without
the tree (`git sparse-checkout set tools`) the next follow at once, with a piece of weights each,
and copy WORK/home to $OUT. SmolLM2's GGUF has 98 MB, the pair 26 pieces; once whole, they are
imported by `simspec import gguf` and `tools/fetch_coder.py models/coder`.

Minutes are predicted from an H200: engines are up 105 s after their start, four together 125 s; K =
0 to 7 starts seven, the first one alone: 105 + 2 x 125 s. 60 steps of three batches take 1.5 s; a
plain step of SmolLM2 1.8 ms, of the pair 2.2 ms by its bytes.
"""

import io
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
from argparse import ArgumentParser, RawTextHelpFormatter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PIECE = 15_900_000  # bytes
STOP = threading.Event()  # a signal ends the call
GRACE = 20.0  # seconds that a stopped command has to keep its work

# NAME | PREDICTED MINUTES | NEEDED FILES | [VARIABLE=VALUE] COMMAND | FILES of --work
STEPS = """
ngram | 6.5 | | VLLM_USE_V2_MODEL_RUNNER=0 engine measure vllm --model {shape} --drafter ngram {deep} {all_batches} --out {work}/ngram.cost.json | ngram.cost.json*
tree-costs | 1 | models/smollm2/target/card.json | measure --drafter eagle --depth {depth} {real_small} {timing} --out {work}/tree.cost.json | tree.cost.json
trees | 1.5 | models/smollm2/target/card.json | run {trees} {contest} --cost {work}/tree.cost.json {real_small} --save {work}/trees.json | trees.json
pair-greedy | 2.5 | {pair} | record {recorded} --rule greedy --depth {depth} --out {work}/pair-greedy.parquet | pair-greedy.*
pair-costs | 1 | {pair} | measure --for {work}/pair-greedy.parquet {real_pair} {timing} | pair-greedy.cost.json
pair-run | 2.5 | {pair} | run {work}/pair-greedy.parquet {contest} --policy fixed:4 --policy confidence:0.6 --policy cost_ts --cost {work}/pair-greedy.cost.json {real_pair} --save {work}/pair-run.json | pair-run.json
model-1 | 3.5 | {pair} | engine run vllm {served} {drafter} {asked} --out {work}/model-1.rows.jsonl | model-1.rows.jsonl
model-cost | 4 | {pair} | engine measure vllm {served} {drafter} {timed} --out {work}/model.cost.json | model.cost.json*
model-1-compared | 0.2 | {pair} | engine compare {work}/model-1.rows.jsonl --cost {work}/model.cost.json --recording {work}/pair-greedy.parquet |
eagle3 | 8.5 | | engine measure vllm --model {shape} --drafter eagle3 {deep} {contexts} --out {work}/eagle3.cost.json | eagle3.cost.json*
pair-coupled | 2.5 | {pair} | record {recorded} --rule coupled --temperature 0.8 --depth {depth} --out {work}/pair-coupled.parquet | pair-coupled.*
ngram-1 | 3.5 | {pair} | engine run vllm {served} {asked} --out {work}/ngram-1.rows.jsonl | ngram-1.rows.jsonl
ngram-cost | 4 | {pair} | engine measure vllm {served} {timed} --out {work}/pair-ngram.cost.json | pair-ngram.cost.json*
ngram-1-compared | 0.2 | {pair} | engine compare {work}/ngram-1.rows.jsonl --cost {work}/pair-ngram.cost.json --recording {work}/pair-greedy.parquet |
model-8 | 2.5 | {pair} | engine run vllm {served} {drafter} {asked} {many} --out {work}/model-8.rows.jsonl | model-8.rows.jsonl
model-8-compared | 0.2 | {pair} | engine compare {work}/model-8.rows.jsonl --cost {work}/model.cost.json --recording {work}/pair-greedy.parquet |
ngram-8 | 2.5 | {pair} | engine run vllm {served} {asked} {many} --out {work}/ngram-8.rows.jsonl | ngram-8.rows.jsonl
ngram-8-compared | 0.2 | {pair} | engine compare {work}/ngram-8.rows.jsonl --cost {work}/pair-ngram.cost.json --recording {work}/pair-greedy.parquet |
async | 6 | | engine measure vllm --model {shape} --drafter eagle3 {usual} --fast --out {work}/async.cost.json | async.cost.json*
qwen | 6 | | engine measure vllm --model {second} --drafter eagle3 {usual} --out {work}/qwen.cost.json | qwen.cost.json*
"""  # noqa: E501

# Names in the steps: on a GPU / small, with the embedded models, or SmolLM2 as the pair
TOLD = """
shape | llama-3.1-8b / real/tiny/target/config.json
second | qwen3-8b / real/tiny/target/config.json
deep | --depth 7 --repeats 4 / --depth 2 --repeats 1
batches | --recording random:1024 --concurrent 1 --concurrent 8 --concurrent 64 / --recording random:48 --concurrent 1 --concurrent 2
all_batches | {batches} --concurrent 2 --concurrent 16 --concurrent 32 / {batches}
usual | --depth 3 --repeats 4 {batches} / --depth 1 --repeats 1 {batches}
contexts | --recording random:1024,4096 --concurrent 1 --concurrent 2 --concurrent 8 --concurrent 16 --concurrent 32 / --recording random:48,96
fast | --device cuda --dtype bfloat16 --engine fast / --threads 1
real_small | --models models/smollm2 --weights traces/smollm2/weights/eagle {fast} / {fast}
trees | traces/smollm2/greedy/eagle.parquet / traces/tiny-eagle-greedy.parquet
depth | 12 / 8
timing | --rows 63 --seconds 40 / --rows 8 --seconds 1
contest | --compare --rival none --prompts 24 --budget 64 --repeats 5 --policy fixed:2 --policy static:2x1 --policy static:eagle-25 --policy optimal_tree --policy cape / --compare --rival none --prompts 2 --budget 8 --repeats 2 --policy fixed:1 --policy static:2x1 --policy optimal_tree:4 --policy cape:1,k=2
pair | models/coder/target/card.json models/coder/model/card.json / models/smollm2/target/card.json
own | --models models/coder / --target models/smollm2/target --weights models/smollm2/target
recorded | traces/coder/prompts.jsonl {own} --per-task 22 --budget 192 --device cuda / traces/smollm2/prompts.jsonl {own} --per-task 2 --longest 300 --budget 32
real_pair | {own} {fast} / {own} {fast}
served | --dtype bfloat16 --recording {work}/pair-greedy.parquet --model models/coder/target / --dtype bfloat16 --recording {work}/pair-greedy.parquet --model models/smollm2/target --threads 2
drafter | --drafter models/coder/model / --drafter models/smollm2/target
asked | -k 0 -k 1 -k 2 -k 3 -k 4 -k 5 -k 6 -k 7 -k 8 --prompts 24 --budget 96 --repeats 2 / -k 0 -k 2 --prompts 4 --budget 32 --repeats 2
timed | --depth 8 --prompts 8 --budget 48 --repeats 1 --concurrent 1 --concurrent 8 / --depth 2 --prompts 4 --budget 16 --repeats 3 --concurrent 1 --concurrent 2
many | --concurrent 8 / --concurrent 2
"""  # noqa: E501


@dataclass(frozen=True)
class Step:
    """A line of the list."""

    name: str
    minutes: float
    needs: tuple[str, ...]
    variables: tuple[str, ...]
    command: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def words(self) -> str:
        """The command as a shell takes it."""
        return shlex.join((*self.variables, "simspec", *self.command))

    @property
    def missing(self) -> str:
        """Needed files that are not here."""
        return ", ".join(name for name in self.needs if not Path(name).exists())

    def state(self, work: Path) -> str:
        """to do, done, failed, or failed twice; another command's state does not count."""
        mark = work / "states" / self.name
        state, _, words = (mark.read_text() if mark.is_file() else "").partition("\n")
        return state if words == self.words else "to do"


def read_steps(text: str, toy: bool, work: Path) -> list[Step]:
    """The steps of a list; ValueError for a line that is none, and for a name given twice."""
    told, steps = {"work": str(work)}, list[Step]()
    for name, values in (line.split(" | ") for line in TOLD.strip().splitlines()):
        told[name] = values.split(" / ")[toy].format(**told)
    for line in filter(None, map(str.strip, text.splitlines())):
        name, *rest = (part.strip() for part in line.split("|"))
        if len(rest) != 4 or not name or name in [step.name for step in steps]:
            raise ValueError(f"{line[:60]!r} is no new step; expected five parts")
        needs, command, files = (tuple(part.format(**told).split()) for part in rest[1:])
        begin = next(i for i, word in enumerate([*command, ""]) if "=" not in word)
        steps.append(Step(name, float(rest[0]), needs, command[:begin], command[begin:], files))
    return steps


def run(step: Step, work: Path, deadline: float) -> int | None:
    """The command's exit code; None where the deadline or a signal stopped it. It has a log."""
    variables = os.environ | dict(word.split("=", 1) for word in step.variables)
    command = [sys.executable, "-m", "simspec.cli", *step.command]
    with open(work / "logs" / f"{step.name}.txt", "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
    while (code := process.poll()) is None and time.monotonic() < deadline and not STOP.is_set():
        STOP.wait(0.1)
    if code is None:
        process.terminate()  # unlike SIGINT, never ignored by what a shell starts in the background
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        process.kill()
    return code


def take_home(steps: list[Step], work: Path, out: Path) -> float:
    """Writes files, logs and states of all steps as pieces of one archive; its MB."""
    names = ["logs/*", "states/*", *(name for step in steps for name in step.files)]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for path in sorted({path for name in names for path in work.glob(name)}):
            tar.add(path, path.relative_to(work))
    data, part = packed.getvalue(), out / "part"
    out.mkdir(parents=True, exist_ok=True)
    for place, begin in enumerate(range(0, len(data), PIECE)):
        part.write_bytes(data[begin : begin + PIECE])
        part.replace(out / f"results.tar.gz.{place:03d}")
    return len(data) / 1e6


def run_all(steps: list[Step], work: Path, out: Path, minutes: float, wait: bool = False) -> int:
    """Runs what is left; 0 where all is done, 3 where steps are left, 1 where steps failed."""
    deadline = time.monotonic() + 60 * minutes - GRACE
    for name in ("states", "logs"):
        (work / name).mkdir(parents=True, exist_ok=True)
    again = "to do", "failed"  # not failed twice
    left = [step for step in steps if step.state(work) in again and (wait or not step.missing)]
    while left and time.monotonic() < deadline and not STOP.is_set():
        step = next((step for step in left if not step.missing), None)
        if step is None:
            STOP.wait(1)
            continue
        left.remove(step)
        begin, before = time.monotonic(), step.state(work)
        code = run(step, work, deadline)
        said = "done" if code == 0 else "failed twice" if before == "failed" else "failed"
        if code is None:
            said = "stopped, goes on in the next call"
        else:
            (work / "states" / step.name).write_text(f"{said}\n{step.words}")
        if code:
            log = (work / "logs" / f"{step.name}.txt").read_text(errors="replace")
            said += f" with {code}: {(log.strip().splitlines() or [''])[-1][:300]}"
        seconds, size = time.monotonic() - begin, take_home(steps, work, out)
        print(f"{step.name}: {said} ({seconds:.0f} s, {size:.1f} MB of results)", flush=True)
    rest = [step for step in steps if step.state(work) != "done"]
    for step in rest:
        print(f"{step.name}: {step.state(work)}{step.missing and f', {step.missing} is not here'}")
    print(f"{len(rest)} of {len(steps)} steps are not done; logs are in {work}/logs")
    return 3 if any(step.state(work) in again for step in rest) else int(bool(rest))


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("out/gpu"), help="outlives the calls")
    parser.add_argument("--out", type=Path, default=None, help="pieces; default: WORK/home")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--wait", action="store_true", help="for files that steps need")
    parser.add_argument("--toy", action="store_true", help="small things, on a CPU")
    parser.add_argument("--list", action="store_true", help="print the steps, run nothing")
    given = parser.parse_args(arguments)
    work = given.work / "toy" if given.toy else given.work
    steps = read_steps(STEPS, given.toy, work)
    if given.list:
        for step in steps:
            print(f"{step.name} | {step.state(work)} | {step.minutes:g} min | {step.words}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())  # raising could lose a started step
    return run_all(steps, work, given.out or work / "home", given.minutes, given.wait)


if __name__ == "__main__":
    sys.exit(main())
