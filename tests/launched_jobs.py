"""Jobs of several processes: started by torchrun, or forked from one loaded process.

A process of its own imports for 7 seconds. A forked one has the variables that torchrun sets, and
ends, as there, when another one fails.
"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from forked_process import ForkedProcess

# Reads one job a line: folder, number of processes, program ("" for the command), arguments.
SERVER = """
import json, os, runpy, signal, socket, sys, traceback
from forked_commands import freeze, keep_loaded
from real.model_settings import ModelSettings
from simspec.cli import main
from simspec.output import interrupts

keep_loaded()
ModelSettings().load("model")
freeze()

def child(rank, port, folder, count, program, arguments):
    for number in interrupts.NAMES:  # as a program in the foreground
        signal.signal(getattr(signal, number), signal.SIG_DFL)
    interrupts.install()
    os.chdir(folder)
    numbers = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in numbers.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    sys.argv = [program or "__main__.py", *arguments]  # as of python -m simspec.cli
    with open(os.devnull, "w") as nowhere, open(f"{folder}.{rank}.log", "w") as log:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            runpy.run_path(program, run_name="__main__") if program else main(arguments)
            return 0
        except SystemExit as stop:
            return stop.code or 0
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

running = {}

def overdue(*_):
    for other in running:
        os.kill(other, signal.SIGKILL)

signal.signal(signal.SIGALRM, overdue)
for line in sys.stdin:
    folder, count, *job = json.loads(line)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worst = 0
    for rank in range(count):
        if not (pid := os.fork()):
            os._exit(child(rank, port, folder, count, *job))
        running[pid] = rank
    while running:
        pid, status = os.wait()
        if running.pop(pid, None) is not None and status and not worst:
            worst = os.waitstatus_to_exitcode(status)
            for other in running:
                os.kill(other, signal.SIGTERM)
            signal.alarm(30)  # as torchrun does
    signal.alarm(0)
    print(worst, flush=True)
"""
TESTS = str(Path(__file__).parent)
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]),
}


class Forked:
    """Runs jobs in forks of one loaded process."""

    def __init__(self):
        self.process = ForkedProcess(SERVER)

    def __call__(self, folder, processes, *arguments, program=""):
        """(exit code of the first process that failed, or 0; what all wrote on stderr)."""
        self.start(folder, processes, *arguments, program=program)
        return self.finish(folder, processes)

    def start(self, folder, processes, *arguments, program=""):
        """Starts a job."""
        job = [str(folder), processes, program, list(map(str, arguments))]
        print(json.dumps(job), file=self.process.stdin, flush=True)

    def ended(self, seconds):
        """Whether the job has ended, or ends within these seconds."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def running(self):
        """The numbers of the job's processes that live, by rank."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return list(map(int, Path(path).read_text(encoding="utf-8").split()))

    def finish(self, folder, processes):
        """What a call returns, of the job that was started."""
        code = int(self.process.stdout.readline())
        logs = [Path(f"{folder}.{rank}.log") for rank in range(processes)]
        return code, "".join(log.read_text(encoding="utf-8") for log in logs)


def launched(folder, processes, *arguments):
    """torchrun of the command with so many processes, unfinished."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(processes), "-m", "simspec.cli"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [*launcher, *map(str, arguments)], cwd=folder, text=True, env=ENVIRONMENT, **pipes
    )


def finished(process):
    out, error = process.communicate(timeout=180)
    return process.returncode, out, error
