"""Figures of a campaign."""

from real.bench.scorecard_figure import draw_scorecard
from real.campaign.recordings import RULE
from real.campaign.scoring import scorecard
from real.campaign.selection import select_policies
from real.campaign.workspace import Workspace
from real.provenance import device_name
from simspec.reports.curve_plot import plot_curves
from simspec.reports.speedup_curve import speedup_curve


def draw_figures(workspace: Workspace) -> dict:
    """Draws speedup against K for recordings with costs, and the scorecard."""
    written, panels = [], {}
    for path in sorted((workspace.out / "traces").glob(f"*-{RULE}.parquet")):
        drafter = path.stem.split("-", 1)[1].removesuffix(f"-{RULE}")
        if path.with_suffix(".cost.json").exists():
            trace, cost = workspace.open_recording(drafter, RULE)
            longest = min(trace.K, cost.K)
            chosen = select_policies(workspace, trace, cost)[1:]
            panels[path.stem] = speedup_curve(
                trace, [*chosen, "oracle"], cost, seed=workspace.seed, longest=longest
            )
    (workspace.out / "figures").mkdir(exist_ok=True)
    if panels:
        plot_curves(panels, workspace.out / "figures" / "speedup.png")
        written.append("speedup.png")
    if card := scorecard(workspace, [name.split("-")[1] for name in panels]):
        draw_scorecard(card, workspace.out / "figures" / "scorecard.png")
        written.append("scorecard.png")
    return {"files": written, "device": device_name(workspace.device)}
