"""Commands that are killed at a given file operation, their prompts, and what they record."""

import json
import os
import subprocess
import sys
from dataclasses import replace

from simspec import load_trace

# A server process imports everything and records once, so that little is left to import, and forks
# one child a command. The child counts its file operations below its folder, and kills itself
# before the n-th where requested. So every moment at which a kill could leave a file half written
# is reachable by its number.
SERVER = """
import json, os, signal, sys, tempfile, time
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import partial
import torch
import real.train.pipeline, real.jobs, real.record.recorder
from real.pair import TINY, load_pair
from simspec.cli import main

for drafter in ("model", "early_exit"):
    load_pair(TINY, drafter)
real.jobs.record.RecordingFiles = partial(real.record.RecordingFiles, shard_size=1)
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}

def child(folder, die_at, arguments):
    count = [0]
    def audit(event, arguments):
        if event not in OPERATIONS or isinstance(arguments[0], int):
            return
        if os.path.abspath(os.fsdecode(arguments[0])).startswith(folder):
            count[0] += 1
            if count[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
    os.chdir(folder)
    sys.stderr = open(os.devnull, "w")
    sys.stdout = sys.stderr
    sys.addaudithook(audit)
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    return code, count[0]

with open(os.devnull, "w") as quiet, tempfile.TemporaryDirectory() as folder, chdir(folder):
    with open("p.jsonl", "w") as file:
        file.write(json.dumps({"id": "p", "task": "t", "text": "Number 0"}))
    record = ["record", "p.jsonl", "-k", "2", "--budget", "2", "--drafter"]
    for job in (
        [*record, "model", "--out", "m.parquet", "--rule", "coupled"],
        [*record, "early_exit", "--out", "e.parquet"],
    ):
        with redirect_stdout(quiet), redirect_stderr(quiet), suppress(SystemExit):
            main(job)

for line in sys.stdin:
    *job, after = json.loads(line)
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        code, count = child(*job)
        os.write(into, str(count).encode())
        os._exit(code)
    os.close(into)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)  # not waited for yet: the number is still its own
    status = os.waitpid(pid, 0)[1]
    print(json.dumps([os.waitstatus_to_exitcode(status), int(os.read(out, 99) or 0)]), flush=True)
    os.close(out)
"""


class Server:
    """Runs commands in children of one loaded process."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            **pipes,
        )

    def __call__(self, folder, arguments, die_at=0, after=None):
        """(exit code, file operations); the code is -9 for a kill before operation `die_at` or
        `after` seconds."""
        print(
            json.dumps([str(folder), die_at, list(map(str, arguments)), after]),
            file=self.process.stdin,
            flush=True,
        )
        return json.loads(self.process.stdout.readline())


def prompts(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": f"p{i}", "task": "t", "text": f"Number {i} of the list is"} for i in range(count)
    ]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(path):
    """A recording without what may differ: the revision of the checkout, and the command line."""
    trace = load_trace(path)
    object.__setattr__(trace, "meta", replace(trace.meta, git="", argv=()))
    return trace


RECORD = ["record", "p.jsonl", "--out", "x.parquet", "--rule", "coupled", "-k", 4, "--budget", 12]
