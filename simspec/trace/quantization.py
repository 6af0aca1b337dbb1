"""The 256-entry grids on which recorded features live.

A feature reaches a policy only as a decoded code, in the recorder, the simulator and the torch
engine alike: otherwise a value that a recording rounds could decide one way there and another way
live.
"""

import numpy as np

_STEP = np.arange(256) / 255.0

# Logistic grid from sigmoid(-8) to sigmoid(12): fine near 1, where stopping thresholds sit.
LOG_ODDS = 1.0 / (1.0 + np.exp(-(-8.0 + 20.0 * _STEP)))
# 0 to 9 nats, spacing growing from 0: rules on entropy stop near 0.
ENTROPY = 9.0 * _STEP**2
IDENTITY = _STEP

TABLES = {"confidence": LOG_ODDS, "entropy": ENTROPY, "identity": IDENTITY}


def table(name: str) -> np.ndarray:
    """The float64[256] grid of that name; ValueError names the known ones."""
    if name not in TABLES:
        raise ValueError(f"grid is {name!r}, expected one of {', '.join(sorted(TABLES))}")
    return TABLES[name]


def encode(values: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest grid entry of each value: (codes uint8, distance float64 to the nearest bin edge), in
    values' shape.

    Edges are the midpoints of neighbouring entries; a value on an edge belongs to the upper bin.
    The distance says how far numerical noise may push the value before its code changes. ValueError
    for NaN.
    """
    values = np.asarray(values, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError(
            "a feature value is NaN, expected a number: the drafter's output is broken, check its "
            "logits"
        )
    inner = (table[1:] + table[:-1]) / 2
    edges = np.concatenate(([-np.inf], inner, [np.inf]))
    codes = np.searchsorted(inner, values, side="right")
    return codes.astype(np.uint8), np.minimum(values - edges[codes], edges[codes + 1] - values)


def decode(codes: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The float64 grid values of uint8 codes, in their shape."""
    return table[codes]


LARGEST_RATIO = 2.0**20
"""Cap of the ratios q / p that are recorded: p of the target's tokens may be tiny."""


def coarse_ratio(ratio: np.ndarray) -> np.ndarray:
    """float32 ratios q / p >= 0 as they are recorded: exact up to 1, and above to 11 bits, since
    files pack these well, and at most LARGEST_RATIO.
    """
    above = (np.minimum(ratio, LARGEST_RATIO) / 32).astype(np.float16) * np.float32(32)
    return np.where(ratio > 1, above, ratio).astype(np.float32)


# Margins (best minus second logit, distances to a bin edge) span decades: 32 codes per factor of
# ten.
_MARGIN = 10.0 ** (-7 + np.arange(256) / 32)


def encode_margin(values: np.ndarray) -> np.ndarray:
    """uint8 code clip(ceil(32 (log10(x) + 7)), 0, 255) of each margin x >= 0, in its shape.

    Rounded up: `decode_margin(code) >= x` up to code 255, so a code under 96 (1e-4 exactly) proves
    x < 1e-4, while a margin just under 1e-4 may carry code 96. ValueError for NaN or negative
    margins.
    """
    values = np.asarray(values, dtype=np.float64)
    if not (values >= 0).all():
        raise ValueError(
            "a margin is negative or NaN, expected a number >= 0: pass best minus second, or a "
            "distance"
        )
    # A search in the decoded values keeps the inequality exact, where log10 could be an ulp off.
    return np.minimum(np.searchsorted(_MARGIN, values, side="left"), 255).astype(np.uint8)


def decode_margin(codes: np.ndarray) -> np.ndarray:
    """The margin 10**(-7 + code / 32) of uint8 codes, float64: code 0 says 'at most 1e-7', code 255
    '9.3 or more'.
    """
    return _MARGIN[codes]
