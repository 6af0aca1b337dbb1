"""Whether the seconds of a run agree with its prediction. Rounds may be equal where they do not."""

from simspec import CostModel
from simspec.cost.gate import Claim, PriceError, check_claims, settled
from simspec.numerics.stats import Estimate


def doubt(predicted: Claim, measured: Claim, error: Estimate, cost: CostModel, device: str) -> str:
    """Why a predicted and a measured speedup settle nothing; "" where they agree within noise.

    predicted: NaN where nothing predicts the run; error: predicted / measured - 1 over prompts;
    device: where it ran. Costs of another device, and ratios that somebody gave, are only refused
    as prices: they do not predict these seconds.
    """
    try:
        check_claims([predicted], cost, cost.name)
        check_claims([measured])
    except PriceError as refused:
        return str(refused)
    pair = predicted.speedup, measured.speedup
    compared = predicted.speedup > 0 and cost.precision is not None and cost.device == device
    if not compared or settled(*pair) or 0 in error:
        return ""
    return (
        f"the seconds are not settled (predicted {pair[0]:.2f}, measured {pair[1]:.2f}): run again "
        "on an idle machine"
    )


def source_of(cost: CostModel, device: str) -> str:
    """Whose costs a prediction rests on, in words."""
    if cost.precision is None:
        return "at given costs"
    return "at costs measured here" if cost.device == device else f"at costs of {cost.device}"
