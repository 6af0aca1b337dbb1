"""The running average that four policies and the fitted rule share."""

from hypothesis import given
from hypothesis import strategies as st

from simspec.policy.threshold import averaged

UNIT = st.floats(0, 1)


@given(UNIT, UNIT, UNIT)
def test_average_lies_between_the_old_one_and_the_value(average, value, weight):
    low, high = sorted((average, value))
    assert low - 1e-15 <= averaged(average, value, weight) <= high + 1e-15


@given(st.lists(UNIT, min_size=1, max_size=20), st.floats(0.01, 0.99))
def test_average_is_the_sum_of_fading_weights(values, weight):
    """(1 - w)^n start + sum of w (1 - w)^(n - i) value_i."""
    average = start = 0.25
    for value in values:
        average = averaged(average, value, weight)
    faded = start * (1 - weight) ** len(values)
    faded += sum(weight * (1 - weight) ** i * value for i, value in enumerate(reversed(values)))
    assert abs(average - faded) < 1e-12


def test_limits():
    assert averaged(0.3, 0.9, 1.0) == 0.9
    assert averaged(0.3, 0.9, 0.0) == 0.3
