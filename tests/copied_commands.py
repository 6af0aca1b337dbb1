"""Commands of a copy of the checkout, in forks of one process that has imported the copy."""

import json
import os
import subprocess
import sys

# Reads one command a line: module or script, arguments, file of stdout, file of stderr. The
# process imports what commands need, the copy's new files included; a fork imports it no more.
SERVER = """
import json, os, runpy, sys, traceback
import simspec.cli, simspec.policies, simspec.replay.sweep
import real.rerun, real.record.recorder

def child(program, arguments, *files):
    for file, descriptor in zip(files, (1, 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv, code = [program, *arguments], 0
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code

for line in sys.stdin:
    if not (pid := os.fork()):
        os._exit(child(*json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class CopiedCommands:
    """Runs commands of the copy in that folder, which keeps their last output in out and err."""

    def __init__(self, folder):
        self.files = folder / "out.txt", folder / "err.txt"
        environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], text=True, cwd=folder, env=environment, **pipes
        )

    def __call__(self, *arguments, module="simspec.cli"):
        """(exit code, stdout, stderr) of `python -m MODULE ARGUMENTS`, or of a script *.py."""
        job = [module, list(map(str, arguments)), *map(str, self.files)]
        print(json.dumps(job), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        return code, *(file.read_text(encoding="utf-8") for file in self.files)

    def close(self):
        """Ends the process."""
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0
