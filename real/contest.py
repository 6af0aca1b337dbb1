"""Policies, plain decoding and transformers on the same prompts: measured beside predicted."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
import torch

from real.decode.features import required_predictors
from real.decode.loop import decode
from real.decode.plans import make_plan
from real.draft import Drafter, Silent, check_grows
from real.files import check_same_settings, replace_json
from real.pair import Pair
from real.progress import Progress, quiet
from real.prompts import prompts_of
from real.rerun import rerun_rule
from real.sampling import clear_noise_cache
from simspec import CostModel, Policy, Trace, policies
from simspec.cost.gate import Claim, PriceError, check_claims, no_interval, settled
from simspec.numerics.stats import Estimate, estimate, stacked
from simspec.output.files import reraised
from simspec.output.frames import frame
from simspec.replay.evaluation import evaluate
from simspec.tree.tree import TreePolicy

PLAIN = "plain"
REPLAYS = 16
"""Replays whose mean is predicted under the rejection rule; under the others each is the run."""
METHOD = "percentile"
"""Of intervals: of 20 prompts timed in blocks it covers 94% at a stated 95%, bca 84%."""
LEAST_REPEATS, LEAST_PROMPTS = 5, 20
"""Fewer are no measurement to publish."""


@dataclass(frozen=True)
class Request:
    """One prompt to continue: its tokens, new tokens allowed, address of its random draws."""

    prompt: Sequence[int]
    budget: int
    address: int = 0


Generate = Callable[[Request], tuple[list[int], int]]
"""Continues one prompt: (new tokens, passes of the target)."""


@dataclass(frozen=True)
class Contestant:
    """One way to continue prompts.

    `begin` returns a `Generate` with new state and is called in every repeat; `warm` prepares what
    its first calls showed to be needed; `own_draws`: its texts are not plain decoding's.
    """

    name: str
    begin: Callable[[], Generate]
    warm: Callable[[], None] = lambda: None
    own_draws: bool = False


Positive = Annotated[float, msgspec.Meta(gt=0)]


class Runs(msgspec.Struct, forbid_unknown_fields=True):
    """Runs of a contestant."""

    name: str
    token: list[list[list[int]]] = []  # [R][S][n]: new tokens of every repeat and prompt
    passes: list[list[Positive]] = []  # [R][S]: of the target
    # [R][S]: end to end, prefill included, device synchronized before and after
    seconds: list[list[Positive]] = []
    # [R][S]: seconds of a call for one new token; older files time it in the first repeat alone
    first: list[Positive | list[Positive]] = []
    error: str = ""  # why it failed, "" if it did not
    own_draws: bool = False  # the contestant's

    def __post_init__(self) -> None:
        if len({isinstance(times, list) for times in self.first}) > 1:
            raise ValueError("first holds numbers and lists, expected a list of each repeat")
        if self.first and not isinstance(self.first[0], list):
            self.first = [self.first] * len(self.seconds)  # type: ignore[list-item]

    def sums(self, values: str) -> np.ndarray:
        """float64 `[S]`: seconds, first, passes or tokens of a prompt, mean over repeats."""
        if values == "tokens":
            return np.array([[len(t) for t in repeat] for repeat in self.token], float).mean(0)
        return np.array(getattr(self, values), float).mean(0)


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    settings: dict[str, Any]
    revisions: list[str]
    runs: list[Runs]


class Kept:
    """Finished repeats, in a file that a killed contest continues from; None keeps nothing.

    ValueError, one line, for a damaged file or one of other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], revision: str = ""):
        self.path = path
        plain = json.loads(msgspec.json.encode(settings, enc_hook=str))
        self.saved = _Saved(plain, [revision], [])
        if path is None or not path.exists():
            return
        raised = msgspec.DecodeError, RecursionError
        with reraised(ValueError, f"{path} holds no repeats", "name another file", raised):
            found = msgspec.json.decode(path.read_bytes(), type=_Saved)
        check_same_settings(found.settings, plain, path, "name another file to save to")
        self.saved.runs = found.runs
        self.saved.revisions = list(dict.fromkeys([*found.revisions, revision]))

    def load(self, names: Sequence[str], prompts: int) -> int:
        """The number of finished repeats; ValueError unless they are of these contestants."""
        runs = self.saved.runs
        if not runs:
            return 0
        repeats = max(len(each.seconds) for each in runs)
        sizes = [
            [*map(np.size, each.first), *map(len, each.seconds), *map(len, each.token)]
            for each in runs
            if not each.error
        ]
        whole = [prompts] * (3 * repeats)
        if [each.name for each in runs] != list(names) or any(size != whole for size in sizes):
            raise ValueError(
                f"{self.path} holds repeats of {', '.join(r.name for r in runs):.200}; expected "
                f"{', '.join(names)} on {prompts} prompts, name another file to save to"
            )
        return repeats

    def save(self, runs: list[Runs]) -> None:
        """Keeps runs after a finished repeat, atomically."""
        self.saved.runs = runs
        if self.path is not None:
            replace_json(self.path, msgspec.to_builtins(self.saved))


def contest(
    contestants: Sequence[Contestant],
    requests: Sequence[Request],
    repeats: int = 5,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = quiet,
    timer: Callable[[], float] = perf_counter,
    kept: Kept | None = None,
) -> list[Runs]:
    """End-to-end wall-clock time of every contestant on every prompt, `repeats` times.

    A repeat takes the prompts in their order, because a stream's state carries over. For each
    prompt all contestants run back to back, shuffled anew by `seed`: a block, in which the machine
    is about the same for all. Before, each warms up on the longest and the shortest request. After
    a block each also times one new token, since a prompt's pass may be slower in another repeat.
    A contestant that fails takes no further part; plain decoding may not fail. Repeats that `kept`
    holds are not run again.
    ValueError for no prompts, no repeats, or contestants of the same name.
    """
    names = [c.name for c in contestants]
    if repeats < 1 or not requests or len(set(names)) < len(names):
        raise ValueError(
            f"{len(requests)} prompts, {repeats} repeats of {', '.join(names)}; "
            "expected a prompt or more, a repeat or more, and no contestant twice"
        )
    kept = kept or Kept(None, {})
    cuda = torch.device(device).type == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if cuda else lambda: None
    entries = [_Entry(contestant, requests, wait, timer) for contestant in contestants]
    finished = kept.load(names, len(requests))
    if finished:
        for entry, runs in zip(entries, kept.saved.runs):
            entry.runs = runs
    if finished < repeats:
        for entry in entries:
            entry.warm_up()
    done, total = finished * len(requests), repeats * len(requests)
    for repeat in range(finished, repeats):
        order = np.random.default_rng((seed, repeat))  # the same where a contest is continued
        for entry in entries:
            entry.begin()
        for _ in requests:
            block = [entries[i] for i in order.permutation(len(entries))]
            for entry in block:
                entry.next()
            for entry in block:
                entry.first_token()
            done += 1
            progress("comparing", done, total)
        kept.save([entry.runs for entry in entries])
    return [entry.runs for entry in entries]


class _Entry:
    """A contestant during a contest."""

    def __init__(
        self,
        contestant: Contestant,
        requests: Sequence[Request],
        wait: Callable[[], None],
        timer: Callable[[], float],
    ):
        self.contestant, self.requests, self.wait, self.timer = contestant, requests, wait, timer
        self.runs = Runs(contestant.name, own_draws=contestant.own_draws)
        self.generate: Generate | None = None

    def warm_up(self) -> None:
        """Continues the longest and the shortest request, then warms what they needed."""
        by_length = sorted(self.requests, key=lambda r: len(r.prompt) + r.budget)
        for request in by_length[-1:] if len(by_length) == 1 else (by_length[-1], by_length[0]):
            self._call(None, request)
        if not self.runs.error:
            self.contestant.warm()

    def begin(self) -> None:
        """Starts a repeat."""
        self.generate = None if self.runs.error else self.contestant.begin()
        for column in (self.runs.token, self.runs.passes, self.runs.seconds, self.runs.first):
            column.append([])

    def next(self) -> None:
        """Continues the next request of the repeat."""
        runs = self.runs
        if runs.error:
            return
        if timed := self._call(self.generate, self.requests[len(runs.token[-1])]):
            token, passes, seconds = timed
            runs.token[-1].append(token)
            runs.passes[-1].append(passes)
            runs.seconds[-1].append(seconds)

    def first_token(self) -> None:
        """Times one new token after the next prompt."""
        if self.runs.error:
            return
        times = self.runs.first[-1]
        assert isinstance(times, list)
        if timed := self._call(None, replace(self.requests[len(times)], budget=1)):
            times.append(timed[2])

    def _call(
        self, generate: Generate | None, request: Request
    ) -> tuple[list[int], int, float] | None:
        """(tokens, passes, seconds), with new state where none is given; None where it failed."""
        if self.runs.error:
            return None
        try:
            generate = generate or self.contestant.begin()
            self.wait()
            begin = self.timer()
            token, passes = generate(request)
            self.wait()
            return token, passes, self.timer() - begin
        except Exception as error:  # whatever another library raises, the others go on
            if self.contestant.name == PLAIN:
                raise
            self.runs.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            return None


def requests_of(trace: Trace) -> list[Request]:
    """The prompts of a recording."""
    rows = zip(prompts_of(trace), trace.budget.tolist(), trace.sequence.tolist())
    return [Request(prompt, budget, address) for prompt, budget, address in rows]


def policy_contestant(
    name: str,
    pair: Pair,
    drafter: Drafter,
    policy: Policy | TreePolicy,
    trace: Trace,
    cost: CostModel,
    seed: int,
) -> Contestant:
    """The decode loop with a drafter and a policy that observes seconds of `cost`.

    Rule, end tokens and the deepest draft are those of the trace; under the rejection rule tokens
    are drawn anew. ValueError for a policy that needs more than the drafter has: depth, features,
    trees.
    """
    rule = rerun_rule(trace, seed)
    tree = trace.meta.tree if trace.meta.drafter == drafter.name else ()

    def new_plan():
        return make_plan(policy, trace.K, seed, cost, tree)

    plan = new_plan()  # what cannot run is refused before anything runs
    required_predictors(tuple(policy.reads), drafter)
    if isinstance(policy, TreePolicy) and policy.kind != "cape":
        check_grows(drafter, plan.K)

    def begin() -> Generate:
        plan = new_plan()

        def generate(request: Request) -> tuple[list[int], int]:
            clear_noise_cache()  # contestants share their noise, and each pays for it
            result = decode(
                pair.target, drafter, plan, rule, list(request.prompt), request.budget,
                tuple(trace.meta.end_tokens), request.address, exact=False,
            )  # fmt: skip
            return result.token.tolist(), len(result.position)

        return generate

    own = rule.sampled and name != PLAIN
    return Contestant(name, begin, pair.target.passes.warm, own)


def contestants_of(
    trace: Trace,
    plain: Pair,
    pair: Pair,
    chosen: Sequence[Policy | TreePolicy],
    cost: CostModel,
    seed: int,
) -> list[Contestant]:
    """Plain decoding on its own pair, which keeps no layers for a drafter, and the policies."""
    no_drafts = policies.BUILTIN["fixed"](0)
    return [
        policy_contestant(PLAIN, plain, Silent(), no_drafts, trace, cost, seed),
        *(policy_contestant(p.name, pair, pair.drafter, p, trace, cost, seed) for p in chosen),
    ]


def ratio_of_rates(totals: np.ndarray) -> np.ndarray:
    """Tokens a second over those of plain decoding, of (tokens, seconds, plain tokens, plain
    seconds)."""
    tokens, seconds, plain_tokens, plain_seconds = (totals[..., i] for i in range(4))
    return tokens / seconds * plain_seconds / plain_tokens


def speedup_measured(runs: Runs, plain: Runs, **options: Any) -> Estimate:
    """Tokens a second over those of plain decoding, with its interval over blocks (prompts).

    A block is resampled with all its repeats: its times differ by the prompt and by the noise of
    its calls, so the interval holds both. It holds no noise that hits one contestant for a whole
    repeat, which shuffled blocks make unlikely.
    """
    parts = [each.sums(values) for each in (runs, plain) for values in ("tokens", "seconds")]
    return estimate(stacked(*parts), ratio_of_rates, method=METHOD, **options)


@dataclass(frozen=True)
class Prediction:
    """What replays say of a policy."""

    # float64 [S, 1 + R]: decoding without prefill: at the costs, and R replicates
    seconds: np.ndarray
    plain: np.ndarray  # float64 [S]: of plain decoding
    rounds: float  # of all prompts, mean over the replays


def predictions(
    trace: Trace, chosen: Sequence[Policy | TreePolicy], cost: CostModel, seed: int
) -> dict[str, Prediction]:
    """{policy: its prediction on the prompts of `trace`}.

    Under a greedy or coupled rule it is of the very rounds that a run of that seed has; under the
    rejection rule of the mean over REPLAYS replays, since the run draws its own tokens.
    """
    replays = REPLAYS if trace.ratio is not None else 1
    found = evaluate(trace, list(chosen), cost, replays, seed)
    return {
        p.name: Prediction(found.seconds[p.name], found.plain, found.rounds[p.name]) for p in chosen
    }


def compared(
    trace: Trace,
    runs: Sequence[Runs],
    predicted: Mapping[str, Prediction],
    cost: CostModel,
    device: str = "",
) -> pd.DataFrame:
    """The table of a contest: one row a contestant.

    Predicted and measured are end to end, times plain decoding: to the replay's seconds comes the
    measured call for one token, which holds the prompt's pass and one of the costs' plain steps.
    The error is predicted / measured - 1, its interval over prompts drawn for both. The remark says
    why the seconds on `device` are not settled. Where texts can be compared, `equal` counts prompts
    whose every repeat gave plain decoding's tokens.
    """
    ran = {each.name: each for each in runs if not each.error}
    plain, alone = ran[PLAIN], no_interval(cost)
    rows = []
    for each in runs:
        row: dict[str, Any] = {"contestant": each.name}
        if each.error:
            rows.append(row | {"remark": each.error})
            continue
        tokens, passes = each.sums("tokens"), each.sums("passes")
        row |= {
            "measured": speedup_measured(each, plain),
            "tokens/s": float(tokens.sum() / each.sums("seconds").sum()),
            "tokens/round": float(tokens.sum() / passes.sum()),
        }
        if not each.own_draws:
            same = [[t == p for t, p in zip(r, plain.token[0])] for r in each.token]
            row["equal"] = int(np.all(same, 0).sum())
        if each.name in predicted:
            row |= _predicted(each, plain, predicted[each.name], cost.baseline, bool(alone))
            row["replayed"] = trace.rows / predicted[each.name].rounds
            said, clocked = (
                Claim(each.name, row[figure].value, row[tokens_a_round], row[figure].low)
                for figure, tokens_a_round in (
                    ("predicted", "replayed"),
                    ("measured", "tokens/round"),
                )
            )
            row["remark"] = doubt(said, clocked, row["error"], cost, device) or None
        rows.append(row)
    columns = [
        "contestant", "predicted", "measured", "error", "replayed", "tokens/round", "tokens/s",
        "equal", "remark",
    ]  # fmt: skip
    notes = ["95% intervals over prompts; predicted ones over prices too, where costs hold them."]
    if predicted:
        notes.append(f"Predicted {source_of(cost, device)}{alone and f', no interval: {alone}'}.")
    notes += shortcomings(len(plain.seconds), trace.sequences)
    return frame(
        [{name: row.get(name) for name in columns} for row in rows],
        columns,
        title=f"times plain decoding, {trace.sequences} prompts, {len(plain.seconds)} repeats",
        notes=notes,
        formats={"error": "+.1%", "tokens/s": ".1f"},
        optional=("remark", "equal", "tokens/s"),
    )


def _predicted(
    runs: Runs, plain: Runs, found: Prediction, baseline: float, alone: bool
) -> dict[str, Estimate]:
    """The predicted speedup and its error, at the measured calls for one token; alone: without
    intervals, which would hold nothing."""
    seconds = runs.sums("first")[:, None] - baseline + found.seconds
    of_plain = plain.sums("first") - baseline + found.plain
    parts = [each.sums(values) for each in (runs, plain) for values in ("tokens", "seconds")]

    def speedup(totals: Any) -> Any:
        return totals[..., 0] / totals[..., 1]

    def error(totals: Any) -> Any:
        return speedup(totals) / ratio_of_rates(totals[..., 2:]) - 1

    made = {
        "predicted": estimate(stacked(of_plain, seconds), speedup, method=METHOD),
        "error": estimate(stacked(of_plain, seconds, *parts), error, method=METHOD),
    }
    if not alone:
        return made
    nan = float("nan")
    return {name: replace(figure, low=nan, high=nan) for name, figure in made.items()}


def doubt(predicted: Claim, measured: Claim, error: Estimate, cost: CostModel, device: str) -> str:
    """Why a predicted and a measured speedup settle nothing; "" where they agree within noise.

    predicted: NaN where nothing predicts the run; error: predicted / measured - 1 over prompts;
    device: where it ran. Costs of another device, and ratios that somebody gave, are only refused
    as prices: they do not predict these seconds.
    """
    try:
        check_claims([predicted], cost, cost.name)
        check_claims([measured])
    except PriceError as refused:
        return str(refused)
    pair = predicted.speedup, measured.speedup
    compared = predicted.speedup > 0 and cost.precision is not None and cost.device == device
    if not compared or settled(*pair) or 0 in error:
        return ""
    return (
        f"the seconds are not settled (predicted {pair[0]:.2f}, measured {pair[1]:.2f}): run again "
        "on an idle machine"
    )


def source_of(cost: CostModel, device: str) -> str:
    """Whose costs a prediction rests on, in words."""
    if cost.precision is None:
        return "at given costs"
    return "at costs measured here" if cost.device == device else f"at costs of {cost.device}"


def shortcomings(repeats: int, prompts: int) -> list[str]:
    """Reasons why these numbers of repeats and prompts make no measurement; [] if none."""
    reasons = []
    if repeats < LEAST_REPEATS:
        reasons.append(f"{repeats} repeats, expected at least {LEAST_REPEATS}")
    if prompts < LEAST_PROMPTS:
        reasons.append(f"{prompts} prompts, expected at least {LEAST_PROMPTS}")
    return [f"no measurement, not to be published: {reason}" for reason in reasons]
