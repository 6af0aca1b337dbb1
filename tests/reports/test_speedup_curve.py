"""Pictures of speedups, predicted beside measured."""

from pathlib import Path

import pytest

from simspec.numerics.stats import Estimate
from simspec.reports.speedup_curve import check_plots, plot_curves, plot_policies


def test_plot_has_a_panel_for_each_run_whatever_its_name(tmp_path):
    curve = {k: Estimate(1.0 + k, 0.5 + k, 1.5 + k, 0.9, 9) for k in (1, 0)}
    runs = {name: curve for name in ("a/b.parquet", "_$x$\x1b[1m", "n" * 300)}
    plot_curves(runs, runs, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_policies_are_drawn_where_one_was_not_predicted(tmp_path):
    found = {name: Estimate(1.5, 1.2, 1.7, 0.95, 9) for name in ("entropy:0.6", "_$x$\x1b[1m")}
    plot_policies(dict([*found.items()][:1]), found, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_a_png():
    with pytest.raises(ValueError, match=r"--plot is o.pdf, expected a name that ends in \.png"):
        check_plots(Path("o.pdf"))
