"""The slow twin of draft trees: every tree is a set of paths of ranks that is built, cut and
walked; imports nothing of the package.
"""

import math


def limits(trace, s, row):
    """(cap, text left) of a round at that row of sequence s."""
    spent = row - int(trace.offset[s])
    cap = min(int(trace.meta.K), int(trace.budget[s]) - spent - 1)
    return cap if trace.depth[row] else 0, int(trace.offset[s + 1]) - row


def walk(trace, row, left, submitted):
    """How many tokens of the text from `row` on are on a path of the submitted tree."""
    path = ()
    while len(path) < left and len(path) < int(trace.meta.K):
        path = (*path, int(trace.rank[row, len(path)]))
        if path not in submitted:
            return len(path) - 1
    return len(path)


def static(trace, s, row, parent, rank):
    """(levels, nodes, drafter's rows, accepted, backlog) of a round that drafts this tree."""
    cap, left = limits(trace, s, row)
    paths = [()]
    for i in range(len(parent)):
        paths.append(paths[parent[i]] + (rank[i],))
    submitted = {path for path in paths[1:] if len(path) <= cap}
    levels = max(map(len, submitted), default=0)
    accepted = walk(trace, row, left, submitted)
    return levels, len(submitted), len({path[:-1] for path in submitted}), accepted, accepted


def grow(score, width, depth):
    """The nodes of a dynamic tree in their order; score(path): log q of its last token. Nodes
    are (cumulative score, depth, number).
    """
    offered, count, last = [], 0, [(0.0, ())]
    for level in range(1, depth + 1):
        children = []
        for total, path in last:
            for r in range(width):
                node = (*path, r)
                children.append((total + score(node), node))
                offered.append((-children[-1][0], level, count, node))
                count += 1
        # ties go to the earlier node
        last = [
            children[i]
            for i in sorted(range(len(children)), key=lambda i: (-children[i][0], i))[:width]
        ]
    return [node for *_, node in sorted(offered)]


def order_of(trace, s, row, score, width, depth):
    """What is recorded at a row: places of the text's nodes in the order, 255 where it has left
    the tree.
    """
    cap, left = limits(trace, s, row)
    nodes, path, places = grow(score, width, min(depth, cap)), (), []
    for j in range(int(trace.meta.K)):
        path = (*path, int(trace.rank[row, j])) if j < left else None
        places.append(min(nodes.index(path), 255) if path in nodes else 255)
        path = path if path in nodes else ("left",)
    return places


def dynamic(trace, s, row, score, width, depth, budget):
    cap, left = limits(trace, s, row)
    levels = min(depth, cap) if budget else 0
    nodes = grow(score, width, levels)
    accepted = walk(trace, row, left, set(nodes[:budget]))
    rows = sum(1 if level == 0 else width for level in range(levels))
    return levels, min(len(nodes), budget), rows, accepted, accepted


def cape_width(p, table):
    if table == "section":
        return 7 if p <= 0.3 else 5 if p <= 0.6 else 3 if p <= 0.8 else 1
    return [8, 8, 8, 6, 6, 6, 4, 4, 2, 2][min(math.floor(10 * p), 9)] - 1


def cape(trace, s, row, k, width):
    """width(slot): siblings wanted there."""
    cap, left = limits(trace, s, row)
    k = min(k, cap, int(trace.depth[row]))
    run = int(trace.run[row])
    chain, siblings = ["chain"] * k, set()
    for slot in range(k):
        for r in range(1, width(slot) + 1):
            if len(chain) + len(siblings) < 32:
                siblings.add((slot, r))
    accepted = min(run, k)
    saved = (
        accepted < k and accepted < left and (accepted, int(trace.rank[row, accepted])) in siblings
    )
    # The drafter has read the chain but for its last token, and no sibling.
    backlog = (1 if accepted == k else 0) + saved
    return k, k + len(siblings), k, accepted + saved, backlog


def replay(trace, figures_at):
    """[(row, levels, nodes, rows, accepted, backlog), ...] of each sequence; figures_at(s, row,
    backlog): a round's five figures.
    """
    everything = []
    for s in range(len(trace.budget)):
        row, backlog, rounds = int(trace.offset[s]), 0, []
        while row < int(trace.offset[s + 1]):
            figures = figures_at(s, row, backlog)
            rounds.append((row, *figures))
            backlog = figures[4] if figures[0] else backlog + 1
            row += figures[3] + 1
        everything.append(rounds)
    return everything


def price(cost, levels, nodes, rows, backlog):
    """Seconds of one round that starts with `backlog` unread rows."""
    seconds = float(cost.overhead) + float(cost.draft[levels]) + float(cost.verify[nodes])
    if levels:
        seconds += float(cost.catch_up[min(backlog, len(cost.catch_up) - 1)]) + float(cost.node) * (
            rows - levels
        )
    return seconds


def seconds(rounds, cost):
    """Seconds of the rounds of one sequence, as `replay` gives them."""
    backlog, total = 0, []
    for _, levels, nodes, rows, _, after in rounds:
        total.append(price(cost, levels, nodes, rows, backlog))
        backlog = after if levels else backlog + 1
    return total


def least(trace, cost, s, options):
    """The least seconds of sequence s, by trying all options at all rows; options(s, row):
    figures of rounds, one without drafts too.
    """
    known = {}

    def rest(row, backlog):
        if row >= int(trace.offset[s + 1]):
            return 0.0
        if (row, backlog) not in known:
            known[row, backlog] = min(
                price(cost, *figures[:3], backlog)
                + rest(row + figures[3] + 1, figures[4] if figures[0] else backlog + 1)
                for figures in options(s, row)
            )
        return known[row, backlog]

    return rest(int(trace.offset[s]), 0)


def trees_of(nodes, K, R):
    """Every tree of so many nodes as a set of paths."""
    trees = {frozenset()}
    for _ in range(nodes):
        trees = {
            tree | {(*path, r)}
            for tree in trees
            for path in [(), *tree]
            if len(path) < K
            for r in range(R)
            if (*path, r) not in tree
        }
    return trees


def value(tree, acceptance):
    """1 + the sum over nodes of the probability that the sequence takes their path."""
    return 1 + sum(math.prod(float(acceptance[d][r]) for d, r in enumerate(path)) for path in tree)
