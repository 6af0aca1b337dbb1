"""Bayesian search for the sub-layers that a self-speculative draft leaves out.

Draft & Verify (arXiv 2309.08168), the released baseline of EESD, searches the same 2L binary
choices by timing whole generations. Here a setting is scored by formula 1 (GLIDE section 5.1) at a
counted acceptance and a price of its parts: measured once, or their number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from real.drafters.self_skip import SkipConfig
from real.files import replace_json
from real.model.decoder import Decoder
from real.progress import Progress, quiet
from real.train.skip_acceptance import TokenPair, accepted_share, prepared
from real.train.skip_price import SkipPrice, sublayer_price

LONGEST = 16
"""The longest draft that a search considers."""


@dataclass(frozen=True)
class Trial:
    """One setting tried.

    | field | meaning |
    | --- | --- |
    | skips | the sub-layers left out |
    | acceptance | share of positions whose first draft token is the target's pick (greedy) |
    | cost | c: one draft step in target steps |
    | k, speedup | best fixed draft length in 1..K, and `SkipPrice.best_length` there |
    """

    skips: SkipConfig
    acceptance: float
    cost: float
    k: int
    speedup: float


@dataclass(frozen=True)
class SearchResult:
    """The best trial of a search (ties: the first), all trials in order, and its settings.

    `price` is what trials were priced by where that was measured, else None.
    """

    best: Trial
    trials: tuple[Trial, ...]
    seed: int
    K: int
    texts: int
    tokens: int
    price: SkipPrice | None = None


def find(
    decoder: Decoder,
    sequences: Sequence[TokenPair],
    trials: int = 200,
    seed: int = 0,
    K: int = LONGEST,
    cost: Callable[[Decoder, SkipConfig], float] | None = None,
    progress: Progress = quiet,
    price: SkipPrice | None = None,
) -> SearchResult:
    """The skipped sub-layers of the largest expected speedup in `trials` trials of optuna's TPE.

    Drafts are priced by `price`, of as many tokens as it prices; without one by the number of
    sub-layers. `cost` replaces its draft step. The first trial skips nothing. `sequences` are pairs
    (prompt, the target's new tokens) of a development split. The same seed gives the same trials at
    the same price. ValueError for no sequences, an empty one, or no trials.
    """
    import optuna

    if trials < 1 or K < 1:
        raise ValueError(f"trials is {trials} and K {K}; expected at least 1 of each")
    priced = price or sublayer_price(K, len(decoder.layers))
    step = cost or priced.step
    ready = prepared(decoder, sequences)
    evaluated: dict[SkipConfig, Trial] = {}

    def evaluate(skips: SkipConfig) -> Trial:
        if skips not in evaluated:
            alpha, c = accepted_share(decoder, skips, ready), float(step(decoder, skips))
            evaluated[skips] = Trial(skips, alpha, c, *priced.best_length(alpha, c))
        return evaluated[skips]

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
    names = [(kind, i) for i in range(len(decoder.layers)) for kind in ("attention", "mlp")]
    study.enqueue_trial({f"{kind} {i}": False for kind, i in names})
    history: list[Trial] = []
    for done in range(1, trials + 1):
        choice = study.ask()
        skipped: dict[str, list[int]] = {"attention": [], "mlp": []}
        for kind, i in names:
            if choice.suggest_categorical(f"{kind} {i}", (False, True)):
                skipped[kind].append(i)
        history.append(evaluate(SkipConfig(tuple(skipped["attention"]), tuple(skipped["mlp"]))))
        study.tell(choice, history[-1].speedup)
        best = max(history, key=lambda t: t.speedup)
        progress("skips", done, trials, f"speedup {best.speedup:.3f}")
    tokens = sum(len(s.token) for s in ready)
    return SearchResult(best, tuple(history), seed, priced.K, len(ready), tokens, price)


def save(result: SearchResult, folder: Path, made_for: Mapping[str, str], split: str) -> None:
    """Writes self_skip.json: the best settings, their target, and how they were found."""
    best = result.best
    search = {
        "split": split,
        "texts": result.texts,
        "tokens": result.tokens,
        "trials": len(result.trials),
        "seed": result.seed,
        "K": result.K,
        "score": best.speedup,
        "k": best.k,
        "acceptance": best.acceptance,
        "cost": best.cost,
    }
    if result.price is not None:
        search["price"] = asdict(result.price)
    content = {"settings": best.skips.settings, "target": dict(made_for), "search": search}
    replace_json(folder / "self_skip.json", content)
