"""The exponential running average of policies and reports."""

from simspec.compile_cache import cached_njit


@cached_njit
def averaged(average: float, value: float, weight: float) -> float:
    """The running average after one more value: (1 - weight) average + weight value."""
    return (1.0 - weight) * average + weight * value
