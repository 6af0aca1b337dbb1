"""Sizes and parameters of the checks on synthetic sequences."""

DEEP = 16
"""Longest draft."""

SEQUENCES, ROWS = 1500, 64
"""Synthetic sequences of each distribution, and the tokens of one."""

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
RATIOS = (0.05, 0.1, 0.3)
DECAYING = tuple(0.92 * 0.95**j for j in range(DEEP))
SWITCHING = ((0.35, 0.92), (0.1, 0.05))
"""Acceptance in each hidden state, and the probability of leaving it."""

DRIFTING = (0.95, 0.3)
"""Acceptance at the first and at the last row."""

SOME_LENGTHS = (1, 2, 4, 8, 16)
DROPPED_ALPHAS = (0.3, 0.7, 0.9)
"""Acceptance under a policy that drops a computed token."""
CONSTANT_ALPHAS, CONTINUE = (0.3, 0.6, 0.8, 0.95), (0.2, 0.5, 0.8, 0.95)
"""Acceptance, and the mean of a constant Beta posterior: the probability that a draft continues."""
