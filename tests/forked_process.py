"""Processes forked from the one that has collected the tests, and so has imported torch and numba.

They are forked before the first test, since tests patch modules, and wait for a program to run.
A new process would import for 4 seconds.
"""

import json
import os
import sys
import traceback

# Fixtures of the session that are such a process.
FIXTURES = "server", "forked"
_waiting = []


class ForkedProcess:
    """Runs the source of a program in a process that was forked after collection.

    It reads `stdin` and writes `stdout`, text files here; its stderr is that of the tests.
    """

    def __init__(self, program):
        self.pid, self.stdin, self.stdout = _waiting.pop()
        print(json.dumps(program), file=self.stdin, flush=True)

    def close(self):
        """Ends its input, and with that the process; its exit code."""
        self.stdin.close()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.stdout.close()
        return code


def fork_waiting(items):
    """Forks a process for each fixture of FIXTURES that the collected tests use."""
    used = {name for item in items for name in item.fixturenames}
    for _ in used.intersection(FIXTURES):
        requests, stdin = os.pipe()
        stdout, answers = os.pipe()
        pid = os.fork()
        if not pid:
            for file in (stdin, stdout, *(f.fileno() for _, *files in _waiting for f in files)):
                os.close(file)  # else the end of a test process would not end these inputs
            os._exit(_run(requests, answers))
        os.close(requests)
        os.close(answers)
        _waiting.append((pid, os.fdopen(stdin, "w"), os.fdopen(stdout)))


def _run(requests, answers):
    os.dup2(requests, 0)
    os.dup2(answers, 1)
    os.close(requests)
    os.close(answers)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    if not (line := sys.stdin.readline()):
        return 0
    try:
        exec(compile(json.loads(line), "<program>", "exec"), {"__name__": "__main__"})
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
