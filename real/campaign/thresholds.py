"""Thresholds of a campaign's requirements, and the drafters that they hold for."""

from real.campaign.config import REQUIRED

DRAFTERS = (*REQUIRED, "prompt_lookup")
TASKS = 6
"""Least number of tasks."""
STEPS = {"8b": 1.6, "lab": 5.0}
"""Largest ratio of a captured plain step's latency to its floor, at batch 1 and any context."""
ASSISTED, EMULATED, ON_ONE = 1.3, 1.8, 2.5
"""Least speedups: over assisted generation; emulated, over all prompts and on one task."""
EXCEPTIONS = 0.002
"""Largest share of float32 rounds that may differ from their replays."""
