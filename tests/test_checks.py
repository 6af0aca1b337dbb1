"""Checks share the risk of a false alarm, and excuse rounding alone."""

from types import SimpleNamespace

import pytest

from simspec.validation.checks import Check, CheckPlan


@pytest.mark.parametrize("got, ok", [(1.0, True), (2.0, True), (2 + 1e-8, False), (0.9999, False)])
def test_a_check_excuses_rounding_alone(got, ok):
    assert Check("c", 1.5, got, 1.0, 2.0).ok == ok


def test_planned_checks_share_the_risk():
    risks = []
    planned = [SimpleNamespace(checks=lambda risk: risks.append(risk) or []) for _ in range(8)]
    assert CheckPlan(planned).evaluate(0.004) == []
    assert risks == [0.0005] * 8
