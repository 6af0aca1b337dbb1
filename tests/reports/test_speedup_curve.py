"""Pictures of speedups, predicted beside measured."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from simspec.numerics.stats import Estimate
from simspec.reports.speedup_curve import check_plots, plot_curves, plot_policies


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *at, **how: figures.append(self) or save(self, *at, **how)
    )
    return figures


def spans(bars):
    """Of drawn estimates: their points, and both ends of their bars."""
    points, _, (lines,) = bars
    ends = [segment.round(9).tolist() for segment in lines.get_segments()]
    return points.get_xydata().round(9).tolist(), ends


def test_plot_has_a_panel_for_each_run_whatever_its_name(tmp_path, drawn):
    curve = {k: Estimate(1.0 + k, 0.5 + k, 1.75 + k, 0.9, 9) for k in (1, 0)}
    names = ("a/b.parquet", "_$x$\x1b[1m", "n" * 300, "c", "d")  # of two rows of four panels
    measured = {name: {i: Estimate(1.5, 1.25, 2.0, 0.95, 9)} for i, name in enumerate(names)}
    plot_curves(dict.fromkeys(names, curve), measured, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = drawn
    for i, (axes, _) in enumerate(zip(figure.axes, names, strict=True)):
        assert axes.lines[0].get_xydata().tolist() == [[0, 1], [1, 2]]
        (band,) = (path.vertices.tolist() for path in axes.collections[0].get_paths())
        assert all(corner in band for corner in ([0, 0.5], [0, 1.75], [1, 1.5], [1, 2.75]))
        assert spans(axes.containers[0]) == ([[i, 1.5]], [[[i, 1.25], [i, 2.0]]])
    assert figure.axes[0].get_title() == "b.parquet, 90% intervals over 9 prompts"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["predicted", "measured"]


def test_policies_are_drawn_where_one_was_not_predicted(tmp_path, drawn):
    measured = {name: Estimate(1.5, 1.25, 1.75, 0.95, 9) for name in ("_$x$\x1b[1m", "entropy:0.6")}
    plot_policies({"entropy:0.6": Estimate(2.0, 1.0, 4.0, 0.95, 9)}, measured, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = drawn[0].axes
    assert [tick.get_text() for tick in axes.get_yticklabels()][1] == "entropy:0.6"
    predicted, found = axes.containers
    assert (predicted.get_label(), found.get_label()) == ("predicted", "measured")
    assert spans(predicted) == ([[2.0, 0.87]], [[[1.0, 0.87], [4.0, 0.87]]])
    assert spans(found)[0] == [[1.5, 0.13], [1.5, 1.13]]


def test_a_picture_is_a_png():
    with pytest.raises(ValueError, match=r"--plot is o.pdf, expected a name that ends in \.png"):
        check_plots(Path("o.pdf"))
