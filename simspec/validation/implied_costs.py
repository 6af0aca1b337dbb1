"""The cost ratio c that EESD Eq. 14 implies for each row of the paper's tables."""

from collections.abc import Mapping

from simspec.validation.paper_tables import EESD, table_rows
from simspec.validation.rounding import Range, range_of


def implied_cost(v_d: float, r_d: float, speedup: float) -> float:
    """The c = T_d / T_t at which Eq. 14 gives this speedup: v_d (1 - (1 - 1/speedup) / r_d).

    Below 0 there is none.
    """
    return v_d * (1 - (1 - 1 / speedup) / r_d)


def implied_costs() -> dict[tuple[str, str, str], dict[str, Range]]:
    """{(target, method, drafter): {table: (low, high)}}: c by EESD Tables 10-13, with rounding.

    Eq. 14 charges one plain step for a verification, so c includes whatever a round costs beyond.
    """
    costs: dict[tuple[str, str, str], dict[str, Range]] = {}
    for table, target, method, drafter, v_d, r_d, _, _, _, speedup in table_rows(EESD):
        if method != "plain":
            of_pair = costs.setdefault((target, method, drafter), {})
            of_pair[f"EESD {table}"] = range_of(implied_cost, v_d, r_d, speedup)
    return costs


def shared_cost(intervals: Mapping[str, Range]) -> Range | None:
    """The c that every table's interval allows; None where they disagree beyond rounding."""
    low = max(low for low, _ in intervals.values())
    high = min(high for _, high in intervals.values())
    return (low, high) if low <= high else None
