"""Programs in forks of one process that has imported simspec and compiled a function.

A new process takes 3 seconds to import numba and to compile its first function. A fork imports the
program's own modules anew, as a new process does.
"""

import json
import subprocess
import sys
from pathlib import Path

# Reads one program a line: folder, arguments (the program first), cache folder.
SERVER = """
import json, os, runpy, sys, traceback
import numba, simspec, simspec.policies, simspec.replay.replay
import numpy as np

@numba.njit
def first(values):
    for i in range(len(values)):
        values[i] = np.log(values[i] + 1)
    return values.sum(), values[:2]

first(np.zeros(3))

def child(folder, arguments, cache):
    os.chdir(folder)
    numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = cache
    sys.argv, sys.dont_write_bytecode = arguments, True
    sys.path.insert(0, folder)
    with open(f"{folder}.out", "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        try:
            runpy.run_path(arguments[0], run_name="__main__")
            return 0
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()

for line in sys.stdin:
    if not (pid := os.fork()):
        os._exit(child(*json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class WarmPrograms:
    """Runs programs in forks of one warm process."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-c", SERVER], text=True, **pipes)

    def __call__(self, folder, cache, *arguments):
        """What `python ARGUMENTS` prints there with that cache of numba's; it must succeed."""
        print(json.dumps([str(folder), arguments, str(cache)]), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        printed = Path(f"{folder}.out").read_text(encoding="utf-8")
        assert code == 0, printed
        return printed
