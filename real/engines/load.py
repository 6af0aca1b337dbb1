"""An engine under load, measured: requests that arrive at times, and what a simulation predicts."""

import json
import lzma
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from real.engines.compare import convention_of, rule_of, written_text
from real.engines.messages import Finished, Request, read_finished
from real.engines.rows import Row
from simspec import CostModel, Rounds
from simspec.cost.table import CostTable
from simspec.engines.convention import engine_passes
from simspec.engines.text import record_texts
from simspec.output.table import Table
from simspec.policies.fixed import fixed
from simspec.replay.arrivals import Requests, poisson_requests
from simspec.replay.load import Server, serve

MOST_BYTES = 1 << 27
"""Characters of a file of requests; a line cut there is refused."""


@dataclass(frozen=True)
class LoadedRequest:
    """A request that an engine served under load; its seconds count from its arrival."""

    rate: float
    k: int
    prompt: int
    arrival: float
    request: Request
    finished: Finished


def run_load(
    run: Callable[..., float],
    prompts: Sequence[Request],
    rates: Sequence[float],
    ks: Sequence[int],
    count: int,
    slots: int,
    seed: int = 0,
) -> Iterator[LoadedRequest]:
    """Runs `count` Poisson arrivals of these prompts at every rate and draft length.

    run: as of a Worker, which has the arrivals' argument. Draft lengths take turns in random order
    and share arrivals; every length is warmed once. The rows of a run come when it has ended.
    """
    order = np.random.default_rng(seed)
    warm = [Request(f"warm-up {i}", p.prompt, min(p.max_tokens, 8)) for i, p in enumerate(prompts)]
    for k in ks:
        run(warm[:slots], lambda finished: None, slots, k)
    for rate in rates:
        drawn = poisson_requests(count, rate, len(prompts), seed)
        chosen = drawn.sequence.tolist()
        asked = [
            Request(f"{i}", prompts[s].prompt, prompts[s].max_tokens) for i, s in enumerate(chosen)
        ]
        for k in order.permutation(list(ks)).tolist():
            found: list[Finished] = []
            run(asked, found.append, slots, k, arrivals=drawn.arrival.tolist())
            for finished in found:
                i = int(finished.id)
                time = float(drawn.arrival[i])
                yield LoadedRequest(rate, k, chosen[i], time, asked[i], finished)


def write_loaded(
    path: Path, about: Mapping[str, Any], rows: Iterator[LoadedRequest]
) -> list[LoadedRequest]:
    """Writes what a run is about, then each row as a line of JSON when it is known; the rows."""
    held = []
    with open(path, "x", encoding="utf-8") as file:
        file.write(json.dumps({"about": about}) + "\n")
        for row in rows:
            held.append(row)
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
    return held


def read_loaded(path: Path) -> tuple[dict[str, Any], list[LoadedRequest]]:
    """What `write_loaded` wrote, packed if it ends with .xz; ValueError, one line, for others."""
    opened: Any = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            first, *lines = file.read(MOST_BYTES + 1)[:MOST_BYTES].splitlines()
        about, rows = json.loads(first)["about"], []
        for line in lines:
            given = json.loads(line)
            asked = given.pop("request")
            request = Request(asked["id"], tuple(asked["prompt"]), asked["max_tokens"])
            finished = read_finished(given.pop("finished"), {request.id: request})
            rows.append(LoadedRequest(**given, request=request, finished=finished))
    except (OSError, ValueError, KeyError, TypeError, lzma.LZMAError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} holds no run under load: {reason}") from None
    return about, rows


def predicted_load(
    about: Mapping[str, Any],
    rows: Sequence[LoadedRequest],
    cost: CostModel | CostTable,
    server: Server,
) -> list[dict[str, float]]:
    """{rate, k, measured and predicted tokens_per_second, ttft, latency}, means over all requests.

    Rounds are those of the replay of each prompt's text under the engine's convention, seconds
    those of the costs; nothing is fitted to the run. tokens_per_second: of the whole run, from the
    first arrival to the last finish. ValueError for an engine that drafts by a model, and for a run
    that was interrupted.
    """
    rule = rule_of(about)
    if rule is None:
        raise ValueError("loads are predicted for n-gram drafts, whose rounds follow from the text")
    texts = {row.prompt: row for row in reversed(rows)}
    kept = {prompt: s for s, prompt in enumerate(sorted(texts))}
    written = [
        written_text(Row(0, 0, texts[p].k, None, texts[p].request, texts[p].finished)) for p in kept
    ]
    ended = (row.finished for row in rows if row.finished.stopped == "end")
    ends = sorted({finished.tokens[-1] for finished in ended})
    trace = record_texts(written, rule, max(1, *(row.k for row in rows)), ends)
    runs = defaultdict(list)
    for row in rows:
        runs[row.rate, row.k].append(row)
    found = []
    for (rate, k), served in sorted(runs.items()):
        served = sorted(served, key=lambda row: int(row.request.id))
        if len(served) != about["requests"]:
            raise ValueError(
                f"the run of K = {k} at {rate:g} requests/s holds {len(served)} of "
                f"{about['requests']}: it was interrupted, record it again"
            )
        arrival = np.array([row.arrival for row in served])
        requests = Requests(arrival, np.array([kept[row.prompt] for row in served]))
        passes = engine_passes(trace, fixed(k), convention_of(about))
        start = np.repeat(trace.offset[:-1], np.diff(passes.offset))
        counts = passes.drafted, passes.drafted, np.minimum(passes.accepted, passes.emitted)
        rounds = Rounds(passes.offset, start + passes.row, *counts) if k else None
        simulated = serve(trace, requests, rounds, cost, server)
        first = np.array([row.finished.first_seconds for row in served])
        latency = np.array([row.finished.seconds for row in served])
        tokens = sum(len(row.finished.tokens) for row in served)
        measured = _means(arrival, arrival + first, arrival + latency, tokens)
        guessed = _means(arrival, simulated.first, simulated.finish, int(simulated.tokens.sum()))
        named = {f"measured_{key}": value for key, value in measured.items()}
        named |= {f"predicted_{key}": value for key, value in guessed.items()}
        found.append({"rate": rate, "k": k} | named)
    return found


def with_prompts(
    cost: CostTable, rows: Sequence[Row], tokens: int
) -> tuple[CostTable, tuple[float, float]]:
    """(the table whose passes of more rows than it measured take a prompt's seconds, the line).

    The line is (seconds a pass, seconds a token), least squares of the relative error over the
    prompts' own passes, each alone in its step: `Finished.first_seconds`. Passes of up to `tokens`
    rows. Without it a prompt is priced by the slope of a few drafted tokens. ValueError for fewer
    than three prompts.
    """
    read = np.array([len(row.request.prompt) for row in rows], np.float64)
    spent = np.array([row.finished.first_seconds for row in rows])
    if len(np.unique(read)) < 3:
        raise ValueError(f"{len(rows)} requests have too few prompts of different lengths")
    columns = np.stack((1 / spent, read / spent), 1)
    fixed, token = np.linalg.lstsq(columns, np.ones(len(read)), rcond=None)[0].tolist()
    cells = []
    for size, (cell,) in zip(cost.batch, cost.cells):
        assert cell is not None  # a measured table has every cell
        drafts = np.arange(len(cell.verify), max(tokens, len(cell.verify)))
        beyond = np.maximum(fixed + token * size * (drafts + 1), cell.verify[-1])
        wider = np.concatenate((cell.verify, beyond))
        cells.append((replace(cell, verify=wider, precision=None),))
    return replace(cost, cells=tuple(cells)), (fixed, token)


def own_seconds(
    rows: Sequence[LoadedRequest], cost: CostTable, alone: Sequence[Row], tokens: int
) -> tuple[CostTable, float]:
    """(costs, prompts' too, that a run's own passes had; measured over priced seconds of all).

    rows: of one rate and draft length. Costs of each batch size, and of prompts, are multiplied by
    measured over priced seconds of the run's passes of that kind; a size that did not occur, by
    that of all passes without prompts. Nothing is fitted to arrivals, queues or latencies.
    ValueError where no pass is timed.
    """
    measured, priced = _pass_seconds(rows, cost, with_prompts(cost, alone, tokens)[1])
    decoding = [kind for kind in priced if kind]
    if not decoding:
        raise ValueError("no pass of the run is timed: record it on an engine with such a clock")
    usual = sum(measured[kind] for kind in decoding) / sum(priced[kind] for kind in decoding)
    times = {kind: measured[kind] / priced[kind] for kind in priced}
    cells = []
    for size, (cell,) in zip(cost.batch, cost.cells):
        assert cell is not None  # a measured table has every cell
        factor = times.get(size, usual)
        scaled = factor * cell.verify, factor * cell.baseline
        cells.append((replace(cell, verify=scaled[0], baseline=scaled[1], precision=None),))
    prompts = []
    for row in alone:
        first = times.get(PROMPTS, 1.0) * row.finished.first_seconds
        prompts.append(replace(row, finished=replace(row.finished, first_seconds=first)))
    own = with_prompts(replace(cost, cells=tuple(cells)), prompts, tokens)[0]
    return own, sum(measured.values()) / sum(priced.values())


PROMPTS = 0
"""Passes that read a prompt, among those by batch size."""


def _pass_seconds(
    rows: Sequence[LoadedRequest], cost: CostTable, line: tuple[float, float]
) -> tuple[dict[int, float], dict[int, float]]:
    """({batch size of the costs, or PROMPTS: measured seconds of such passes}, {...: priced}).

    Requests of a pass share its clock reading, which no other pass has.
    """
    passes = defaultdict(list)
    for row in rows:
        prompt = len(row.request.prompt)
        for spent, (_, drafted, _) in zip(row.finished.pass_seconds or (), row.finished.passes):
            passes[spent].append((prompt, drafted))
            prompt = 0
    measured: dict[int, float] = defaultdict(float)
    priced: dict[int, float] = defaultdict(float)
    for spent, held in passes.items():
        each = sum(drafts for _, drafts in held) / len(held)
        kind = next((size for size in cost.batch if size >= len(held)), cost.batch[-1])
        verify = cost.at(kind).verify
        if any(prompt for prompt, _ in held):
            kind = PROMPTS
            price = line[0] + line[1] * sum(prompt or 1 + drafts for prompt, drafts in held)
        elif rows[0].k:
            price = float(np.interp(each, range(len(verify)), verify))
        else:
            price = cost.at(kind).baseline
        measured[kind] += spent
        priced[kind] += price
    return measured, priced


def predicted_both(
    about: Mapping[str, Any],
    rows: Sequence[LoadedRequest],
    cost: CostTable,
    alone: Sequence[Row],
    server: Server,
) -> list[dict[str, float]]:
    """`predicted_load`, then passes over costs and the latency at `own_seconds` of each run.

    The first holds errors of costs and of the simulation, the second of the simulation alone.
    """
    found = predicted_load(about, rows, with_prompts(cost, alone, server.tokens)[0], server)
    for row in found:
        served = [each for each in rows if (each.rate, each.k) == (row["rate"], row["k"])]
        own, row["passes"] = own_seconds(served, cost, alone, server.tokens)
        row["own_latency"] = predicted_load(about, served, own, server)[0]["predicted_latency"]
    return found


def _means(arrival: Any, first: Any, finish: Any, tokens: int) -> dict[str, float]:
    return {
        "tokens_per_second": tokens / float(finish.max() - arrival[0]),
        "ttft": float((first - arrival).mean()),
        "latency": float((finish - arrival).mean()),
    }


def predicted_table(found: Sequence[Mapping[str, float]]) -> Table:
    """Predicted and measured figures of each rate and draft length; of `predicted_both` too."""
    keys = "tokens_per_second", "ttft", "latency"
    cells = []
    for row in found:
        both = [f"{row[f'predicted_{key}']:.3g} / {row[f'measured_{key}']:.3g}" for key in keys]
        latency = row["measured_latency"]
        errors = [f"{row['predicted_latency'] / latency - 1:+.1%}"]
        if "passes" in row:
            errors += [f"{row['passes']:.2f}", f"{row['own_latency'] / latency - 1:+.1%}"]
        cells.append((f"{row['rate']:g}", row["k"], *both, *errors))
    headings = ("requests/s", "K", "tok/s", "TTFT s", "latency s", "latency error")
    own = ("passes / costs", "error with own") if any("passes" in row for row in found) else ()
    return Table((*headings, *own), cells, 2, title="predicted / measured")
