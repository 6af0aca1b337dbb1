"""The slow twin of a server under load: events in a heap, requests as objects, plain lists."""

import heapq
from bisect import bisect_right
from types import SimpleNamespace

import naive_batch

ARRIVES, STEP_ENDS = 0, 1


def scheduled_round(trace, starts, s, row, held):
    """(row, computed, drafted, accepted) of the next round, K by the requests held."""
    sizes, lengths = zip(*starts)
    K = lengths[bisect_right(sizes, held) - 1]
    t = int(trace.offset[s]) + row
    drafted = min(K, int(trace.budget[s]) - row - 1, int(trace.depth[t]))
    return row, drafted, drafted, min(drafted, int(trace.run[t]))


def run(trace, arrivals, decide, server, terms, context=None):
    """([(start, first, finish)], [(begin, seconds, held, active, rows, emitted)]).

    arrivals [(time, sequence)]; decide(sequence, number of the round, row, held) gives a round;
    terms: (TokenCost, catch-up seconds).
    """
    tokens, catch_up = terms
    events = [(time, ARRIVES, i) for i, (time, _) in enumerate(arrivals)]
    heapq.heapify(events)
    waiting, running, doing = [], [], []
    requests = []
    for time, s in arrivals:
        prompt = int(trace.prompt_offset[s + 1] - trace.prompt_offset[s])
        requests.append(
            SimpleNamespace(
                s=s, arrival=time, prompt=prompt, row=0, number=0, backlog=0, start=None,
                first=None, finish=None, length=int(trace.offset[s + 1] - trace.offset[s]),
                unread=max(prompt, 1) if server.prefill else 1,
            )
        )  # fmt: skip
    steps = []
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, i = heapq.heappop(events)
            if kind == ARRIVES:
                waiting.append(requests[i])
                continue
            for request in doing:
                if request.first is None:
                    request.first = now
                if request.row >= request.length:
                    request.finish = now
                    running.remove(request)
            doing = []
            busy = False
        if steps and busy:
            continue
        while waiting and len(running) < server.slots:
            request = waiting.pop(0)
            request.start = now
            running.append(request)
        if not running:
            continue
        left, parts, emitted, held = server.tokens, [], 0, len(running)
        decoding = [request for request in running if request.unread == 0]
        reading = [request for request in running if request.unread > 0]
        for request in decoding + reading:
            read = min(request.unread, max(left, 0))
            if request.unread and not read:
                continue
            request.unread -= read
            computed = drafted = 0
            if request.unread:
                cached, rows = request.prompt - request.unread, read
            else:
                row, computed, drafted, accepted = decide(
                    request.s, request.number, request.row, held
                )
                assert row == request.row
                cached, rows = request.prompt + row, max(read, 1) + drafted
                emitted += min(accepted + 1, request.length - row)
            cached = cached if context is None else context
            parts.append((computed, rows - 1, request.backlog, cached))
            left -= rows
            if not request.unread:
                request.number, request.row = request.number + 1, row + accepted + 1
                late = request.backlog + 1
                request.backlog = late if computed == 0 else int(accepted == computed)
                doing.append(request)
        seconds = naive_batch.price(parts, tokens, catch_up, False)
        steps.append((now, seconds, held, len(parts), sum(p[1] + 1 for p in parts), emitted))
        heapq.heappush(events, (now + seconds, STEP_ENDS, -1))
        busy = True
    return [(r.start, r.first, r.finish) for r in requests], steps
