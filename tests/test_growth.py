"""The growth script measures what it says; nothing here looks at a clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "tools" / "bench"
sys.path.insert(0, str(BENCH))
import growth  # noqa: E402


def test_command_prints_one_point_a_process():
    command = [sys.executable, str(BENCH / "growth.py"), "--small"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    points = found["axes"]["tokens"]
    assert [row["tokens"] for row in points] == [500, 2000]
    assert [row["rows"] for row in points] == [3, 3]
    assert all(row["peak_mib"] >= row["idle_mib"] > 10 for row in points)
    assert all(min(row["load_s"], row["sweep_s"]) > 0 for row in points)


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_policies_differ_and_serve_every_depth(count):
    from simspec.policies import parse

    policies = [parse(name) for name in growth.policy_names(count)]
    assert len({policy.name for policy in policies}) == count
    assert [policy.longest(1) for policy in policies] == [1] * count


def test_axes_span_three_decades_where_the_format_allows_it():
    spans = {axis: values[-1] / values[0] for axis, (_, values) in growth.AXES.items()}
    assert spans == {"tokens": 1000, "recordings": 1000, "policies": 1000, "K": 255}


def test_exponent_is_that_of_a_power():
    points = [dict(K=x, s=0.1 * x**1.5, idle_mib=5, peak_mib=5 + 0.2 * x) for x in (3, 30, 90)]
    assert growth.exponent(points, "K", "s") == 1.5
    assert growth.exponent(points, "K", "more_mib") == 1.0


def test_control_memory_that_does_not_grow_has_no_exponent():
    points = [dict(K=x, idle_mib=5, peak_mib=5) for x in (3, 30)]
    assert growth.exponent(points, "K", "more_mib") is None


def _found(axis, values):
    """Figures of made-up points, in proportion to the size."""
    points = [
        {axis: x, "load_s": x / 1e4, "sweep_s": x / 1e3, "idle_mib": 90.0, "peak_mib": 90.0 + x}
        for x in values
    ]
    figures = ("load_s", "sweep_s", "more_mib")
    exponents = {figure: growth.exponent(points, axis, figure) for figure in figures}
    machine = {"device": "a processor", "cores": 2, "load_before": 0.1}
    versions = {"python": "3", "numba": "0", "numpy": "2"}
    return machine | versions | {"axes": {axis: points}, "exponents": {axis: exponents}}


def test_page_and_figure_show_the_figures(tmp_path):
    found = _found("policies", (1, 10, 1000))
    growth.write(found, tmp_path)
    page = (tmp_path / "growth.md").read_text(encoding="utf-8")
    row = "| policies | 1 | 1,000 | 0.0001 to 0.1 | 0.001 to 1 | 1 to 1e+03 | policies^1.00 |"
    assert row in page
    assert "a processor, 2 cores, one thread" in page
    assert json.loads((tmp_path / "growth.json").read_text(encoding="utf-8")) == found
    assert (tmp_path / "growth.svg").read_text(encoding="utf-8").count("in proportion") == 1


def test_page_of_the_repository_shows_its_figures():
    """There is no page without figures, and none that shows others."""
    figures, page = growth.DOCS / "growth.json", growth.DOCS / "growth.md"
    assert page.exists() == figures.exists() == (growth.DOCS / "growth.svg").exists()
    for path in [figures] if figures.exists() else []:
        assert page.read_text(encoding="utf-8") == growth.page(json.loads(path.read_text("utf-8")))
