"""The metadata of a recording."""

from collections.abc import Sequence

import torch

from real.decode.features import feature_grids, required_predictors
from real.draft import Drafter
from real.prompts import Prompt
from real.provenance import argv, device_name, revision, versions
from real.record.settings import Settings
from simspec import TraceMeta


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
