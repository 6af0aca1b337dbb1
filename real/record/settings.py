"""The settings of a recording."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from real.decode.features import feature_grids, required_predictors
from real.draft import Drafter
from real.prompts import Prompt
from real.provenance import argv, device_name, revision, versions
from real.sampling import Rule
from simspec import TraceMeta
from simspec.tree.tree import MAX_RANKS

MAX_BATCH = 65536


class RecordError(ValueError):
    """A recording that cannot be made or continued."""


@dataclass(frozen=True)
class Settings:
    """What to record.

    | field | meaning |
    | --- | --- |
    | K | draft depth at every position, 1 .. 255 |
    | budget | most new tokens per sequence |
    | rule, end_tokens | of the target's sequences |
    | features | names of recorded features; none under the rejection rule |
    | tree | (width, levels) of dynamic trees, or () |
    | batch | sequences of the target that are written at a time |

    RecordError for anything else.
    """

    K: int
    budget: int
    rule: Rule
    end_tokens: tuple[int, ...]
    features: tuple[str, ...] = ("confidence", "entropy")
    tree: tuple[int, int] | tuple[()] = ()
    batch: int = 1

    def __post_init__(self):
        if self.rule.sampled and self.features:
            raise RecordError(
                "a recording of the rejection rule holds no features, because it replays in "
                "distribution only; record without features"
            )
        if not 1 <= self.K <= 255 or self.budget < 1:
            raise RecordError(
                f"K is {self.K} and budget {self.budget}; "
                "expected 1 <= K <= 255 and at least one token"
            )
        if not 1 <= self.batch <= MAX_BATCH:
            raise RecordError(
                f"batch is {self.batch}; expected 1 to {MAX_BATCH} sequences at a time"
            )
        if self.tree != () and not _is_tree(self.tree, self.K):
            raise RecordError(
                f"tree is {self.tree!r}; expected a width from 1 to {MAX_RANKS} and "
                f"levels from 1 to K, here {self.K}, or ()"
            )


def _is_tree(tree, K: int) -> bool:
    return (
        type(tree) is tuple
        and [*map(type, tree)] == [int, int]
        and 1 <= tree[0] <= MAX_RANKS
        and 1 <= tree[1] <= K
    )


def describe(
    target: str,
    drafter: Drafter,
    settings: Settings,
    prompts: Sequence[Prompt],
    tokenizer_sha256: str,
    device: torch.device | str,
    dtype: torch.dtype,
) -> TraceMeta:
    """The metadata of a recording made by this process on this machine."""
    rule = settings.rule
    return TraceMeta(
        rule=rule.name,
        target=target,
        drafter=drafter.name,
        K=settings.K,
        tokenizer_sha256=tokenizer_sha256,
        features=feature_grids(settings.features),
        predictors={
            name: p.sha256 for name, p in required_predictors(settings.features, drafter).items()
        },
        temperature=0.0 if rule.name == "greedy" else rule.temperature,
        top_k=rule.top_k,
        top_p=float(rule.top_p),
        seed=rule.seed,
        end_tokens=settings.end_tokens,
        prefix_only=drafter.prefix_only,
        sources=tuple(sorted({p.source for p in prompts})),
        device=device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        versions=versions(),
        git=revision(),
        argv=argv(),
        tree=settings.tree,
        batch=settings.batch,
    )
