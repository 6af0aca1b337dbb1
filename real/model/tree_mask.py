"""Which rows of a tree each row attends to, and at which positions."""

import torch
from torch import Tensor


def chain(rows: int) -> list[int]:
    """Parents of `rows` rows in one line: -1, 0, 1, ... (-1 is the last row already in the
    cache)."""
    return list(range(-1, rows - 1))


def depths(parent: list[int]) -> list[int]:
    """Depth of each row of a tree below the cached prefix, 0 for its children; parents come before
    children."""
    depth: list[int] = []
    for i, p in enumerate(parent):
        if not -1 <= p < i:
            raise ValueError(
                f"parent[{i}] is {p}; expected -1 (the cached prefix) or an earlier row"
            )
        depth.append(0 if p < 0 else depth[p] + 1)
    return depth


def ancestor_mask(start: int, parent: list[int], device=None) -> Tensor | None:
    """Bool mask `[n, start + n]`: a row sees the cached prefix, its ancestors and itself; None
    where it sees all."""
    rows = len(parent)
    if rows == 1:
        return None
    if parent == chain(rows):
        return torch.ones(rows, start + rows, dtype=torch.bool, device=device).tril(start)
    sees = torch.zeros(rows, start + rows, dtype=torch.bool)
    sees[:, :start] = True
    for i, p in enumerate(parent):
        if p >= 0:
            sees[i] = sees[p]
        sees[i, start + i] = True
    return sees.to(device)


def branches(base: int, parent: list[int], rows: int, device=None) -> tuple[Tensor, Tensor]:
    """Where the last `rows` rows of a tree stand whose row 0 is the text's row `base`: positions
    `[rows]`, and whom each sees.

    `parent` is that of all the tree's rows, -1 for row 0; the mask, bool `[rows, base +
    len(parent)]`, is `ancestor_mask`'s part.
    """
    first = len(parent) - rows
    depth = depths(parent)[first:]
    sees = ancestor_mask(base, parent, device)
    if sees is None:
        sees = torch.ones(1, base + 1, dtype=torch.bool, device=device)
    return base + torch.tensor(depth, device=device), sees[first:]
