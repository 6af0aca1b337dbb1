"""The search of sub-layers that a self-speculative draft skips: prices, trials and the stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch

from real.drafters.self_skip import SelfSkipDrafter, SkipConfig, skipping_pass
from real.files import check_same_settings, read_card, replace_json
from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet, relabel
from real.train.accepted_length import TokenPair, accepted_lengths, accepted_share, prepared
from real.train.config import TrainConfig, check_folder
from real.train.drafter_card import environment, evaluation_summary
from real.train.drafter_data import DrafterData
from simspec.numerics.formulas import expected_committed
from simspec.numerics.stats import MIN_PROMPTS, ratio

REPEATS = 15
"""Interleaved timings of each pass, whose median counts."""


@dataclass(frozen=True)
class SkipPrice:
    """Cost of a round by the sub-layers that its drafts run through.

    | field | meaning |
    | --- | --- |
    | fixed | a draft step without any sub-layer: embedding, norm, head and pick |
    | attention, mlp | of one sub-layer more |
    | verify (float,) `[K + 1]` | a pass of 1 .. K + 1 rows |

    Units are steps of the target, one row each: `verify[0]` is 1.
    """

    fixed: float
    attention: float
    mlp: float
    verify: tuple[float, ...]

    @property
    def K(self) -> int:
        return len(self.verify) - 1

    def step(self, decoder: Decoder, skips: SkipConfig) -> float:
        """c: a draft step of the target without `skips`."""
        layers = len(decoder.layers)
        attention = (layers - len(skips.attention)) * self.attention
        return self.fixed + attention + (layers - len(skips.mlp)) * self.mlp

    def best_length(self, alpha: float, c: float) -> tuple[int, float]:
        """The k in 1..K of the largest (1 - α^(k+1)) / ((1 - α)(k c + verify[k])), and that.

        GLIDE §5.1 charges 1 for verification; ties go to the smallest k. Below 1 plain decoding is
        faster.
        """
        k = np.arange(1, self.K + 1)
        speedup = expected_committed(alpha, k) / (k * c + np.array(self.verify)[1:])
        best = int(speedup.argmax())
        return best + 1, float(speedup[best])

    def replay(self, accepted: Sequence[np.ndarray], k: int, c: float) -> dict:
        """The speedup of drafts of k on sequences, with its 95% interval, for a card.

        `accepted`: per sequence int64 `[n]`, of a draft of k or more from each position.
        """
        tokens = np.array([float(len(row)) for row in accepted])
        seconds = np.array([self._seconds(row, k, c) for row in accepted])
        found = {"k": k, "value": round(float(tokens.sum() / seconds.sum()), 4)}
        if len(tokens) < MIN_PROMPTS:
            return found | {"low": None, "high": None}
        interval = ratio(tokens, seconds)
        return found | {"low": round(interval.low, 4), "high": round(interval.high, 4)}

    def _seconds(self, accepted: np.ndarray, k: int, c: float) -> float:
        at, spent = 0, 0.0
        while at < len(accepted):
            drafted = min(k, len(accepted) - at - 1)
            spent += drafted * c + self.verify[drafted]
            at += min(drafted, int(accepted[at])) + 1
        return spent


def sublayer_price(K: int, layers: int) -> SkipPrice:
    """Costs by the number of sub-layers alone: no head, and verification at the price of a step."""
    share = 1 / (2 * layers)
    return SkipPrice(0.0, share, share, (1.0,) * (K + 1))


@torch.inference_mode()
def measured_price(
    decoder: Decoder, K: int, context: int = 128, repeats: int = REPEATS
) -> SkipPrice:
    """Times passes of `decoder` after `context` cached rows; single rows without any sub-layer,
    without attention, and without MLPs give the parts of a draft step."""
    layers = tuple(range(len(decoder.layers)))
    target = Target(decoder, capacity=context + K + 2)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(decoder.config.vocab, (context,), generator=generator).tolist()
    target.prefill(prompt)
    position = torch.tensor([target.length], device=decoder.device)
    row = torch.tensor(prompt[:1], device=decoder.device)

    def draft(skips: SkipConfig) -> Callable[[], object]:
        def run() -> int:
            hidden = skipping_pass(decoder, skips, row, position, None, target.cache, target.length)
            return int(decoder.logits(hidden[0]).argmax())

        return run

    def verification(rows: int) -> Callable[[], object]:
        def run() -> list[int]:
            output = target.verify(prompt[:rows], list(range(-1, rows - 1)), None)
            assert output.logits is not None  # only a prefill has none
            picks: list[int] = output.logits.argmax(-1).tolist()
            return picks

        return run

    runs = [
        draft(SkipConfig(layers, layers)),
        draft(SkipConfig((), layers)),
        draft(SkipConfig(layers, ())),
        *(verification(rows) for rows in range(1, K + 2)),
    ]
    fixed, with_attention, with_mlp, *verify = _medians(runs, repeats)
    step = verify[0]
    count = len(layers) * step
    return SkipPrice(
        fixed / step,
        max(0.0, with_attention - fixed) / count,
        max(0.0, with_mlp - fixed) / count,
        tuple(seconds / step for seconds in verify),
    )


def _medians(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each; every one waits for its result. Turns are interleaved."""
    seconds: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(repeats):
        for run, column in zip(runs, seconds):
            start = perf_counter()
            run()
            column.append(perf_counter() - start)
    return [median(column) for column in seconds]


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


@dataclass(frozen=True)
class SkipSearch:
    """A search of the sub-layers that a draft skips.

    | field | meaning |
    | --- | --- |
    | trials, seed | of the search |
    | texts | sequences that its trials are evaluated on |
    | place | the drafter's folder |
    | price | measured: of draft steps and verification, timed here; layers: the number of \
sub-layers, equal on every machine |
    """

    trials: int
    seed: int
    texts: int = 24
    place: str = "self_skip"
    price: str = "measured"

    @property
    def stored(self) -> dict[str, object]:
        """The fields as a card holds them; earlier cards were priced by layers."""
        fields = asdict(self)
        if self.price == "layers":
            del fields["price"]
        return fields


PRICES = ("measured", "layers")
"""Values of `SkipSearch.price`."""


def configured_search(config: TrainConfig, settings: dict, folder: str | None) -> SkipSearch:
    """The search with changed `settings`; ValueError for an unknown one."""
    known = ("trials", "seed", "texts")
    price = settings.get("price", config.skip_price)
    if price not in PRICES:
        raise ValueError(f"price is {price!r}; expected {' or '.join(PRICES)}")
    for key, value in settings.items():
        if key == "price":
            continue
        if key not in known or type(value) is not int or value < (key != "seed"):
            raise ValueError(
                f"self_skip cannot be searched with {key}={value!r}; "
                f"expected whole numbers for some of {', '.join(known)}, or price=layers"
            )
    check_folder(folder or "")
    search = SkipSearch(config.trials, config.seed, place=folder or "self_skip")
    return replace(search, **settings | {"price": price})


def search_skips(
    search: SkipSearch,
    data: DrafterData,
    pairs: Sequence[TokenPair],
    out: Path,
    progress: Progress = quiet,
) -> dict:
    """Searches on greedy training sequences, evaluates the best setting, and returns its card.

    The card holds the speedup that the search predicts and its replay on held-out sequences, at
    the same price.
    """
    folder = out / search.place
    requested = search.stored | {"target": dict(data.made_for)}
    if (folder / "card.json").exists():
        card = read_card(folder / "card.json")
        check_same_settings(card.get("asked", {}), requested, folder)
        return card
    if not (folder / "self_skip.json").exists():
        priced = measured_price(data.target, LONGEST) if search.price == "measured" else None
        found = relabel(progress, search.place)
        result = find(data.target, pairs, search.trials, search.seed, progress=found, price=priced)
        save(result, folder, data.made_for, "target-written, for training")
    content = read_card(folder / "self_skip.json")
    card = {
        "drafter": "self_skip",
        "asked": requested,
        "settings": content["settings"],
        "search": content["search"],
        "evaluation": evaluation_summary("self_skip", folder, data),
        "replay": _replay(content["search"], folder, data),
        **({"text": dict(data.source)} if data.source else {}),
        **environment(data.target.device),
    }
    replace_json(folder / "card.json", card)
    return card


def _replay(search: dict, folder: Path, data: DrafterData) -> dict:
    """The speedup of the promised draft length on held-out sequences, at the search's price."""
    price = sublayer_price(search["K"], len(data.target.layers))
    if stored := search.get("price"):
        price = SkipPrice(**stored | {"verify": tuple(stored["verify"])})
    drafter = SelfSkipDrafter.load(folder, data.target, data.made_for)
    lengths = accepted_lengths(data.target, drafter, data.evaluation, search["k"])
    return price.replay(lengths.accepted, search["k"], search["cost"])
