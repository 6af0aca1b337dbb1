"""The slow twin of lock steps: slots walked one round at a time, with plain lists."""


def slots(counts, batch, ends):
    """[batches][slots][(sequence, its round's number), ...] of sequences with these many rounds."""
    sequences = len(counts)
    if ends == "refill":
        orders = [
            [(i * sequences // batch + n) % sequences for n in range(sequences)]
            for i in range(batch)
        ]
        return [[[(s, r) for s in order for r in range(counts[s])] for order in orders]]
    waiting, batches = list(range(sequences)), []
    while waiting:
        taken = waiting[:batch]
        filler = 0
        while len(taken) < batch:
            taken.append(filler % sequences)
            filler += 1
        waiting = waiting[batch:]
        batches.append([[(s, r) for r in range(counts[s])] for s in taken])
    return batches


def price(steps_of, tokens, catch_up, padded):
    """Seconds of one step, from its [(computed, drafted, backlog, context)]."""
    longest = max(computed for computed, _, _, _ in steps_of)
    verified = max(drafted for _, drafted, _, _ in steps_of)
    seconds = tokens.overhead + tokens.fixed
    for computed, drafted, backlog, context in steps_of:
        seconds += tokens.kv * context
        seconds += tokens.token * ((verified if padded else drafted) + 1)
        if computed:
            seconds += catch_up[min(backlog, len(catch_up) - 1)]
    if verified:
        seconds += tokens.step
    if longest:
        seconds += tokens.draft_round
    for j in range(1, longest + 1):
        rows = [item for item in steps_of if padded or item[0] >= j]
        seconds += tokens.draft + tokens.draft_row * (len(rows) - 1)
        seconds += tokens.draft_kv * sum(context for _, _, _, context in rows)
    return seconds


def lock_step(rounds, prompts, tokens, catch_up, batch, ends, padded=False, context=None):
    """(seconds of each step, seconds of each sequence) of rounds [[(row, computed, drafted,
    accepted)]], rows counted from the sequence's start.
    """
    described = []
    for s, of_sequence in enumerate(rounds):
        backlog, facts = 0, []
        for row, computed, drafted, accepted in of_sequence:
            cached = prompts[s] + row if context is None else context
            facts.append((computed, drafted, backlog, cached))
            if computed == 0:
                backlog += 1
            else:
                backlog = 1 if accepted == computed else 0
        described.append(facts)
    times, shares = [], [0.0] * len(rounds)
    for group in slots([len(facts) for facts in described], batch, ends):
        for t in range(max(map(len, group))):
            now = [lane[t] for lane in group if t < len(lane)]
            seconds = price([described[s][r] for s, r in now], tokens, catch_up, padded)
            times.append(seconds)
            doing = [described[s][r] for s, r in now]
            plain = price([(0, 0, 0, item[3]) for item in doing], tokens, [0.0], False)
            total = sum(item[0] for item in doing)
            for (s, _), (computed, *_) in zip(now, doing):
                part = computed / total if total else 1 / len(now)
                shares[s] += plain / len(now) + (seconds - plain) * part
    return times, shares
