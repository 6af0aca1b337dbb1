"""Hypothesis without deadlines (compilation falls into the first example), and measured counts in the summary."""

import torch
from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
torch.set_num_threads(1)  # two workers on two cores; thread counts do not change a float64 law


def pytest_terminal_summary(terminalreporter):
    """Prints what tests recorded under "measured": figures that a green dot would hide."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    lines = [value for r in reports for name, value in r.user_properties if name == "measured"]
    for line in lines:
        terminalreporter.write_line(line)
