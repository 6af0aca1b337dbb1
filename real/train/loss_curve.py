"""The training loss as a picture and as JSON."""

from pathlib import Path

from real.files import replace_json, replacing


def save_loss_curve(log: list[dict], path: Path, title: str) -> None:
    """Draws the loss of a log over its steps to `path`, and writes the log beside it as JSON."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([row["step"] for row in log], [row["loss"] for row in log], lw=0.8)
    axes.set(xlabel="step", ylabel="loss, nats per token", title=title)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    replace_json(path.with_suffix(".json"), log)
