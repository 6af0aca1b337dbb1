"""The suite's own exam: plausible bugs, each alone in a scratch copy, and the tests near them.

| file | holds |
| --- | --- |
| `tests/mutants/*.toml` | the bugs by file and name: sentence, old text, new text, nearest tests |
| `out/mutants/copy`, `copy-1` | scratch copies, one for each core; the checkout is never changed |
| `out/mutants/outcomes.json` | outcomes so far, by bug, its file and its tests |

A test that fails has caught the bug only if it passes on the copy without it.
"""

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

LIBRARIES = (
    "numba", "pandas", "pyarrow.parquet", "scipy.stats", "matplotlib.figure",
    "joblib", "typer", "rich.console", "torch", "transformers", "tokenizers", "safetensors.torch",
)  # fmt: skip
"""Imported once; every run of tests is a fork that imports only the package and the tests."""
COMPILERS = "simspec/numerics/compile.py", "simspec/policy/policy.py"
"""Files whose bugs show in compiled code alone."""
ROOT = Path(__file__).parents[1]
LIMIT = 300.0
"""Seconds of a bug's tests; a bug that hangs them is caught."""
COPIES = 2
"""Bugs that are examined at once."""
STOPPED = threading.Event()
"""Set where the exam is stopped: running tests are killed."""
KILLED, SURVIVED, ARGUED, INVALID = "killed", "survived", "argued", "invalid"


class MutantError(ValueError):
    """A bug that cannot be planted."""


@dataclass(frozen=True)
class Mutant:
    """A plausible bug: `old`, which occurs once in `file`, becomes `new`.

    | field | meaning |
    | --- | --- |
    | bug | what is wrong then, in one sentence |
    | tests | the nearest test files, or tests of them, run in this order up to the first failure |
    | equivalent | why no test can notice it; "": one must |
    """

    name: str
    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def planted(self, text: str) -> str:
        """The file's text with the bug; MutantError unless `old` occurs exactly once."""
        if (count := text.count(self.old)) != 1:
            raise MutantError(
                f"{self.name}: its old text occurs {count} times in {self.file}, expected once: "
                "follow the code"
            )
        return text.replace(self.old, self.new)

    def key(self, root: Path) -> str:
        """Changes with the bug, its file and its tests."""
        names = (self.file, *(test.partition("::")[0] for test in self.tests))
        texts = [repr(self), *((root / name).read_text(encoding="utf-8") for name in names)]
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Outcome:
    """What the tests said: `by` names the test that failed, or what else happened."""

    name: str
    outcome: str
    by: str
    seconds: float


def load_mutants(folder: Path) -> list[Mutant]:
    """The bugs of all files of a folder below tests/; MutantError for two of one name.

    Tests are found by the names of their files, in whichever folder they are. A bug without tests
    has those of its file's table, else of the file named after its own: `test_x.py` of `x.py`.
    """
    tests = folder.resolve().parent
    found = {path.name: str(path.relative_to(tests.parent)) for path in tests.rglob("test_*.py")}

    def located(test: str) -> str:
        file, colons, name = test.partition("::")
        return found.get(Path(file).name, file) + colons + name

    def tests_of(file: str, bugs: dict[str, Any], bug: dict[str, Any]) -> tuple[str, ...]:
        of_file = bugs.get("tests", [f"test_{Path(file).name}"])
        return tuple(map(located, bug.get("tests", of_file)))

    mutants = [
        Mutant(name, file=file, **{"new": ""} | bug | {"tests": tests_of(file, bugs, bug)})
        for path in sorted(folder.glob("*.toml"))
        for file, bugs in tomllib.loads(path.read_text(encoding="utf-8")).items()
        for name, bug in bugs.items()
        if name != "tests"
    ]
    names = [mutant.name for mutant in mutants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MutantError(f"{twice[0]} is the name of two bugs, expected one of each")
    return mutants


def refresh(root: Path, copy: Path) -> None:
    """Makes the scratch copy equal to the checkout's tracked and new files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    names = {name for name in listed if name and (root / name).is_file()}
    for path in copy.rglob("*.py") if copy.exists() else ():
        if str(path.relative_to(copy)) not in names:
            path.unlink()
    for name in sorted(names):
        source, target = root / name, copy / name
        if not (target.exists() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def run_tests(copy: Path, tests: Sequence[str], interpreted: bool, first: bool) -> tuple[int, str]:
    """(exit code, output) of pytest in the copy; code -1 after LIMIT seconds."""
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    # libraries imported before pytest are not rewritten, and need not be
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "--hypothesis-profile=exam"]
    options += [*(["-x"] if first else []), *tests]
    log = copy.with_name(f"{copy.name}.log")
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _be_pytest(copy, options, interpreted, log)
    end = time.monotonic() + LIMIT
    try:
        while not (done := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                _kill(child)
                return -1, ""
            if STOPPED.is_set():
                raise KeyboardInterrupt
            time.sleep(0.05)
    except BaseException:
        _kill(child)
        raise
    return os.waitstatus_to_exitcode(done[1]), log.read_text(encoding="utf-8", errors="replace")


def _kill(child: int) -> None:
    """Ends a forked process and all that it started."""
    with suppress(ProcessLookupError):  # before it leads a group of its own
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _be_pytest(copy: Path, options: Sequence[str], interpreted: bool, log: Path) -> None:
    """Turns a forked process into pytest in the copy; does not return."""
    code = 3  # an internal error of pytest
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with open(log, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(copy)
        # numba's cached code does not notice edits elsewhere: bugs of simspec run interpreted
        os.environ |= {
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_DISABLE_JIT": str(int(interpreted)),
        }
        sys.dont_write_bytecode = True
        own = ROOT, ROOT / "tests", ROOT / "tools"
        sys.path[:] = [str(copy), *(p for p in sys.path if Path(p) not in own)]
        if "numba" in sys.modules:
            sys.modules["numba"].config.DISABLE_JIT = int(interpreted)
        code = int(importlib.import_module("pytest").main(list(options)))
    except BaseException:  # the parent's handlers are not this process's
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def failed_tests(output: str) -> list[str]:
    """The tests, or files that could not be imported, of pytest's summary."""
    return re.findall(
        r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\[\s]+(?:\[.*?\])?)?)(?: |$)", output, re.M
    )


def examine(mutant: Mutant, copy: Path) -> Outcome:
    """Plants the bug, runs its tests, and restores the file."""
    path, began = copy / mutant.file, time.monotonic()
    text, status = path.read_text(encoding="utf-8"), path.stat()
    try:
        path.write_text(mutant.planted(text), encoding="utf-8")
        # bytecode is of a size and of a second: of the file without the bug, here
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**10))
        code, output = run_tests(copy, mutant.tests, _interpreted(mutant), True)
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # its bytecode stays valid
    seconds = round(time.monotonic() - began, 1)
    if code == 0:
        outcome = ARGUED if mutant.equivalent else SURVIVED
        return Outcome(mutant.name, outcome, mutant.equivalent, seconds)
    failed = failed_tests(output)
    if code == -1:
        return Outcome(mutant.name, KILLED, f"no answer in {LIMIT:g} s", seconds)
    if code not in (1, 2) or not failed:
        reason = f"pytest ends with {code}: {' '.join(output.split())[-200:]}"
        return Outcome(mutant.name, INVALID, reason, seconds)
    return Outcome(mutant.name, KILLED, failed[0], seconds)


def failing_without(outcomes: Iterable[tuple[Mutant, Outcome]], copy: Path) -> set[str]:
    """Tests that caught a bug, and fail without it too."""
    failing: set[str] = set()
    caught = [(_interpreted(m), o.by) for m, o in outcomes if o.outcome == KILLED and "::" in o.by]
    for interpreted in (False, True):
        tests = sorted({test for mode, test in caught if mode == interpreted})
        for start in range(0, len(tests), 40):
            _, output = run_tests(copy, tests[start : start + 40], interpreted, False)
            failing.update(failed_tests(output))
    return failing


def exam(
    root: Path, work: Path, mutants: Sequence[Mutant], fresh: bool = False, show=lambda text: None
) -> list[Outcome]:
    """Outcomes of all bugs; earlier ones stand while the bug, its file and tests stay the same."""
    saved, copies = work / "outcomes.json", [work / "copy"]
    copies += [work / f"copy-{i}" for i in range(1, COPIES)]
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        refresh(root, copy)
        compiled = [sys.executable, "-m", "compileall", "-q", "simspec", "real"]
        subprocess.run(compiled, cwd=copy, capture_output=True)
        free.put(copy)
    copy = copies[0]
    known = {} if fresh or not saved.exists() else json.loads(saved.read_text(encoding="utf-8"))
    keys = [mutant.key(copy) for mutant in mutants]  # before a bug is planted there

    def examined(mutant: Mutant) -> Outcome:
        own = free.get()
        try:
            return examine(mutant, own)
        finally:
            free.put(own)

    outcomes = []
    with ThreadPoolExecutor(COPIES) as pool:
        running = {k: pool.submit(examined, m) for k, m in zip(keys, mutants) if k not in known}
        try:
            for i, (key, mutant) in enumerate(zip(keys, mutants), 1):
                if key not in known:
                    known[key] = asdict(running[key].result())
                    _save(saved, known)
                outcomes.append(outcome := Outcome(**known[key]))
                said = f"{outcome.outcome:8} {outcome.name}: {outcome.by or mutant.bug}"
                show(f"{i}/{len(mutants)} {said}")
        except BaseException:
            STOPPED.set()
            pool.shutdown(cancel_futures=True)
            raise
    failing = failing_without(zip(mutants, outcomes), copy)
    for key, outcome in zip(keys, outcomes):
        if outcome.by in failing:
            known[key]["outcome"] = INVALID
    _save(saved, known)
    return [Outcome(**known[key]) for key in keys]


def _save(path: Path, known: dict) -> None:
    """Keeps the outcomes but for invalid ones, which are looked at and tried again."""
    known = {key: entry for key, entry in known.items() if entry["outcome"] != INVALID}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def summary(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many bugs of each outcome."""
    return {
        outcome: sum(o.outcome == outcome for o in outcomes)
        for outcome in (KILLED, SURVIVED, ARGUED, INVALID)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the score, and returns 1 where a bug survived or could not be examined."""
    parser = argparse.ArgumentParser(description="Plants known bugs and runs the tests near them.")
    parser.add_argument("--only", default="", help="names, files or sentences that match this")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument("--fresh", action="store_true", help="forget earlier outcomes")
    parser.add_argument("--libraries", nargs="*", default=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, default=None, help="folder of copy and outcomes")
    options = parser.parse_args(arguments)
    work = (options.work or options.root / "out" / "mutants").resolve()
    work.mkdir(parents=True, exist_ok=True)
    mutants = [
        mutant
        for mutant in load_mutants(options.root / "tests" / "mutants")
        if re.search(options.only, f"{mutant.name} {mutant.file} {mutant.bug}")
    ]

    for name in options.libraries:
        with suppress(ImportError):
            importlib.import_module(name)

    def show(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcomes = exam(options.root, work, mutants, options.fresh, show)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    counts = summary(outcomes)
    bugs = {mutant.name: mutant for mutant in mutants}
    if options.json:
        print(json.dumps({"score": counts, "outcomes": [asdict(o) for o in outcomes]}, indent=1))
    else:
        for outcome in outcomes:
            if outcome.outcome in (SURVIVED, INVALID):
                mutant = bugs[outcome.name]
                print(f"{outcome.outcome}: {mutant.file}: {mutant.bug} {outcome.by}".rstrip())
        print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return int(bool(counts[SURVIVED] or counts[INVALID]))


def _interpreted(mutant: Mutant) -> bool:
    return mutant.file.startswith("simspec/") and mutant.file not in COMPILERS


if __name__ == "__main__":
    sys.exit(main())
