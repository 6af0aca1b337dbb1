"""Scorecard: what a replay and costs of other prompts predict of a run, against what the run's clock says; the difference in parts."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from real.bench.phase_costs import PhaseCost, Pricing, jobs
from real.decode.loop import DecodeResult, decode
from real.draft import Silent
from real.equality import rounds_of
from real.files import replace_json
from real.measure.loop import PLAIN
from real.pair import Pair, prompts_of, rule_of, same_predictors, stepper
from real.progress import Progress, quiet
from real.sampling import forget_noise
from simspec import CostModel, Policy, Rounds, Trace, policies, replay

NEAR, FAR, TIMES = 0.03, 0.08, 2.0
"""A scorecard is good where the median error is within max(NEAR, TIMES x the noise floor), and the 90th percentile within FAR."""


@dataclass(frozen=True)
class Row:
    """One recording and policy: predicted against measured.

    | field | meaning |
    | --- | --- |
    | predicted, measured | tokens a second; measured is the repeat with the (lower) median total time |
    | error | predicted / measured - 1 |
    | acceptance | log(L / T(replay)) - log(L' / T(run)): other rounds than replayed, both priced by the model |
    | cost | log((C' + O) / (C + O)): drafting and verification C of the run's rounds, measured ' and priced |
    | overhead | log((C' + O') / (C' + O)): policy and other O likewise. acceptance + cost + overhead = log(1 + error) exactly |
    | noise | sample deviation of the repeats' tokens a second over their mean; None of a single repeat |
    | tau, tau_measured | committed tokens a round |
    | speedup, speedup_measured | over plain decoding, priced and measured alike |
    | phases, phases_measured | seconds of drafting, verification, policy, other |
    | prompts, tokens, rounds | of the run |
    """

    recording: str
    drafter: str
    policy: str
    predicted: float
    measured: float
    error: float
    acceptance: float
    cost: float
    overhead: float
    noise: float | None
    tau: float
    tau_measured: float
    speedup: float
    speedup_measured: float
    phases: tuple
    phases_measured: tuple
    prompts: int
    tokens: int
    rounds: int


@dataclass(frozen=True)
class Scorecard:
    """Rows of all recordings, and where and how they were run."""

    device: str
    dtype: str
    repeats: int
    seed: int
    rows: tuple[Row, ...]

    @property
    def median_abs_error(self) -> float:
        """Median of |error| over rows."""
        return float(np.median([abs(r.error) for r in self.rows]))

    @property
    def p90_abs_error(self) -> float:
        """90th percentile of |error| over rows."""
        return float(np.quantile([abs(r.error) for r in self.rows], 0.9))

    @property
    def noise_floor(self) -> float | None:
        """Median over rows of the deviation of repeats; None of a single repeat."""
        return None if self.repeats < 2 else float(np.median([r.noise for r in self.rows]))

    @property
    def good(self) -> bool:
        """Whether the errors are within the bounds above."""
        return (
            self.median_abs_error <= max(NEAR, TIMES * (self.noise_floor or 0.0))
            and self.p90_abs_error <= FAR
        )

    def summary(self) -> dict:
        """The object that `simspec scorecard --json` prints."""
        figures = {
            name: getattr(self, name)
            for name in ("device", "median_abs_error", "p90_abs_error", "noise_floor", "good")
        }
        return (
            figures
            | {name: getattr(self, name) for name in ("dtype", "repeats", "seed")}
            | {"rows": [asdict(r) for r in self.rows]}
        )


def halves(trace: Trace, prompts: int, seed: int) -> tuple[Trace, Trace]:
    """(prompts to score, other prompts to take costs from), drawn by `seed`; ValueError unless some are left over for the costs."""
    if not 1 <= prompts < trace.sequences:
        raise ValueError(
            f"{prompts} prompts to score of {trace.sequences}; expected at least 1, and one left over to measure costs on"
        )
    order = np.random.default_rng(seed).permutation(trace.sequences)
    return trace.select(np.sort(order[:prompts])), trace.select(
        np.sort(order[prompts : 2 * prompts])
    )


def score(
    name: str,
    trace: Trace,
    pair: Pair,
    policies_: Sequence[Policy | str],
    told: CostModel,
    prompts: int = 12,
    repeats: int = 3,
    seed: int = 0,
    progress: Progress = quiet,
) -> list[Row]:
    """The rows of one recording: every policy on `prompts` of its prompts, `repeats` times, costs from as many others.

    Policies hear the modelled seconds of `told`, in run and replay alike; what predicts is measured here: means of the loop's clock on the
    other prompts, each run once under every job of `real.bench.phase_costs.jobs`. Runs to score and runs for the costs come in one random order, so
    that a slow minute hits both.
    ValueError where nothing is left over for the costs, or a policy cannot run.
    """
    scored, others = halves(trace, prompts, seed)
    made = [policies.make(policy, scored, told) for policy in policies_]
    same_predictors(pair.drafter, trace, made)
    replays = [replay(scored, policy, seed=seed, cost=told) for policy in made]
    deepest = max((int(r.computed.max()) for r in replays), default=0)
    # a run may flip into a longer draft than any replay made
    pricing, priced = (
        Pricing(max((p.longest(trace.K) for p in made), default=0)),
        jobs(deepest, pair.drafter.has_logits),
    )
    unit = CostModel.from_ratio(0.1, max(deepest, 1))
    drives = [(pair.drafter, p) for p in made] + [(Silent(), priced[PLAIN])]
    rng = np.random.default_rng(seed)
    again = [(i, None, None) for i in range(len(drives)) for _ in range(scored.sequences)]
    once_each = [(None, job, s) for s in range(others.sequences) for job in priced]
    order = rng.permutation(len(once_each))
    todo = [again + [once_each[at] for at in order[repeat::repeats]] for repeat in range(repeats)]
    inputs = {id(t): prompts_of(t) for t in (scored, others)}
    runs, done = [[[] for _ in drives] for _ in range(repeats)], 0

    def once(part: Trace, drafter, drive, s: int) -> DecodeResult:
        forget_noise()
        ends, address = part.meta.end_tokens, int(part.sequence[s])
        return decode(
            pair.target,
            drafter,
            drive,
            rule_of(part),
            inputs[id(part)][s],
            int(part.budget[s]),
            ends,
            address,
        )

    for drafter, policy in drives:  # warms caches, allocators and compiled policies
        once(others, drafter, stepper(policy, trace.K, seed, told), 0)
    pair.target.passes.warm()
    for repeat in range(repeats):
        steppers = [stepper(policy, trace.K, seed, told) for _, policy in drives]
        for at in rng.permutation(len(todo[repeat])):
            i, job, s = todo[repeat][at]
            if (
                job is None
            ):  # a policy's texts in their order: a stream's state goes from one to the next
                runs[repeat][i].append(
                    once(scored, drives[i][0], steppers[i], len(runs[repeat][i]))
                )
            else:
                drafter = Silent() if job == PLAIN else pair.drafter
                pricing.hear(
                    job, once(others, drafter, stepper(priced[job], max(deepest, 1), seed, unit), s)
                )
            done += 1
            progress("running", done, sum(map(len, todo)))
    return rows(name, scored, pair.drafter.name, made, replays, pricing.cost(), runs)


def rows(
    name: str,
    trace: Trace,
    drafter: str,
    made: Sequence[Policy],
    replays: Sequence[Rounds],
    price: PhaseCost,
    runs: Sequence[Sequence[Sequence[DecodeResult]]],
) -> list[Row]:
    """Rows from runs[repeat][policy][sequence] of `trace`, the last policy plain decoding, and a price that knows none of them."""
    plain, _ = _middle([each[-1] for each in runs])
    plain_speed = _tokens(plain) / _seconds(plain).sum()
    found = []
    for i, (policy, replayed) in enumerate(zip(made, replays)):
        run, noise = _middle([each[i] for each in runs])
        ran = rounds_of(trace, run)
        tokens, clock = _tokens(run), _seconds(run)
        foreseen, same = (
            price.seconds(replayed, policy.reads).sum(0),
            price.seconds(ran, policy.reads).sum(0),
        )
        predicted, measured = trace.rows / foreseen.sum(), tokens / clock.sum()
        (core, around), (core_clock, around_clock) = _parts(same), _parts(clock)
        found.append(
            Row(
                name,
                drafter,
                policy.name,
                float(predicted),
                float(measured),
                float(predicted / measured - 1),
                math.log(predicted) - math.log(tokens / same.sum()),
                math.log((core_clock + around) / (core + around)),
                math.log((core_clock + around_clock) / (core_clock + around)),
                noise,
                trace.rows / len(replayed),
                tokens / len(ran),
                float(predicted * price.plain.sum()),
                float(measured / plain_speed),
                tuple(foreseen.tolist()),
                tuple(clock.tolist()),
                trace.sequences,
                tokens,
                len(ran),
            )
        )
    return found


def _middle(
    repeats: Sequence[Sequence[DecodeResult]],
) -> tuple[Sequence[DecodeResult], float | None]:
    """The repeat of the lower median time, and the deviation of tokens a second over its mean."""
    total = np.array([_seconds(run).sum() for run in repeats])
    speed = np.array([_tokens(run) for run in repeats]) / total
    noise = float(speed.std(ddof=1) / speed.mean()) if len(speed) > 1 else None
    return repeats[np.argsort(total, kind="stable")[(len(total) - 1) // 2]], noise


def _tokens(run: Sequence[DecodeResult]) -> int:
    return sum(len(r.token) for r in run)


def _seconds(run: Sequence[DecodeResult]) -> np.ndarray:
    return np.concatenate([r.seconds for r in run]).sum(0)


def _parts(phases: np.ndarray) -> tuple[float, float]:
    """Drafting and verification; policy and other."""
    return float(phases[:2].sum()), float(phases[2:].sum())


def keep(path: Path, settings: Mapping, rows: Mapping[str, Sequence[Row]]) -> None:
    """Writes rows by recording to `path`, whole or not at all, with the settings that they hold for (`kept`)."""
    replace_json(
        path,
        {
            "settings": settings,
            "rows": {name: [asdict(row) for row in each] for name, each in rows.items()},
        },
    )


def kept(path: Path, settings: Mapping) -> dict[str, tuple[Row, ...]]:
    """The rows by recording that `keep` wrote, {} where no file is; ValueError, one line, for a damaged file or one of other settings."""
    try:
        said = json.loads(Path(path).read_text(encoding="utf-8"))
        held = {name: tuple(_row(each) for each in rows) for name, rows in said["rows"].items()}
        there = dict(said["settings"])
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no rows of a scorecard: {' '.join(str(error).split())[:200]}; name another file"
        ) from error
    for name in sorted(there.keys() | settings.keys()):
        if there.get(name) != settings.get(name):
            raise ValueError(
                f"{path} was made with {name} {there.get(name)}, this is {settings.get(name)}; name another file to save to"
            )
    return held


def _row(said: Mapping) -> Row:
    row = Row(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    )
    for name, kind in Row.__annotations__.items():
        value = getattr(row, name)
        if kind is str or kind is int:
            good = type(value) is kind
        elif kind is tuple:
            good = type(value) is tuple and len(value) == 4 and all(map(_number, value))
        else:
            good = _number(value) or name == "noise" and value is None
        if not good:
            raise ValueError(
                f"{name} is {value!r}, expected {'four numbers' if kind is tuple else 'text' if kind is str else 'a number'}"
            )
    return row


def _number(value) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
