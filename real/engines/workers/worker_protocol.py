"""The loop of every worker: reads lines, runs an engine, writes lines (real/engines/worker.py).

It imports the standard library alone, since it runs in the environment of an engine.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback


def serve(start):
    """Reads the "start" line, then serves runs until the host ends the conversation.

    `start(options)` returns an engine with `ready()` -> dict of `Ready` without "seconds", and
    `run(requests, concurrent, k, force)`, which yields a dict of `Finished` for each request.
    k and force are None where the line leaves them out; policy is given where the line has it.
    """
    began = time.monotonic()
    # engines print on stdout, and their libraries write on descriptor 1
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def write(message):
        channel.write(json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        channel.flush()

    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    try:
        engine = start(json.loads(lines.get())["start"])
        ready = engine.ready()
        write({"ready": {**ready, "seconds": time.monotonic() - began}})
    except BaseException as error:
        traceback.print_exc()
        write({"error": _one_line(error)})
        _leave(1)
    while "run" in (asked := json.loads(lines.get())):
        try:
            clock = time.monotonic()
            given = {"policy": asked["policy"]} if "policy" in asked else {}
            for finished in engine.run(
                asked["requests"], asked["concurrent"], asked.get("k"), asked.get("force"), **given
            ):
                write({"run": asked["run"], **finished})
            seconds = time.monotonic() - clock
            write({"run": asked["run"], "done": True, "seconds": seconds})
        except Exception as error:
            traceback.print_exc()
            write({"error": _one_line(error), "run": asked["run"]})
    _leave(0)


def threshold_of(policy):
    """The threshold of a policy confidence:P, which the host has checked; 0 without one."""
    given = (policy or "confidence:0").partition(":")[2].partition(",")[0]
    return float(given.removeprefix("threshold="))


def _read(lines):
    """Hands on the host's lines; ends the process when the host is gone, in a run too."""
    for line in sys.stdin.buffer:
        lines.put(line)
    _leave(0)


def _leave(code):
    """Ends this process and those that the engine has started in its group."""
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():  # the host starts a worker as the leader of a group
        os.killpg(0, signal.SIGKILL)
    os._exit(code)


def _one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
