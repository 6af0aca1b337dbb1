"""Commands in forks of one loaded process: killed, on failing disks, or as several processes.

A process of its own imports for 7 seconds. The server has imported everything, loads the embedded
models and records once, so that little is left to import or load, and forks the processes of a
command. Each counts its file operations below its folder, and kills itself before the n-th where
requested: every moment at which a kill could leave a file half written is reachable by its number.
From another n-th on, its folder is read-only; and no file may grow beyond `most_bytes`, as on a
full disk. Several processes have the variables that torchrun sets, and end, as there, when another
one fails.
"""

import json
import select
from dataclasses import replace
from pathlib import Path

from forked_process import ForkedProcess

from simspec import load_trace

SERVER = """
import errno, io, json, os, resource, runpy, signal, socket, sys, tempfile, time, traceback
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import partial
import real.record.recorder, real.rerun, real.train.train
from forked_commands import freeze, keep_loaded
from simspec.cli import main
from simspec.output import interrupts

keep_loaded()
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def child(into, folder, arguments, program="", ranks={}, die_at=0, seal_at=0, most_bytes=None):
    for number in interrupts.NAMES:  # as a program in the foreground
        signal.signal(getattr(signal, number), signal.SIG_DFL)
    interrupts.install()
    if not ranks:
        real.record.RecordingFiles = partial(real.record.RecordingFiles, shard_size=1)
    os.environ |= ranks
    count = [0]
    def audit(event, arguments):
        if event not in OPERATIONS or isinstance(arguments[0], int):
            return
        if os.path.abspath(os.fsdecode(arguments[0])).startswith(folder):
            count[0] += 1
            if count[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if 0 < seal_at <= count[0] and (event != "open" or arguments[2] & WRITES):
                raise OSError(errno.EROFS, "Read-only file system", arguments[0])
    os.chdir(folder)
    sys.argv = [program or "__main__.py", *arguments]  # as of python -m simspec.cli
    sys.stdout, sys.stderr = open(os.devnull, "w"), io.StringIO()
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.addaudithook(audit)
    try:
        runpy.run_path(program, run_name="__main__") if program else main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    # a pipe takes 4096 bytes at once
    told = json.dumps([count[0], sys.stderr.getvalue()[-2000:]]) + "\\n"
    os.write(into, told.encode())
    os._exit(code)

def ranks_of(processes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared["WORLD_SIZE"] = str(processes)
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]

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
freeze()

running = []

def end_others(number):
    for pid in running:
        os.kill(pid, number)

signal.signal(signal.SIGALRM, lambda *_: end_others(signal.SIGKILL))
for line in sys.stdin:
    job = json.loads(line)
    after, once, sent, processes = map(job.pop, ("after", "once", "sent", "processes"))
    out, into = os.pipe()
    for ranks in ranks_of(processes) if processes else [{}]:
        if not (pid := os.fork()):
            child(into, ranks=ranks, **job)
        running.append(pid)
    os.close(into)
    # not waited for yet: the number is still its own
    if after is not None:
        time.sleep(after)
        end_others(sent or signal.SIGKILL)
    elif once is not None:
        while not os.path.exists(once) and not os.waitid(
            os.P_PID, running[0], os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.002)
        end_others(sent or signal.SIGKILL)
    worst = 0
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status and not worst:
            worst = os.waitstatus_to_exitcode(status)
            if running:
                end_others(signal.SIGTERM)
                signal.alarm(30)  # as torchrun does
    signal.alarm(0)
    with open(out) as said:
        told = [json.loads(line) for line in said]
    print(json.dumps([worst, told]), flush=True)
"""


class Server:
    """Runs commands, or programs, in processes that one loaded process forks."""

    def __init__(self):
        self.process = ForkedProcess(SERVER)

    def __call__(self, folder, arguments, **job):
        """(exit code, file operations); the code is -9 for a kill before operation `die_at`.

        The signal `sent`, or SIGKILL, is sent `after` seconds, or as soon as the file `once`
        exists. With `processes` the code is that of the first one that failed, or 0. What all
        wrote on stderr is then in `error`.
        """
        self.start(folder, arguments, **job)
        return self.finish()

    def start(self, folder, arguments, **job):
        """Starts a job."""
        job = dict.fromkeys(("after", "once", "sent", "processes")) | job
        job |= {"folder": str(folder), "arguments": list(map(str, arguments))}
        print(json.dumps(job), file=self.process.stdin, flush=True)

    def ended(self, seconds):
        """Whether the job has ended, or ends within these seconds."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def running(self):
        """The numbers of the job's processes that live, by rank."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return list(map(int, Path(path).read_text(encoding="utf-8").split()))

    def finish(self):
        """What a call returns, of the job that was started."""
        code, told = json.loads(self.process.stdout.readline())
        self.error = "".join(error for _, error in told)
        return code, sum(operations for operations, _ in told)


def prompts(folder, count, tasks=("t",)):
    """The folder, with a file of this number of prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": f"p{i}", "task": tasks[i % len(tasks)], "text": f"Number {i} of the list is"}
        for i in range(count)
    ]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(path):
    """A recording without what may differ: the revision of the checkout, and the command line."""
    trace = load_trace(path)
    object.__setattr__(trace, "meta", replace(trace.meta, git="", argv=()))
    return trace


RECORD = ["record", "p.jsonl", "--out", "x.parquet", "--rule", "coupled", "-k", 4, "--budget", 12]
