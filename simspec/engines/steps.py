"""What a server's own steps say: acceptance, the cost of a step, and which draft length pays.

`simspec.engines.step_log` has the file's form.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from scipy.optimize import nnls

from simspec.cost.why import CACHED, DRAFTING, HOST, why
from simspec.cost.why import ROWS as VERIFICATION
from simspec.engines import LONGEST_DRAFT
from simspec.engines.documents import LARGEST, LONGEST_LINE, Number, Whole
from simspec.engines.step_log import FORM
from simspec.numerics.stats import MIN_PROMPTS, Estimate, bootstrap
from simspec.output.files import read_at_most, reraised
from simspec.output.frames import DataFrame, frame

FEWEST_STEPS = 256
"""Steps of a batch size, below which nothing is concluded of it."""
BLOCKS, STRETCH = 64, 32
"""Most stretches that are resampled, and fewest steps of one: neighbors depend on each other."""
REPLICATES = 64
"""Fits to resampled stretches."""
FAR = 4.0
"""Standard errors below 0 that a price has to be to be refused: neighboring steps are alike."""
FEW = 0.05
"""Share of steps on each side of a change of the price of a row, at least."""
ROWS = 64.0
"""Rows by which columns are divided, so that all are of one size."""
SLOW = 3.0
"""A step of more than this times the median of its batch size is another work's: not fitted."""
UNSURE = 0.05
"""Half width of a speedup, as a share, above which a log decides nothing."""

Float = NDArray[np.float64]
ByPosition = Annotated[list[Whole], Meta(max_length=LONGEST_DRAFT)]


class Start(msgspec.Struct):
    """The first line of each start of a server."""

    form: str
    vllm: Annotated[str, Meta(max_length=100)]
    model: Annotated[str, Meta(max_length=1000)]
    method: Annotated[str, Meta(max_length=100)]
    K: Annotated[int, Meta(ge=0, le=LONGEST_DRAFT)]
    runner: Annotated[str, Meta(max_length=100)] = ""  # V1 or V2; '': of an older log


class Step(msgspec.Struct):
    """A step; see `simspec.engines.step_log`."""

    t: Number
    running: Whole
    prompt: Whole
    new: Whole
    drafts: Whole = 0
    drafted: ByPosition = []
    accepted: ByPosition = []
    dropped: Whole = 0


@dataclass(frozen=True)
class Steps:
    """Steps that read no prompt, of one server: N of them, of drafts up to K tokens.

    The server may have been started several times, with other longest drafts.

    | array | shape | content |
    | --- | --- | --- |
    | requests | int64[N] | requests that emitted tokens |
    | seconds | float64[N] | since the step before |
    | prompts | float64[N] | of steps since the step before that read prompts |
    | served | int64[N] | longest draft of the start |
    | drafted, accepted | int64[N, K] | tokens by position |
    """

    about: Start
    served: NDArray[np.int64]
    requests: NDArray[np.int64]
    seconds: Float
    prompts: Float
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    notes: tuple[str, ...] = ()


def read_steps(path: Path) -> Steps:
    """The steps of a log; ValueError, one line, for what a server did not write.

    A line that a kill cut short is left out, and so are steps that read prompts, waited for a
    request or followed one that was dropped. Requests of a step are those that ran on after the
    step before.
    """
    with reraised(ValueError, f"{path} cannot be read"):
        lines = read_at_most(path, LARGEST).split(b"\n")
    about, cut = None, 0
    rows: list[tuple[int, int, float, float, list[int], list[int]]] = []
    before: Step | None = None
    prompts = 0.0
    for number, (line, is_last) in enumerate(_with_last(lines), 1):
        try:
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{len(line)} bytes, expected at most {LONGEST_LINE}")
            if line.startswith(b'{"form"'):
                about, before, prompts = _start(line, about), None, 0.0
                continue
            step = msgspec.json.decode(line, type=Step)
        except ValueError as error:  # msgspec's are
            if is_last:
                cut += 1
                continue
            raise ValueError(f"{path}, line {number}: {error}: expected a step") from None
        if about is None:
            raise ValueError(f"{path}, line {number}: a step before any start: a piece of a log?")
        _check(step, about.K, f"{path}, line {number}")
        if before is not None and before.running and not step.prompt and not step.dropped:
            n, ended = before.running, max(before.running - step.running, 0)
            unsent = n + sum(step.accepted) - step.new
            # a request that runs on and emits nothing reads a piece of its prompt
            if step.running <= n and 0 <= unsent <= about.K * ended:
                emitted = _without_last(step.accepted, unsent)
                rows.append((about.K, n, step.t - before.t, prompts, step.drafted, emitted))
                prompts = 0.0
        elif before is not None and before.running and not step.dropped:
            prompts += step.t - before.t
        before = step
    if about is None:
        raise ValueError(f"{path} holds no start of a server: set SIMSPEC_STEPS for `vllm serve`")
    notes = (f"{cut} lines were cut short by a kill",) if cut else ()
    K = max((row[0] for row in rows), default=about.K)
    served, requests = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    seconds, of_prompts = (np.array([row[i] for row in rows], np.float64) for i in (2, 3))
    drafted, accepted = (
        np.array([[*counts, *[0] * (K - len(counts))] for counts in held], np.int64).reshape(-1, K)
        for held in ([row[4] for row in rows], [row[5] for row in rows])
    )
    about = msgspec.structs.replace(about, K=K)
    return Steps(about, served, requests, seconds, of_prompts, drafted, accepted, notes)


def _with_last(lines: list[bytes]) -> Iterator[tuple[bytes, bool]]:
    """(line, whether a start or the end follows it) of the lines that are not empty."""
    lines = [line for line in lines if line.strip()]
    for i, line in enumerate(lines):
        yield line, i + 1 == len(lines) or lines[i + 1].startswith(b'{"form"')


def _start(line: bytes, before: Start | None) -> Start:
    about = msgspec.json.decode(line, type=Start)
    if about.form != FORM:
        raise ValueError(f"form {about.form[:80]!r}, expected {FORM}")
    if before is not None:  # a log that an older plug-in began names no runner
        runner = before.runner or about.runner
        about.runner = about.runner or runner
        if msgspec.structs.replace(before, K=about.K, runner=runner) != about:
            other = "another model, drafter, version or runner of vLLM"
            raise ValueError(f"{other}: keep one server's lines")
    return about


def _without_last(accepted: list[int], cut: int) -> list[int]:
    """Accepted tokens by position, less those that were cut off at the end of requests: the last.

    vLLM counts tokens that it accepts beyond a request's last one, and does not emit them.
    """
    kept = list(accepted)
    for i in reversed(range(len(kept))):
        off = min(cut, kept[i])
        kept[i], cut = kept[i] - off, cut - off
    return kept


def _check(step: Step, K: int, place: str) -> None:
    drafted, accepted = step.drafted, step.accepted
    right = len(drafted) == len(accepted) <= K and step.drafts <= step.new
    for counts in (drafted, accepted):
        right = right and counts == sorted(counts, reverse=True)
    if not right or any(a > d for d, a in zip(drafted, accepted)):
        raise ValueError(
            f"{place}: {step.new} new tokens, drafted {drafted[:8]} and accepted {accepted[:8]} by "
            f"position, expected up to {K} positions, falling counts, no more accepted than "
            "drafted, no more drafts than tokens"
        )


class LengthAtBatch(NamedTuple):
    """A draft length at a number of requests: tokens of a request's pass, and over plain steps."""

    requests: int
    k: int
    tokens: float
    speedup: Estimate


def lengths_at_batches(steps: Steps) -> list[LengthAtBatch]:
    """Draft lengths 1 to K at each number of requests that was served in 256 steps or more.

    A step of n requests that verifies r = n + drafted tokens takes a + b n + g(r) seconds, g
    continuous and linear between 4, 8, 16, .. tokens, by least squares over all steps. A length k
    emits the tokens of longer drafts in `further_passes`. Over all steps of a size

    speedup = (sum (1 + accepted / n) plain + prompts) / (sum passes seconds at k + prompts),

    prompts: seconds of steps that read prompts; they pass as they did. Intervals
    resample stretches of the log, and refit (nested bootstrap). ValueError where no number of
    requests has 256 steps, or drafts make steps faster.
    """
    n, K = steps.requests, steps.about.K
    sizes = [int(size) for size in np.unique(n) if (n == size).sum() >= FEWEST_STEPS]
    if not sizes:
        raise ValueError(
            f"{len(n)} steps without prompts are in the log, expected {FEWEST_STEPS} of one number "
            "of requests: serve on"
        )
    knots, prices = _prices(steps)
    found = []
    for size in sizes:
        for k in range(1, K + 1):
            at = (n == size) & (steps.served >= k)
            if at.sum() < MIN_PROMPTS * STRETCH:
                continue
            more = further_passes(steps.accepted[at], steps.served[at], k)
            passes, tokens = 1 + more / size, 1 + steps.accepted[at].sum(axis=1) / size
            drafted = np.minimum(steps.drafted[at, :k].sum(axis=1) + k * more, k * size * passes)
            plain = _columns(np.full(1, size), np.zeros(1), knots) @ prices.T
            spent = _columns(np.full(len(passes), size), drafted / passes, knots) @ prices.T
            prompts = np.broadcast_to(steps.prompts[at, None], spent.shape)
            values = np.stack([tokens[:, None] * plain, passes[:, None] * spent, prompts], axis=1)
            row = bootstrap(_by_stretch(values), _speedup, method="percentile")
            found.append(LengthAtBatch(size, k, float(tokens.sum() / passes.sum()), row))
    if not found:
        raise ValueError(
            f"no number of requests was served with drafts in {FEWEST_STEPS} steps, which "
            "intervals need: serve on"
        )
    return found


def further_passes(accepted: NDArray[Any], served: NDArray[np.int64], k: int) -> Float:
    """float64[N]: passes that drafts of k tokens take more than the served ones, for their tokens.

    accepted: tokens by position [N, K] of drafts of up to served[N] tokens. A draft of k from an
    accepted token goes on as the longer one did, so where j tokens were accepted

    passes = ceil((j + 1) / (k + 1)), and of a whole draft (served + 1) / (k + 1).

    To keep the first k tokens of each pass would leave out that easy stretches take more passes:
    of n-grams at K = 5, 1.25 tokens a pass at K = 2 where the server then had 1.31.
    """
    exactly = accepted - np.pad(accepted[:, 1:], ((0, 0), (0, 1)))
    j = np.arange(1, accepted.shape[1] + 1)
    passes = np.where(j < served[:, None], np.ceil((j + 1) / (k + 1)), (j + 1) / (k + 1))
    more: Float = (exactly * np.maximum(passes - 1, 0)).sum(axis=1)
    return more


def round_seconds(path: Path, requests: int) -> Float:
    """float64[1 + R, K + 1]: seconds of a step of `requests`, by the tokens that each drafts.

    By the fit of `lengths_at_batches`, then R times of resampled stretches of the log. ValueError
    where no drafted token has a price, or fewer than FEWEST_STEPS steps had as many requests.
    """
    steps = read_steps(path)
    n, K = steps.requests, steps.about.K
    if (held := int((n >= requests).sum())) < FEWEST_STEPS:
        raise ValueError(
            f"{path} has {held} steps of {requests} requests or more, --batch needs "
            f"{FEWEST_STEPS}: raise --count, or serve on"
        )
    if len(np.unique(steps.drafted.sum(axis=1))) < 2:
        raise ValueError(
            f"{path} prices no drafted token, all steps verify as many: serve "
            f"K = {max(K // 2, 1)} for an hour with the same file"
        )
    knots, prices = _prices(steps)
    drafted = requests * np.arange(K + 1.0)
    seconds: Float = prices @ _columns(np.full(K + 1, requests), drafted, knots).T
    return seconds


def _prices(steps: Steps) -> tuple[tuple[int, ...], Float]:
    """(knots, float64[1 + R, columns]): the fit, and of resamples; ValueError: `_check_price`."""
    n, drafted, seconds = steps.requests, steps.drafted.sum(axis=1), steps.seconds
    usual = {size: SLOW * float(np.median(seconds[n == size])) for size in set(n.tolist())}
    timed = seconds <= np.array([usual[size] for size in n.tolist()])
    _check_price(n[timed], drafted[timed], seconds[timed])
    knots = _knots(n, drafted)
    return knots, _fit(n[timed], _columns(n, drafted, knots)[timed], seconds[timed])


def _check_price(n: NDArray[np.int64], drafted: Float, seconds: Float) -> None:
    """ValueError where steps with drafts are clearly faster than steps without."""
    x = np.column_stack((np.ones(len(n)), n, drafted))
    inverse = np.linalg.pinv(x.T @ x, hermitian=True)
    slope = (inverse @ x.T @ seconds)[2]
    error = np.sqrt(inverse[2, 2] * np.var(seconds - x @ inverse @ x.T @ seconds))
    if slope < -FAR * error:
        raise ValueError(
            f"a drafted token takes {1e3 * slope:.2f} ms, less than none, which no step can do: "
            "steps without drafts were slowed by other work, serve on"
        )


def _speedup(total: Float) -> Float:
    plain, spent, prompts = (total[..., i] for i in range(3))
    ratio: Float = (plain + prompts) / (spent + prompts)
    return ratio


def _columns(n: NDArray[np.int64], drafted: Float, knots: tuple[int, ...]) -> Float:
    """float64[N, 3 + knots]: 1, the requests, and how far the rows reach between each two knots."""
    edges = np.array([0.0, *knots, np.inf])
    reached = np.clip((n + drafted)[:, None] - edges[:-1], 0, np.diff(edges))
    return np.column_stack((np.ones(len(n)), n, reached)) / ROWS


def _knots(n: NDArray[np.int64], drafted: Float) -> tuple[int, ...]:
    """Rows 4, 8, .. at which the price of a row may change: steps lie on both sides of each."""
    rows, kept = n + drafted, tuple[int, ...]()
    for knot in (2**i for i in range(2, 13)):
        below = float((rows <= knot).mean())
        ranks = [np.linalg.matrix_rank(_columns(n, drafted, at)) for at in (kept, (*kept, knot))]
        if min(below, 1 - below) >= FEW and ranks[1] > ranks[0]:
            kept = *kept, knot
    return kept


def _fit(n: NDArray[np.int64], columns: Float, seconds: Float) -> Float:
    """float64[1 + R, C]: seconds by columns [N, C], and of R resamples of stretches of a size."""
    width, random = columns.shape[1], np.random.default_rng(0)
    total = np.zeros((1 + REPLICATES, width * (width + 1)))
    products = columns[:, :, None] * np.column_stack((columns, seconds))[:, None, :]
    for size in np.unique(n):
        sums = _by_stretch(products[n == size].reshape(-1, width * (width + 1)))
        weights = random.multinomial(len(sums), [1 / len(sums)] * len(sums), REPLICATES)
        total += np.concatenate((np.ones((1, len(sums))), weights)) @ sums
    return np.stack([_rising(each) for each in total.reshape(-1, width, width + 1)])


def _rising(both: Float) -> Float:
    """Least squares of normal equations [C, C + 1] by coefficients of at least 0: no row of a pass
    is cheaper than none."""
    values, vectors = np.linalg.eigh(both[:, :-1])
    root = np.sqrt(np.maximum(values, values.max() * 1e-12))
    found: Float = nnls(root[:, None] * vectors.T, vectors.T @ both[:, -1] / root)[0]
    return found


def _by_stretch(values: Float) -> Float:
    """Sums [stretches, ...] of rows [N, ...] over stretches of neighboring steps."""
    count = min(BLOCKS, max(len(values) // STRETCH, 1))
    starts = np.arange(count) * len(values) // count
    sums: Float = np.add.reduceat(values, starts, axis=0)
    return sums


def advice(path: Path) -> tuple[DataFrame, list[str]]:
    """(a table of draft lengths by requests in flight, a sentence for each number) of a step log.

    ValueError, one line, for a log that decides nothing at all.
    """
    steps = read_steps(path)
    if not steps.drafted.any():
        raise ValueError(f"{path} holds no drafts: serve a drafter for an hour, with K = 3 say")
    about, found = steps.about, lengths_at_batches(steps)
    sizes = dict.fromkeys(row.requests for row in found)
    sentences = [_sentence(steps, [row for row in found if row.requests == n]) for n in sizes]
    notes = (
        "speedup: over steps without drafts, priced by a fit to all steps; drafts of k tokens take "
        "more passes where longer ones were accepted",
        *steps.notes,
    )
    runner = f", {about.runner} runner" if about.runner else ""
    table = frame(
        [row._asdict() for row in found], names=2, notes=notes,
        title=f"{about.model}, {about.method} drafts up to {about.K}, vLLM {about.vllm}{runner}",
        formats={"tokens": ".2f", "speedup": ".2f"},
    )  # fmt: skip
    return table, sentences


def in_flight(requests: int) -> str:
    """'4 requests in flight'."""
    return f"{requests} request{'s' * (requests > 1)} in flight"


def why_it_loses(k: int, tokens: float, speedup: Estimate) -> str:
    """Where the time of a pass goes, of drafts whose parts have no prices of their own."""
    added = {VERIFICATION: np.array([tokens / speedup.value - 1])}
    return why(f"K = {k}", tokens, added, (DRAFTING, CACHED, HOST)).sentence


def _sentence(steps: Steps, rows: list[LengthAtBatch]) -> str:
    size, K = rows[0].requests, steps.about.K
    at = f"{in_flight(size)}: "
    other = f"K = {K // 2}" if K > 1 else "no drafts"
    serve = f"serve {other} for an hour, with the same file"
    if len(np.unique(steps.drafted.sum(axis=1))) == 1:
        return at + f"not settled, all steps verify as many tokens, so none has a price: {serve}"
    best = max(rows, key=lambda row: row.speedup.value)
    if (best.speedup.high - best.speedup.low) / 2 > UNSURE * best.speedup.value:
        return at + f"not settled, K = {best.k} gives {best.speedup.text()}: {serve}"
    if best.speedup.low <= 1:
        gives = f"do not draft, K = {best.k} gives {best.speedup.text()} times plain steps. "
        return at + gives + why_it_loses(best.k, best.tokens, best.speedup)
    text = f"K = {best.k}, predicted {best.speedup.text()} times plain steps"
    return at + text + (", the longest served: serve a longer one too" if best.k == K else "")
