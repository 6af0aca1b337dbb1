"""The search of sub-layers that a self-speculative draft skips: prices, trials and the card."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.drafters.self_skip import ParallelSelfSkip, SelfSkipDrafter, SkipConfig, skipping_pass
from real.files import check_same_settings, read_card, replace_json
from real.model.decoder import Decoder
from real.model.passes import TargetPass
from real.model.target import Target
from real.progress import Progress, quiet, relabel
from real.provenance import environment
from real.train.data import Continuation, TrainingData
from real.train.evaluation import accepted_lengths, evaluate_drafter, evaluation_size, summary
from real.train.settings import Training
from simspec.numerics.formulas import expected_committed
from simspec.numerics.stats import MIN_PROMPTS, ratio


def prepared(
    decoder: Decoder, sequences: Sequence[Continuation]
) -> list[tuple[TargetPass, Tensor]]:
    """(the target's pass, its new tokens) of each sequence; ValueError for none, or an empty part.

    Drafts of a trial overwrite none of the pass, so that it serves all trials.
    """
    if not len(sequences) or not all(len(part) for pair in sequences for part in pair):
        raise ValueError("expected pairs (prompt, new tokens), of one token each at least")
    return [
        (TargetPass(decoder, list(prompt), list(new)), torch.tensor(new, device=decoder.device))
        for prompt, new in sequences
    ]


@torch.inference_mode()
def acceptance(
    decoder: Decoder, skips: SkipConfig, sequences: Sequence[tuple[TargetPass, Tensor]]
) -> float:
    """Share of positions where the first draft token is the target's own, of `prepared` ones.

    Later slots build on draft rows and are accepted less often.
    """
    drafter, hits = SelfSkipDrafter(decoder, skips), 0
    for full, token in sequences:
        position = torch.arange(len(token), device=token.device)
        logits, _ = ParallelSelfSkip(drafter, full).start(position)
        hits += int((logits[:, 0].argmax(-1) == token).sum())
    return hits / sum(len(token) for _, token in sequences)


REPEATS = 15
"""Interleaved timings of each pass, whose median counts."""


@dataclass(frozen=True)
class SkipPrice:
    """Cost of a round by the sub-layers that its drafts run through.

    Units are steps of the target, one row each: `verify[0]` is 1.
    """

    fixed: float  # a draft step without any sub-layer: embedding, norm, head and pick
    # attention, mlp: of one sub-layer more
    attention: float
    mlp: float
    verify: tuple[float, ...]  # (float,) [K + 1]: a pass of 1 .. K + 1 rows

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

    def draft(attention: tuple[int, ...], mlp: tuple[int, ...]) -> int:
        skips, place = SkipConfig(attention, mlp), (target.cache, target.length)
        hidden = skipping_pass(decoder, skips, row, position, None, *place)
        return int(decoder.logits(hidden[0]).argmax())

    def verification(rows: int) -> object:
        logits = target.verify(prompt[:rows], list(range(-1, rows - 1)), None).logits
        assert logits is not None  # only a prefill has none
        return logits.argmax(-1).tolist()

    skipped = (layers, layers), ((), layers), (layers, ())
    runs: list[Callable[[], object]] = [
        *(partial(draft, *pair) for pair in skipped),
        *(partial(verification, rows) for rows in range(1, K + 2)),
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
    """One setting tried."""

    skips: SkipConfig  # the sub-layers left out
    acceptance: float  # share of positions whose first draft token is the target's pick (greedy)
    cost: float  # c: one draft step in target steps
    # k, speedup: best fixed draft length in 1..K, and SkipPrice.best_length there
    k: int
    speedup: float


def find(
    decoder: Decoder,
    sequences: Sequence[Continuation],
    price: SkipPrice,
    trials: int,
    seed: int = 0,
    progress: Progress = quiet,
) -> list[Trial]:
    """Trials of optuna's TPE for the skipped sub-layers of the largest expected speedup, in order.

    Drafts are of as many tokens as `price` prices. The first trial skips nothing. `sequences` are
    pairs (prompt, the target's new tokens) of a development split. The same seed gives the same
    trials at the same price. ValueError for no sequences, an empty one, or no trials.
    """
    import optuna

    if trials < 1:
        raise ValueError(f"trials is {trials}; expected at least 1")
    ready = prepared(decoder, sequences)
    evaluated: dict[SkipConfig, Trial] = {}

    def evaluate(skips: SkipConfig) -> Trial:
        if skips not in evaluated:
            alpha, c = acceptance(decoder, skips, ready), price.step(decoder, skips)
            evaluated[skips] = Trial(skips, alpha, c, *price.best_length(alpha, c))
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
        progress("skips", done, trials, f"speedup {best_trial(history).speedup:.3f}")
    return history


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The trial of the largest speedup; of equal ones the first."""
    return max(trials, key=lambda trial: trial.speedup)


SEARCH = {"trials": 200, "texts": 24}
"""Trials, and training sequences that they are evaluated on; `--set key=value` replaces them."""


def search_skips(settings: Training, data: TrainingData, progress: Progress = quiet) -> dict:
    """Searches on greedy training sequences, evaluates the best setting, and returns its card.

    Draft steps and verification are timed on the target. The card holds the speedup that the search
    predicts and its replay on held-out sequences, at the same price. ValueError for settings that
    are not of SEARCH.
    """
    asked: dict[str, Any] = SEARCH | {"seed": settings.seed} | settings.chosen
    numbers: list[Any] = [asked.get(name) for name in ("trials", "texts", "seed")]
    whole = all(type(n) is int for n in numbers) and min(numbers[:2]) > 0 <= numbers[2]
    if not whole or asked.keys() != {*SEARCH, "seed"}:
        raise ValueError(
            f"self_skip cannot be searched with {settings.chosen}; "
            "expected whole numbers for some of trials, texts, seed"
        )
    folder = settings.out / settings.place
    # earlier cards could be priced by the number of sub-layers
    requested = {
        **asked, "price": "measured", "place": settings.place, "target": dict(data.made_for)
    }  # fmt: skip
    if (folder / "card.json").exists():
        card = read_card(folder / "card.json")
        check_same_settings(card.get("asked", {}), requested, folder)
        return card
    if not (folder / "self_skip.json").exists():
        price = measured_price(data.target, LONGEST)
        pairs, label = data.greedy_pairs(asked["texts"]), relabel(progress, settings.place)
        best = best_trial(find(data.target, pairs, price, asked["trials"], asked["seed"], label))
        search = {
            "split": "target-written, for training",
            "texts": len(pairs),
            "tokens": sum(len(new_tokens) for _, new_tokens in pairs),
            **{name: asked[name] for name in ("trials", "seed")},
            "K": price.K,
            "score": best.speedup,
            **{name: getattr(best, name) for name in ("k", "acceptance", "cost")},
            "price": asdict(price),
        }
        made = {"settings": best.skips.settings, "target": dict(data.made_for), "search": search}
        replace_json(folder / "self_skip.json", made)
    content = read_card(folder / "self_skip.json")
    lengths = evaluate_drafter("self_skip", folder, data)
    card = {
        "drafter": "self_skip",
        "asked": requested,
        "settings": content["settings"],
        "search": content["search"],
        "evaluation": evaluation_size(data) | {"K": lengths.K, "trained": summary(lengths)},
        "replay": _replay(content["search"], folder, data),
        "text": dict(data.source),
        **environment(data.target.device),
    }
    replace_json(folder / "card.json", card)
    return card


def _replay(search: dict, folder: Path, data: TrainingData) -> dict:
    """The speedup of the promised draft length on held-out sequences, at the search's price."""
    stored = search["price"]
    price = SkipPrice(**stored | {"verify": tuple(stored["verify"])})
    drafter = SelfSkipDrafter.load(folder, data.target, data.made_for)
    lengths = accepted_lengths(data.target, drafter, data.evaluation, search["k"])
    return price.replay(lengths.accepted, search["k"], search["cost"])
