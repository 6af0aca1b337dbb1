"""Commands that are killed, or whose disk fails, at a given moment; what they record."""

import json
from dataclasses import replace

from forked_process import ForkedProcess

from simspec import load_trace

# A server process has imported everything, loads the embedded models and records once: little is
# left to import or load, and forks one child a command. The child counts its file operations
# below its folder, and kills itself before the n-th where requested. So every moment at which a
# kill could leave a file half written is reachable by its number. From another n-th on, its folder
# is read-only; and no file may grow beyond `most_bytes`, as on a full disk.
SERVER = """
import errno, io, json, os, resource, signal, sys, tempfile, time, traceback
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import partial
import real.rerun, real.record
from forked_commands import freeze, keep_loaded
from simspec.cli import main
from simspec.output import interrupts

keep_loaded()

real.record.RecordingFiles = partial(real.record.RecordingFiles, shard_size=1)
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def child(folder, arguments, die_at=0, seal_at=0, most_bytes=None):
    for number in interrupts.NAMES:  # as a program in the foreground
        signal.signal(getattr(signal, number), signal.SIG_DFL)
    interrupts.install()
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
    sys.stdout, sys.stderr = open(os.devnull, "w"), io.StringIO()
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.addaudithook(audit)
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    return code, [count[0], sys.stderr.getvalue()[-2000:]]  # a pipe takes 4096 bytes at once

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

for line in sys.stdin:
    job = json.loads(line)
    after, once, sent = (job.pop(name, None) for name in ("after", "once", "sent"))
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        code, said = child(**job)
        os.write(into, json.dumps(said).encode())
        os._exit(code)
    os.close(into)
    # not waited for yet: the number is still its own
    if after is not None:
        time.sleep(after)
        os.kill(pid, sent or signal.SIGKILL)
    elif once is not None:
        while not os.path.exists(once) and not os.waitid(
            os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.002)
        os.kill(pid, sent or signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    said = json.loads(os.read(out, 1 << 16) or "[0, \\"\\"]")
    print(json.dumps([os.waitstatus_to_exitcode(status), *said]), flush=True)
    os.close(out)
"""


class Server:
    """Runs commands in children of one loaded process."""

    def __init__(self):
        self.process = ForkedProcess(SERVER)

    def __call__(self, folder, arguments, **job):
        """(exit code, file operations); the code is -9 for a kill before operation `die_at`.

        The signal `sent`, or SIGKILL, is sent `after` seconds, or as soon as the file `once`
        exists. What the command wrote on stderr is then in `error`.
        """
        job |= {"folder": str(folder), "arguments": list(map(str, arguments))}
        print(json.dumps(job), file=self.process.stdin, flush=True)
        code, operations, self.error = json.loads(self.process.stdout.readline())
        return code, operations


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
