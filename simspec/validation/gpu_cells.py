"""Published speedups of GPU engines, with the run that each was measured in, priced by kernels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simspec.cost.kernel_files import shipped_times
from simspec.cost.kernels import KernelPrices, kernel_cost, pass_parts
from simspec.cost.model import CostModel
from simspec.cost.shapes import SHAPES, ModelShape, draft_head
from simspec.validation.published_costs import iid_acceptance

Array = NDArray[np.float64]

TERMS = ("kernels", "step", "round", "draft", "row")
"""Parts of a second: kernels, and the constants of `simspec.validation.gpu_exam`."""

CHUNK = 16384
"""Prompt tokens of a pass: vLLM's default max_num_batched_tokens of offline runs on an H100."""

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Sizes at which the steps of a draining batch are priced; others take the next larger one."""

MODELS = SHAPES | {"qwen3-14b": ModelShape("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936)}


@dataclass(frozen=True)
class Copies:
    """A run of copies of one request after the other: the copies make the same rounds.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | prompt, output | float64[n] | tokens of each request |
    | rounds | float64[n, K + 1] | rounds that draft 0..K tokens |

    The published speedup is a ratio of means over requests of tokens a second, prompts included.
    """

    prompt: Array
    output: Array
    rounds: Array


@dataclass(frozen=True)
class Waves:
    """A run of prompts in waves that start together: each waits for its slowest sequence.

    | field | meaning |
    | --- | --- |
    | sizes | sequences of each wave |
    | prompt, output | tokens of each sequence |
    | cached | prompts of the first wave are in the prefix cache |
    """

    sizes: tuple[int, ...]
    prompt: int
    output: int
    cached: bool = True


@dataclass(frozen=True)
class GpuCell:
    """One published speedup.

    | field | meaning |
    | --- | --- |
    | engine | whose constants price it, see `simspec.validation.gpu_exam.ENGINES` |
    | table, task, batch, K | as published |
    | target, drafter | a name of MODELS; eagle, eagle3 or ngram |
    | accepted_length, speedup | tokens a round, bonus included; over plain decoding |
    | context | cached tokens of each sequence |
    | plain_step | published seconds of a plain step; 0: unknown |
    | fixed | seconds a token and sequence that no drafting shortens: prompts, waiting |
    | run | Copies, Waves, or None: steps of the full batch alone |
    | gpus | that share each layer |
    """

    engine: str
    table: str
    task: str
    batch: int
    K: int
    target: str
    drafter: str
    accepted_length: float
    speedup: float
    context: int = 512
    plain_step: float = 0.0
    fixed: float = 0.0
    run: Copies | Waves | None = None
    gpus: int = 1

    @property
    def name(self) -> str:
        """Label in tables."""
        return " ".join(filter(None, (self.table, self.task, f"K={self.K}", f"b={self.batch}")))


@dataclass(frozen=True)
class Spent:
    """The parts of a cell's time; seconds are `plain` or `drafted` @ (1, constants).

    | field | shape | meaning |
    | --- | --- | --- |
    | tokens | [n] | emitted a run, of each request |
    | plain, drafted | [n, 5] | amounts of TERMS in plain and in speculative decoding |
    """

    tokens: Array
    plain: Array
    drafted: Array
    fixed: float = 0.0

    def speedup(self, constants: Array) -> float:
        """Mean tokens a second of both, at a multiple of kernels and four constants."""
        rates = [
            (self.tokens / (part @ constants + self.fixed)).mean()
            for part in (self.drafted, self.plain)
        ]
        return float(rates[0] / rates[1])


@lru_cache(maxsize=4096)
def cost_of(target: str, drafter: str, K: int, kernels: tuple[str, str], batch: int, context: int,
             gpus: int = 1) -> CostModel:  # fmt: skip
    """Costs by kernels alone of `batch` sequences that do the same."""
    shape = MODELS[target]
    head = None if drafter == "ngram" else draft_head(shape, drafter)
    return kernel_cost(
        KernelPrices(shipped_times(*kernels), tp=gpus), shape, head, K, batch, context
    )


def spent(cell: GpuCell, kernels: tuple[str, str]) -> Spent:
    """The amounts of a cell; kernels: device and engine of `shipped_times`."""
    if isinstance(cell.run, Copies):
        return _copies(cell, cell.run, kernels)
    if isinstance(cell.run, Waves):
        return _waves(cell, cell.run, kernels)
    plain, drafted = (_step(cell, kernels, cell.batch, d) for d in (0, cell.K))
    return Spent(np.ones(1), plain[None], drafted[None] / cell.accepted_length, cell.fixed)


def _step(cell: GpuCell, kernels: tuple[str, str], batch: int, drafted: int) -> Array:
    """float64[5]: of a step whose sequences all draft `drafted` tokens."""
    cost = cost_of(cell.target, cell.drafter, cell.K, kernels, batch, cell.context, cell.gpus)
    passes = drafted * (cell.drafter != "ngram")
    seconds = float(cost.verify[drafted] + cost.draft[drafted])
    return np.array([seconds, 1, drafted > 0, passes, batch * (drafted + 1)], np.float64)


def _prefill(cell: GpuCell, kernels: tuple[str, str], tokens: float, batch: int) -> Array:
    """float64[5]: of the passes over the prompts, `tokens` in all.

    Attention is left out: at 1,000 tokens it has under 2% of the arithmetic.
    """
    shape = MODELS[cell.target]
    full, rest = divmod(max(round(tokens), batch), CHUNK)
    sizes = {CHUNK: full} | ({max(rest, batch): 1} if rest else {})
    prices = KernelPrices(shipped_times(*kernels), tp=cell.gpus)
    seconds = sum(n * _products(prices, shape, size, batch) for size, n in sizes.items() if n)
    return np.array([seconds, sum(sizes.values()), 0, 0, batch], np.float64)


@lru_cache(maxsize=4096)
def _products(prices: KernelPrices, shape: ModelShape, rows: int, batch: int) -> float:
    parts = pass_parts(prices, shape, rows, rows, 0.0, batch)
    return sum(part.seconds for part in parts if part.name != "attention")


def _copies(cell: GpuCell, run: Copies, kernels: tuple[str, str]) -> Spent:
    steps = np.array([_step(cell, kernels, cell.batch, d) for d in range(cell.K + 1)])
    cost = cost_of(cell.target, cell.drafter, cell.K, kernels, cell.batch, cell.context, cell.gpus)
    held = np.unique(np.linspace(run.prompt.min(), run.prompt.max(), 16))
    known = np.array([_prefill(cell, kernels, p * cell.batch, cell.batch) for p in held])
    prefill = np.stack([np.interp(run.prompt, held, column) for column in known.T], axis=1)
    further = cell.batch * (run.prompt + run.output / 2 - cell.context)
    plain = prefill + (run.output - 1)[:, None] * steps[0]
    plain[:, 0] += (run.output - 1) * cost.kv_verify * further
    drafted = prefill + run.rounds @ steps
    passes = run.rounds @ np.arange(cell.K + 1)
    count = run.rounds.sum(axis=1)
    drafted[:, 0] += (count * cost.kv_verify + passes * cost.kv_draft) * further
    return Spent(run.output, plain, drafted)


def _waves(cell: GpuCell, run: Waves, kernels: tuple[str, str]) -> Spent:
    plain, drafted = np.zeros(5), np.zeros(5)
    left = survival(cell.accepted_length, cell.K, run.output - 1)
    for number, size in enumerate(run.sizes):
        # a prefix cache holds whole blocks of 16 tokens: the last ones are computed again
        tokens = size * (16 if run.cached and not number else run.prompt)
        prefill = _prefill(cell, kernels, tokens, size)
        step = {b: _step(cell, kernels, b, cell.K) for b in BATCHES if b < 2 * size or b == 1}
        plain += prefill + (run.output - 1) * _step(cell, kernels, size, 0)
        drafted += prefill + draining(left, size, step)
    return Spent(np.ones(1), plain[None], drafted[None])


def survival(accepted_length: float, K: int, tokens: int) -> Array:
    """float64[T]: P(a sequence is in its round t), whose rounds are i.i.d. of this mean.

    Each draft token is accepted with the probability that gives the mean; a sequence ends when its
    rounds have emitted `tokens`.
    """
    alpha = iid_acceptance(accepted_length, K)
    emitted = np.append(alpha ** np.arange(K) * (1 - alpha), alpha**K)
    at, left = np.zeros(tokens), []
    at[0] = 1.0
    while at.sum() > 1e-12:
        left.append(min(at.sum(), 1.0))
        moved = np.zeros(tokens)
        for i, share in zip(range(1, tokens), emitted):
            moved[i:] += share * at[: tokens - i]
        at = moved
    return np.array(left)


def draining(left: Array, size: int, step: Mapping[int, Array]) -> Array:
    """float64[5]: expected amounts of a wave; `left` is P(a sequence is still in round t).

    The sequences in round t are binomial. A step of a sizes that `step` lacks is the next larger.
    """
    from scipy.stats import binom

    sizes = np.array(sorted(step))
    active = np.arange(1, size + 1)
    index = np.searchsorted(sizes, active)
    prices = np.array([step[int(b)] for b in sizes])[np.minimum(index, len(sizes) - 1)]
    prices[:, 4] *= active / sizes[np.minimum(index, len(sizes) - 1)]
    weights = binom.pmf(active[None], size, left[:, None]).sum(axis=0)
    found: Array = weights @ prices
    return found


def separate(cumulative: Iterable[float], weights: Iterable[float]) -> list[float]:
    """Accepted lengths of tasks run in turn, from counters that are never reset between them.

    Counter i holds rounds of tasks 1 to i: length_i = (w_1 + .. + w_i) / (r_1 + .. + r_i), tokens w
    over rounds r.
    """
    found, tokens, rounds = [], 0.0, 0.0
    for length, weight in zip(cumulative, weights):
        tokens += weight
        found.append(weight / (tokens / length - rounds))
        rounds = tokens / length
    return found
