"""Inputs of a toy campaign, its workspace, and its command."""

import json

import typer

from real.campaign.__main__ import campaign
from real.campaign.config import TOY
from real.campaign.workspace import Workspace

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(campaign)
WORDS = [
    "the", "drafter", "proposes", "and", "the", "target", "disposes", "of", "every", "token",
    "it", "is", "shown",
]  # fmt: skip


def write_inputs(folder):
    """Writes text, held-out text and eight prompts of two tasks; returns the folder."""
    for name, count in (("text.txt", 4000), ("held.txt", 400)):
        (folder / name).write_text(" ".join(WORDS[i * i % len(WORDS)] for i in range(count)))
    rows = [
        {
            "id": f"p{i}",
            "task": "ab"[i % 2],
            "text": f"the target {WORDS[i]} the target {WORDS[i]} the",
        }
        for i in range(8)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def open_workspace(inputs, out, size=TOY, seed=0):
    """The opened workspace `out` of a campaign on those inputs."""
    text, heldout, prompts = (inputs / name for name in ("text.txt", "held.txt", "prompts.jsonl"))
    workspace = Workspace(out, size, (text,), (heldout,), (prompts,), "cpu", seed)
    workspace.open()
    return workspace
