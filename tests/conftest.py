"""Hypothesis: no deadlines (compilation falls into the first example), fixed examples; measured counts in the summary."""

import torch
from hypothesis import settings

# One commit, one verdict: examples are derived from the tests. `--hypothesis-profile=explore` draws new ones.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile("steady")
torch.set_num_threads(1)  # two workers on two cores; thread counts do not change a float64 law


def pytest_terminal_summary(terminalreporter):
    """Prints what tests recorded under "measured": figures that a green dot would hide."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    lines = [value for r in reports for name, value in r.user_properties if name == "measured"]
    for line in lines:
        terminalreporter.write_line(line)
