"""Figures of a campaign."""

from real.bench.scorecard_figure import draw_scorecard
from real.campaign.recordings import RULE
from real.campaign.scoring import scorecard
from real.campaign.selection import select_policies
from real.campaign.workspace import Workspace
from real.drafters import BUILTIN
from real.provenance import device_name
from simspec.reports.curve_plot import plot_curves
from simspec.reports.speedup_curve import speedup_curve


def draw_figures(workspace: Workspace) -> dict:
    """Draws speedup against K for recordings with costs, and the scorecard."""
    written, panels, drafters = [], {}, []
    for drafter in sorted(BUILTIN):
        path = workspace.trace(drafter, RULE)
        if path.exists() and path.with_suffix(".cost.json").exists():
            trace, cost = workspace.open_recording(drafter, RULE)
            longest = min(trace.K, cost.K)
            chosen = select_policies(workspace, trace, cost)[1:]
            drafters.append(drafter)
            panels[path.stem] = speedup_curve(
                trace, [*chosen, "oracle"], cost, seed=workspace.seed, longest=longest
            )
    (workspace.out / "figures").mkdir(exist_ok=True)
    if panels:
        plot_curves(panels, workspace.out / "figures" / "speedup.png")
        written.append("speedup.png")
    if card := scorecard(workspace, drafters):
        draw_scorecard(card, workspace.out / "figures" / "scorecard.png")
        written.append("scorecard.png")
    return {"files": written, "device": device_name(workspace.device)}
