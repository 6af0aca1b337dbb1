"""What a server's own steps say: acceptance, the cost of a step, and which draft length pays.

`simspec.engines.step_log` has the file's form.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from simspec.engines import LONGEST_DRAFT
from simspec.engines.documents import LARGEST, LONGEST_LINE, Number, Whole
from simspec.engines.step_log import FORM
from simspec.numerics.stats import MIN_PROMPTS, Estimate, bootstrap
from simspec.output.files import read_at_most, reraised
from simspec.output.frames import DataFrame, frame

FEWEST_STEPS = 256
"""Steps of a batch size, below which nothing is concluded of it."""
BLOCKS = 64
"""Stretches of a log that are resampled: neighboring steps depend on each other."""
DRAWS = 200
"""Replicates of the prices that a log gives."""
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
    | served | int64[N] | longest draft of the start |
    | drafted, accepted | int64[N, K] | tokens by position |
    """

    about: Start
    served: NDArray[np.int64]
    requests: NDArray[np.int64]
    seconds: Float
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    notes: tuple[str, ...] = ()


def read_steps(path: Path) -> Steps:
    """The steps of a log; ValueError, one line, for what a server did not write.

    A line that a kill cut short is left out, and so are steps that read prompts, waited for a
    request or followed one that was dropped.
    """
    with reraised(ValueError, f"{path} cannot be read"):
        lines = read_at_most(path, LARGEST).split(b"\n")
    about, cut = None, 0
    rows: list[tuple[int, int, float, list[int], list[int]]] = []
    before: Step | None = None
    for number, (line, is_last) in enumerate(_with_last(lines), 1):
        try:
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{len(line)} bytes, expected at most {LONGEST_LINE}")
            if line.startswith(b'{"form"'):
                about, before = _start(line, about), None
                continue
            step = msgspec.json.decode(line, type=Step)
        except ValueError as error:  # msgspec's are
            if is_last:
                cut += 1
                continue
            raise ValueError(f"{path}, line {number}: {error}: expected a step") from None
        if about is None:
            raise ValueError(f"{path}, line {number}: a step before any start: a piece of a log?")
        emitted = step.new - sum(step.accepted)
        _check(step, emitted, about.K, f"{path}, line {number}")
        busy = before is not None and before.running > 0 and not step.dropped
        # a request that runs and emits nothing reads a piece of its prompt
        if before is not None and busy and not step.prompt and 0 < emitted >= step.running:
            rows.append((about.K, emitted, step.t - before.t, step.drafted, step.accepted))
        before = step
    if about is None:
        raise ValueError(f"{path} holds no start of a server: set SIMSPEC_STEPS for `vllm serve`")
    notes = (f"{cut} lines were cut short by a kill",) if cut else ()
    K = max((row[0] for row in rows), default=about.K)
    served, requests, seconds = (np.array([row[i] for row in rows]) for i in range(3))
    drafted, accepted = (
        np.array([[*counts, *[0] * (K - len(counts))] for counts in held], np.int64).reshape(-1, K)
        for held in ([row[3] for row in rows], [row[4] for row in rows])
    )
    about = msgspec.structs.replace(about, K=K)
    return Steps(about, served, requests, seconds, drafted, accepted, notes)


def _with_last(lines: list[bytes]) -> Iterator[tuple[bytes, bool]]:
    """(line, whether a start or the end follows it) of the lines that are not empty."""
    lines = [line for line in lines if line.strip()]
    for i, line in enumerate(lines):
        yield line, i + 1 == len(lines) or lines[i + 1].startswith(b'{"form"')


def _start(line: bytes, before: Start | None) -> Start:
    about = msgspec.json.decode(line, type=Start)
    if about.form != FORM:
        raise ValueError(f"form {about.form[:80]!r}, expected {FORM}")
    if before is not None and msgspec.structs.replace(before, K=about.K) != about:
        raise ValueError("another model, drafter or version of vLLM: keep one server's lines")
    return about


def _check(step: Step, emitted: int, K: int, place: str) -> None:
    drafted, accepted = step.drafted, step.accepted
    right = emitted >= 0 and len(drafted) == len(accepted) <= K and step.drafts <= step.new
    for counts in (drafted, accepted):
        right = right and counts == sorted(counts, reverse=True)
    if not right or any(a > d for d, a in zip(drafted, accepted)):
        raise ValueError(
            f"{place}: {step.new} new tokens, drafted {drafted[:8]} and accepted {accepted[:8]} by "
            f"position, expected up to {K} positions, falling counts, no more accepted than "
            "drafted or emitted"
        )


class LengthAtBatch(NamedTuple):
    """A draft length at a number of requests: tokens of a request's pass, and over plain steps."""

    requests: int
    k: int
    tokens: float
    speedup: Estimate


def lengths_at_batches(steps: Steps) -> list[LengthAtBatch]:
    """Draft lengths 1 to K at each number of requests that was served in 256 steps or more.

    By least squares over all steps, seconds = a + b requests + c drafted tokens. A length k keeps
    the first k positions of the drafts, as served with k or more:
    speedup = (1 + accepted / requests) (a + b n) / (a + b n + c drafted),
    with intervals by resampling stretches of the log. ValueError where no number of requests has so
    many steps, or a drafted token costs less than nothing.
    """
    n, K = steps.requests, steps.about.K
    sizes = [int(size) for size in np.unique(n) if (n == size).sum() >= FEWEST_STEPS]
    if not sizes:
        raise ValueError(
            f"{len(n)} steps without prompts are in the log, expected {FEWEST_STEPS} of one number "
            "of requests: serve on"
        )
    fit, scale = _fit(steps)

    def speedup(size: int, total: Float) -> Float:
        a, b, c = _solved(total, scale)
        accepted, drafted = (total[..., i] / total[..., 14] for i in (12, 13))
        plain = a + b * size
        ratio: Float = (1 + accepted / size) * plain / (plain + c * drafted)
        return ratio

    found = []
    for size in sizes:
        for k in range(1, K + 1):
            at = (n == size) & (steps.served >= k)
            tokens = [held[:, :k].sum(axis=1) for held in (steps.accepted, steps.drafted)]
            own = _by_stretch(np.stack([*tokens, np.ones(len(n))], axis=1) * at[:, None])
            columns = np.concatenate((fit, own), axis=1)
            columns = columns[own[:, 2] > 0]
            if len(columns) < MIN_PROMPTS:
                continue
            accepted, _, count = columns[:, 12:].sum(axis=0)
            a_pass = 1 + float(accepted / count) / size
            row = bootstrap(columns, partial(speedup, size), method="percentile")
            if row.low > a_pass:
                raise ValueError(
                    f"{k} drafted tokens at {size} requests would be {row.text()} times as fast at "
                    f"{a_pass:.2f} tokens a pass, which no step can be: steps without drafts were "
                    "slowed by other work, serve on"
                )
            found.append(LengthAtBatch(size, k, a_pass, row))
    if not found:
        raise ValueError(
            f"no number of requests was served in {MIN_PROMPTS} of {BLOCKS} stretches of the log, "
            "which intervals need: serve on"
        )
    return found


def _fit(steps: Steps) -> tuple[Float, Float]:
    """(sums of the least squares' equations [BLOCKS, 12] by stretch, the scale of the columns)."""
    n = steps.requests
    usual = {size: SLOW * float(np.median(steps.seconds[n == size])) for size in set(n.tolist())}
    kept = steps.seconds <= np.array([usual[size] for size in n.tolist()])
    x = np.stack([np.ones(len(n)), n, steps.drafted.sum(axis=1)], axis=1)
    scale: Float = np.maximum(x.max(axis=0), 1)
    x = np.where(kept[:, None], x / scale, 0)
    squares = (x[:, :, None] * x[:, None, :]).reshape(-1, 9)
    return _by_stretch(np.concatenate((squares, x * steps.seconds[:, None]), axis=1)), scale


def _solved(total: Float, scale: Float) -> Float:
    """(a, b, c) [3, ...], seconds of a step, a request and a drafted token, of sums [..., 12]."""
    inverse = np.linalg.pinv(total[..., :9].reshape(*total.shape[:-1], 3, 3), hermitian=True)
    found: Float = np.moveaxis((inverse @ total[..., 9:12, None])[..., 0] / scale, -1, 0)
    return found


def round_seconds(path: Path, requests: int) -> Float:
    """float64[1 + R, K + 1]: seconds of a step of so many requests by the tokens that each drafts.

    a + b n + c n k as of `lengths_at_batches`, then R times of resampled stretches of the log.
    ValueError where no drafted token has a price, and for more requests than were served.
    """
    steps = read_steps(path)
    n, K = steps.requests, steps.about.K
    if len(np.unique(steps.drafted.sum(axis=1))) < 2 or len(n) < FEWEST_STEPS:
        raise ValueError(
            f"{path} prices no drafted token: it needs {FEWEST_STEPS} steps of several lengths, "
            f"serve K = {max(K // 2, 1)} for an hour with the same file"
        )
    if n.max() < requests:
        raise ValueError(f"{path} has steps of up to {n.max()} requests, --batch is {requests}")
    fit, scale = _fit(steps)
    drawn = np.random.default_rng(0).multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), DRAWS)
    a, b, c = _solved(np.concatenate((fit.sum(axis=0)[None], drawn @ fit)), scale)
    seconds: Float = (a + b * requests)[:, None] + np.outer(c, requests * np.arange(K + 1))
    return seconds


def _by_stretch(values: Float) -> Float:
    """Sums [BLOCKS, C] of rows [N, C] over stretches of the log."""
    starts = np.arange(BLOCKS) * len(values) // BLOCKS
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
        "speedup: over steps without drafts, priced by a fit to all steps; a draft of k tokens is "
        "the first k of those served",
        *steps.notes,
    )
    table = frame(
        [row._asdict() for row in found], names=2, notes=notes,
        title=f"{about.model}, {about.method} drafts up to {about.K}, vLLM {about.vllm}",
        formats={"tokens": ".2f", "speedup": ".2f"},
    )  # fmt: skip
    return table, sentences


def _sentence(steps: Steps, rows: list[LengthAtBatch]) -> str:
    size, K = rows[0].requests, steps.about.K
    at = f"{size} request{'s' if size > 1 else ''} in flight: "
    other = f"K = {K // 2}" if K > 1 else "no drafts"
    serve = f"serve {other} for an hour, with the same file"
    if len(np.unique(steps.drafted.sum(axis=1))) == 1:
        return at + f"not settled, all steps verify as many tokens, so none has a price: {serve}"
    best = max(rows, key=lambda row: row.speedup.value)
    if (best.speedup.high - best.speedup.low) / 2 > UNSURE * best.speedup.value:
        return at + f"not settled, K = {best.k} gives {best.speedup.text()}: {serve}"
    if best.speedup.low <= 1:
        return at + f"do not draft, K = {best.k} gives {best.speedup.text()} times plain steps"
    text = f"K = {best.k}, predicted {best.speedup.text()} times plain steps"
    return at + text + (", the longest served: serve a longer one too" if best.k == K else "")
