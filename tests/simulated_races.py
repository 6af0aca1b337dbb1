"""Simulated races whose calls take recorded times, on a machine that drifts, stalls and bursts."""

import json
from pathlib import Path

import numpy as np

RACE = Path(__file__).parent.parent / "traces" / "smollm2" / "measured" / "race.json"
PROMPTS, REPEATS = 20, 5


def recorded():
    """(tokens, mean seconds of plain decoding by prompt, log noise of one call) of a race."""
    raw = json.loads(RACE.read_text(encoding="utf-8"))["raw"]
    tokens, seconds = (np.array(raw["plain"][name]) for name in ("tokens", "seconds"))
    noise = []
    for each in raw.values():
        logs = np.log(np.array(each["seconds"]))
        apart = logs - logs.mean(0)
        noise.append(apart.ravel() * np.sqrt(len(logs) / (len(logs) - 1)))
    return tokens.mean(0), seconds.mean(0), np.concatenate(noise)


TOKENS, SECONDS, NOISE = recorded()


def machine(rng, repeats):
    """float64 `[R, S]`: slowness of the machine by block: a drift, and blocks with half its CPU."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.03, repeats * PROMPTS)))
    stolen = np.repeat(rng.random(repeats * PROMPTS // 5) < 0.1, 5)
    return (drift * np.where(stolen, 2.0, 1.0)).reshape(repeats, PROMPTS)


def calls(rng, repeats, bursts):
    """float64 `[R, S]`: noise of single calls as recorded; some `bursts` take much longer."""
    noise = np.exp(rng.choice(NOISE, (repeats, PROMPTS)))
    long = rng.random((repeats, PROMPTS)) < bursts
    return noise * np.where(long, 1 + rng.exponential(1.0, noise.shape), 1)


def simulated(rng, ratio=1.0, spread=0.0, bursts=0.0, repeats=REPEATS, blocks=True):
    """(tokens, seconds, tokens, seconds), float64 `[R, S]`, of a contestant and of plain decoding.

    The contestant is `ratio` times as fast on a prompt, times a lognormal of deviation `spread`.
    Without `blocks` each runs all prompts in its own minutes.
    """
    pick = rng.integers(len(TOKENS), size=PROMPTS)
    tokens = np.broadcast_to(TOKENS[pick], (repeats, PROMPTS))
    faster = ratio * np.exp(spread * rng.standard_normal(PROMPTS))
    slowness = machine(rng, repeats)
    apart = slowness if blocks else machine(rng, repeats)
    plain = SECONDS[pick] * slowness * calls(rng, repeats, bursts)
    return tokens, SECONDS[pick] / faster * apart * calls(rng, repeats, bursts), tokens, plain


def true_ratio(ratio, spread):
    """Ratio of the rates over the population of prompts."""
    rng = np.random.default_rng(1)
    pick = rng.integers(len(TOKENS), size=1_000_000)
    faster = ratio * np.exp(spread * rng.standard_normal(len(pick)))
    return SECONDS[pick].sum() / (SECONDS[pick] / faster).sum()
