"""A worker that replays a recorded conversation and commits one fault, for tests of the host.

It is run as a script by the environment variables of an engine: FAKE_CONVERSATION is a file of
lines [who, message]; FAKE_FAULT is "KIND:LINE", LINE counting the worker's lines from 0.
"""

import json
import os
import sys
import time

HUGE = (16 << 20) + 2


def commit(fault, line, out):
    """Writes what the fault makes of the line; most faults end the process."""
    half = line[: len(line) // 2]
    if fault == "crash":
        print("the engine is out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    if fault == "signal":
        os.kill(os.getpid(), 9)
    if fault == "half":
        out.write(half)
        out.flush()
        os._exit(0)
    if fault == "hang":
        time.sleep(60)
    if fault == "half_hang":
        out.write(half)
        out.flush()
        time.sleep(60)
    if fault == "garbage":
        out.write(b"\xff\x00\x1b[31m INFO loading\n")
    if fault == "huge":
        out.write(b"x" * HUGE)
    if fault == "deep":
        out.write(b'{"a":' + b"[" * 100_000 + b"\n")
    if fault == "list":
        out.write(b"[1]\n")
    if fault == "nan":
        out.write(line.replace(b'"seconds":', b'"seconds":NaN,"_":'))
    if fault == "text":
        out.write(json.dumps(strings(json.loads(line))).encode() + b"\n")
    if fault == "twice":
        out.write(line + line)
    if fault == "error":
        out.write(b'{"error": "no such\\u001b[2J model"}\n')
    if fault == "close":
        os.close(1)
        time.sleep(60)
    out.flush()


def strings(value):
    """The value with its numbers as texts."""
    if isinstance(value, dict):
        return {key: strings(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [strings(inner) for inner in value]
    return str(value) if type(value) in (int, float) else value


def main():
    """Replays the conversation; a host that says something else than recorded ends it."""
    fault, _, at = os.environ.get("FAKE_FAULT", ":-1").partition(":")
    with open(os.environ["FAKE_CONVERSATION"], encoding="utf-8") as file:
        recorded = [json.loads(line) for line in file]
    out, number = sys.stdout.buffer, 0
    for who, message in recorded:
        if who == "host":
            heard = json.loads(sys.stdin.readline() or "null")
            if heard is None or heard.get("stop"):
                return
            if heard.get("run") != message.get("run") or set(heard) != set(message):
                print(f"heard {heard}, expected {message}", file=sys.stderr)
                sys.exit(4)
            continue
        line = json.dumps(message).encode() + b"\n"
        if number == int(at):
            commit(fault, line, out)
        else:
            out.write(line)
            out.flush()
        number += 1
    sys.stdin.readline()


if __name__ == "__main__":
    main()
