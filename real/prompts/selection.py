"""Which prompts of a file are used: so many of every task, drawn by a seed."""

from collections.abc import Sequence

import numpy as np

from real.prompts.prompt import Prompt


def draw(prompts: Sequence[Prompt], per_task: int, seed: int) -> list[Prompt]:
    """Sample up to `per_task` prompts of each task without replacement, in file order."""
    kept: list[int] = []
    for task in dict.fromkeys(p.task for p in prompts):
        of = [i for i, p in enumerate(prompts) if p.task == task]
        pick = np.random.default_rng(seed).permutation(len(of))[:per_task]
        kept += sorted(of[i] for i in pick)
    return [prompts[i] for i in kept]
