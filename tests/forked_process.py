"""A process forked from the one that has collected the tests, and so has imported torch and numba.

It is forked before the first test, since tests patch modules, and waits for a program to run.
A new process would import for 4 seconds.
"""

import json
import os
import sys
import traceback

FIXTURE = "server"
"""The fixture of the session that is such a process."""
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
    """Forks the process where a collected test uses FIXTURE."""
    if not any(FIXTURE in item.fixturenames for item in items):
        return
    requests, stdin = os.pipe()
    stdout, answers = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(stdin)  # else the end of the tests' process would not end this input
        os.close(stdout)
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
