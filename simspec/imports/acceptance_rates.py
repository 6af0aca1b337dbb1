"""Acceptance rates for an engine to simulate: vLLM's synthetic rates, and Dynamo's vector."""

from collections.abc import Sequence

import numpy as np

from simspec.exports import dynamo, vllm_synthetic
from simspec.exports.vllm import LENGTH
from simspec.exports.vllm_synthetic import MEAN, RATES
from simspec.imports.kinds import PooledCounts
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Source
from simspec.imports.totals import origin_of

SUM = "1 + sum of the marginal rates (bonus token included)"
NO_COUNTS = "the file gives rates without counts: no intervals"
TOLD = "the file tells an engine what to simulate; that it was measured, at this K, is assumed"


def read_vllm_synthetic(source: Source, options: ImportOptions) -> PooledCounts:
    """Marginal rates of `rejection_sample_method: synthetic`, or the mean length alone."""
    config = vllm_synthetic.read(source.text)
    K = int(config[LENGTH])
    if RATES in config:
        return _of_marginals(source, K, config[RATES])
    reason = "synthetic_acceptance_length is a mean: it has no positions"
    return PooledCounts(
        origin_of(source), length=float(config[MEAN]),
        length_means="mean tokens a round (bonus token included)", draft_length=K,
        withheld={"rounds": NO_COUNTS, "acceptance by depth": reason}, notes=(TOLD,),
    )  # fmt: skip


def read_dynamo(source: Source, options: ImportOptions) -> PooledCounts:
    """Conditional rates of `--aic-nextn-accept-rates`; marginals are their products."""
    K, rates = dynamo.read(source.text)
    return _of_marginals(source, K, np.cumprod(rates).tolist())


def _of_marginals(source: Source, K: int, marginals: Sequence[float]) -> PooledCounts:
    return PooledCounts(
        origin_of(source), length=1 + float(np.sum(marginals)), length_means=SUM, draft_length=K,
        withheld={"rounds": NO_COUNTS}, marginals={K: tuple(map(float, marginals))}, notes=(TOLD,),
    )  # fmt: skip


FORMATS = (ImportFormat("dynamo", read_dynamo), ImportFormat("vllm-synthetic", read_vllm_synthetic))
