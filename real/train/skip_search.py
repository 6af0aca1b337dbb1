"""Which sub-layers a self-speculative draft leaves out: a search by Bayesian optimisation on texts of a development split.

Draft & Verify (arXiv 2309.08168), the released baseline of EESD, searches the same 2L binary choices. It times whole generations;
here a setting is judged without a clock, by formula 1 (GLIDE section 5.1) at an acceptance that is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from real.drafters.self_skip import SkipConfig, skipping_pass
from real.files import replace_json
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache
from real.progress import Progress, quiet
from simspec.formulas import expected_speedup


@dataclass(frozen=True)
class Trial:
    """One setting tried.

    | field | meaning |
    | --- | --- |
    | skips | what it leaves out |
    | acceptance | share of positions where its first draft token is the target's pick (greedy) |
    | cost | c: one draft step in target steps |
    | k, speedup | best fixed draft length in 1..K, and formula 1 there |
    """

    skips: SkipConfig
    acceptance: float
    cost: float
    k: int
    speedup: float


@dataclass(frozen=True)
class Found:
    """The best of a search (of equals the first), the trials in the order they were made, and what would repeat it."""

    best: Trial
    trials: tuple[Trial, ...]
    seed: int
    K: int
    texts: int
    tokens: int


@dataclass(frozen=True)
class _Text:
    """A text's judged rows: their tokens, places, what each sees of the full pass's cache, and the target's picks there."""

    token: Tensor
    position: Tensor
    mask: Tensor
    cache: KVCache
    start: int
    pick: Tensor


def sublayer_share(decoder: Decoder, skips: SkipConfig) -> float:
    """c as the share of the target's attention and MLP sub-layers that a draft step runs: the same on every device."""
    return skips.count(len(decoder.layers)) / (2 * len(decoder.layers))


def weight_share(decoder: Decoder, skips: SkipConfig) -> float:
    """c as the share of the weights that a step reads, its head included: what time is made of where memory bounds it."""
    attention = [
        sum(p.numel() for m in (l.query, l.key, l.value, l.output) for p in m.parameters())
        for l in decoder.layers
    ]
    mlp = [sum(m.weight.numel() for m in (l.gate, l.up, l.down)) for l in decoder.layers]
    whole = sum(attention) + sum(mlp) + decoder.head.weight.numel()
    return (
        whole - sum(attention[i] for i in skips.attention) - sum(mlp[i] for i in skips.mlp)
    ) / whole


@torch.inference_mode()
def _prepare(decoder: Decoder, prompt: Sequence[int], text: Sequence[int]) -> _Text:
    """One full pass over a text, with room behind it for as many draft rows as it wrote tokens."""
    device, rows, judged = decoder.device, len(prompt) + len(text) - 1, len(text)
    token = torch.tensor([*prompt, *text[:-1]], device=device)
    place = torch.arange(rows, device=device)
    cache = decoder.cache(capacity=rows + judged)
    causal = torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
    x = decoder.run(
        decoder.embed(token[None]),
        range(len(decoder.layers)),
        decoder.rotation(place),
        causal,
        cache,
        0,
    )
    before = (
        place < place[-judged:, None]
    )  # a first draft row sees the committed rows before its own
    mask = torch.cat((before, torch.eye(judged, dtype=torch.bool, device=device)), 1)
    return _Text(
        token[-judged:],
        place[-judged:],
        mask,
        cache,
        rows,
        decoder.logits(x[0, -judged:]).argmax(-1),
    )


@torch.inference_mode()
def _agreeing(decoder: Decoder, skips: SkipConfig, text: _Text) -> int:
    hidden = skipping_pass(
        decoder, skips, text.token, text.position, text.mask, text.cache, text.start
    )
    return int((decoder.logits(hidden).argmax(-1) == text.pick).sum())


def acceptance(
    decoder: Decoder, skips: SkipConfig, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> float:
    """Share of the positions of `texts` (prompt, what the target wrote after it) where the first draft token is the target's pick.

    Exactly what the drafter proposes as the first token of a round there, greedily, on the cache that full passes left: all
    positions of a text in one pass. Later slots stand on the draft's own rows and agree less often.
    """
    prepared = [_prepare(decoder, *text) for text in _checked(texts)]
    return sum(_agreeing(decoder, skips, t) for t in prepared) / sum(len(t.token) for t in prepared)


def judge(alpha: float, c: float, K: int) -> tuple[int, float]:
    """The draft length k in 1..K of the largest expected speedup (formula 1, the smallest k of equals), and that speedup."""
    speedup = expected_speedup(alpha, np.arange(1, K + 1), c)
    best = int(speedup.argmax())
    return best + 1, float(speedup[best])


def find(
    decoder: Decoder,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    trials: int = 200,
    seed: int = 0,
    K: int = 16,
    cost: Callable[[Decoder, SkipConfig], float] = sublayer_share,
    progress: Progress = quiet,
) -> Found:
    """The skipped sub-layers of the largest expected speedup in `trials` trials of optuna's TPE over the 2L binary choices.

    The first trial skips nothing, so a result is never worse than 1. `texts` are pairs (prompt, what the target wrote after it) of
    a development split; `cost` gives c of a setting, a measured one if you like. The same seed gives the same trials, as long
    as `cost` is a function. `progress` receives the trials done and, as a note, the best speedup. ValueError for no texts, an
    empty one, or no trials.
    """
    import optuna

    if trials < 1 or K < 1:
        raise ValueError(f"trials is {trials} and K {K}; expected at least 1 of each")
    layers = len(decoder.layers)
    prepared = [_prepare(decoder, *text) for text in _checked(texts)]
    tokens = sum(len(t.token) for t in prepared)
    tried: dict[SkipConfig, Trial] = {}

    def attempt(skips: SkipConfig) -> Trial:
        if skips not in tried:
            alpha, c = (
                sum(_agreeing(decoder, skips, t) for t in prepared) / tokens,
                float(cost(decoder, skips)),
            )
            tried[skips] = Trial(skips, alpha, c, *judge(alpha, c, K))
        return tried[skips]

    loud = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)
        )
    finally:
        optuna.logging.set_verbosity(loud)
    names = [(kind, i) for i in range(layers) for kind in ("attention", "mlp")]
    study.enqueue_trial({f"{kind} {i}": False for kind, i in names})
    made: list[Trial] = []
    for done in range(1, trials + 1):
        asked = study.ask()
        skipped = [
            (kind, i)
            for kind, i in names
            if asked.suggest_categorical(f"{kind} {i}", (False, True))
        ]
        made.append(
            attempt(
                SkipConfig(
                    *(
                        tuple(i for kind, i in skipped if kind == wanted)
                        for wanted in ("attention", "mlp")
                    )
                )
            )
        )
        study.tell(asked, made[-1].speedup)
        best = max(made, key=lambda t: t.speedup)
        progress("searching", done, trials, f"speedup {best.speedup:.3f}")
    return Found(max(made, key=lambda t: t.speedup), tuple(made), seed, K, len(prepared), tokens)


def save(found: Found, folder: Path, made_for: Mapping[str, str], split: str) -> None:
    """Writes self_skip.json: the best settings, whom they are for, and how they were found (on the prompts of `split`)."""
    best = found.best
    search = {
        "split": split,
        "texts": found.texts,
        "tokens": found.tokens,
        "trials": len(found.trials),
        "seed": found.seed,
        "K": found.K,
    }
    result = {"score": best.speedup, "k": best.k, "acceptance": best.acceptance, "cost": best.cost}
    replace_json(
        folder / "self_skip.json",
        {"settings": best.skips.settings, "target": dict(made_for), "search": search | result},
    )


def _checked(
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
    empty = next(
        (i for i, (prompt, text) in enumerate(texts) if not len(prompt) or not len(text)), None
    )
    if not len(texts) or empty is not None:
        what = (
            "no texts"
            if empty is None
            else f"text {empty} has an empty prompt or nothing written after it"
        )
        raise ValueError(
            f"{what}; expected pairs (prompt, what the target wrote after it), one token each at least"
        )
    return texts
