"""What a campaign showed: each line that it must show, its figure, and whether it holds, all from what the parts found."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from real.audit.forced_comparison import MIN_EQUAL_SHARE
from real.bench.scorecard import MEDIAN_BOUND, NOISE_FACTOR, P90_BOUND
from real.campaign.config import MUST
from real.campaign.experiments import scorecard
from real.campaign.workspace import Folder
from real.files import replace_json, replacing
from real.jobs import RULES
from real.prompts import ALL, LOW_REPEAT
from real.provenance import device_name, revision, versions

DRAFTERS = (*MUST, "prompt_lookup")
TASKS = 6
STEPS = {"8b": 1.6, "lab": 5.0}
"""Most times the floor that a captured plain step may take, at batch 1 and any context."""
ASSISTED, DRIVEN, ON_ONE = 1.3, 1.8, 2.5
"""Least speedups: over assisted generation with the same drafter; of the driven shape over all prompts, and on one task."""
EXCEPTIONS = 0.002
"""Largest share of rounds in float32 that may differ from their replays."""


@dataclass(frozen=True)
class Requirement:
    """A line that a campaign must show.

    | field | meaning |
    | --- | --- |
    | name, wanted | what is asked, and from where on it holds |
    | passed | None where nothing was measured |
    | figure | what was measured, in words |
    | parts | the same by drafter, rule or policy: where a shortfall comes from |
    """

    name: str
    wanted: str
    passed: bool | None
    figure: str
    parts: dict = field(default_factory=dict)


def requirements(folder: Folder, states: Sequence[tuple[str, str, str, str]]) -> list[Requirement]:
    """All lines, from the parts' files and from `states` (name, rank, state, why).

    ValueError for files of parts that hold something else.
    """
    made = [
        partial(_whole, states),
        *(
            partial(line, folder)
            for line in (_recorded, _equal, _forced, _audited, _scored, _fastest)
        ),
    ]
    made += [partial(_step, folder, name, most) for name, most in STEPS.items()]
    made += [partial(line, folder) for line in (_raced, _driven)]
    return [_read(line) for line in made]


def _read(line: Callable[[], Requirement]) -> Requirement:
    try:
        return line()
    except (LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the report's {line.func.__name__[1:]!r} cannot be read from parts/ ({what}); delete its files there"
        ) from error


def _found(folder: Folder, what: str, drafters: Sequence[str] = DRAFTERS) -> dict[str, dict]:
    found = {drafter: folder.found(f"{what}-{drafter}") for drafter in drafters}
    return {drafter: each for drafter, each in found.items() if each is not None}


def _open(name: str, wanted: str) -> Requirement:
    return Requirement(name, wanted, None, "not measured")


def _whole(states) -> Requirement:
    musts = [each for each in states if each[1] == "must"]
    missing = {name: f"{state}: {why}" for name, _, state, why in musts if state != "done"}
    return Requirement(
        "complete",
        "every must part done",
        not missing,
        f"{len(musts) - len(missing)} of {len(musts)} must parts done",
        missing,
    )


def _recorded(folder: Folder) -> Requirement:
    size, name = folder.size, "recordings"
    tasks = TASKS if size.name == "full" else 1
    wanted = f"{len(DRAFTERS)} drafters x {len(RULES)} rules, {size.per_task} prompts of each task, {tasks} tasks or more"
    found = {f"{d} {r}": folder.found(f"record-{d}-{r}") for d in DRAFTERS for r in RULES}
    found = {key: each for key, each in found.items() if each}
    if not found:
        return _open(name, wanted)
    parts = {}
    for key, each in found.items():
        fewest = min(task["texts"] for task in each["by_task"].values())
        parts[key] = {
            n: each[n] for n in ("texts", "rows", "mean_accepted_length", "repeated_8grams")
        }
        parts[key] |= {"tasks": len(each["by_task"]), "fewest": fewest}
    enough = [p for p in parts.values() if p["fewest"] >= size.per_task and p["tasks"] >= tasks]
    rows = sum(p["rows"] for p in parts.values())
    passed = len(enough) == len(DRAFTERS) * len(RULES)
    return Requirement(
        name, wanted, passed, f"{len(enough)} recordings with as many, {rows:,} rows", parts
    )


def _equal(folder: Folder) -> Requirement:
    name = "float32 runs equal their replays"
    wanted = f"without TF32, at least {folder.size.least:,} tokens, at most {EXCEPTIONS:.1%} of rounds apart"
    found = _found(folder, "equal")
    if not found:
        return _open(name, wanted)
    parts = {
        d: {n: each[n] for n in ("tokens", "rounds", "exceptions", "failures")}
        for d, each in found.items()
    }
    tokens, rounds, exceptions, failures = (
        sum(p[n] for p in parts.values()) for n in ("tokens", "rounds", "exceptions", "failures")
    )
    apart = exceptions + failures
    passed = (
        tokens >= folder.size.least
        and apart <= EXCEPTIONS * rounds
        and not any(each["tf32"] for each in found.values())
    )
    figure = f"{apart} of {rounds:,} rounds apart ({apart / max(rounds, 1):.3%}; {failures} without a recorded near-tie), {tokens:,} tokens"
    return Requirement(name, wanted, passed, figure, parts)


def _forced(folder: Folder) -> Requirement:
    name, wanted = (
        "bf16 on the recordings' texts",
        f"accepted lengths equal in at least {MIN_EQUAL_SHARE:.0%} of rounds, of every drafter and rule",
    )
    parts = {
        f"{d} {r}": one
        for d, each in _found(folder, "forced").items()
        for r, one in each["rules"].items()
    }
    if not parts:
        return _open(name, wanted)
    parts = {
        key: {n: one[n] for n in ("rounds", "equal", "draft_flips", "divergences", "failures")}
        for key, one in parts.items()
    }
    worst = min(parts, key=lambda key: parts[key]["equal"] / parts[key]["rounds"])
    share = parts[worst]["equal"] / parts[worst]["rounds"]
    equal, rounds = (sum(p[n] for p in parts.values()) for n in ("equal", "rounds"))
    return Requirement(
        name,
        wanted,
        share >= MIN_EQUAL_SHARE,
        f"{equal / rounds:.2%} of {rounds:,} rounds, least {share:.2%} ({worst})",
        parts,
    )


def _audited(folder: Folder) -> Requirement:
    name, wanted = "bf16 free runs audited", "every divergence classified, none beyond rounding"
    parts = {
        f"{d} {r}": one
        for d, each in _found(folder, "audit").items()
        for r, one in each["rules"].items()
    }
    if not parts:
        return _open(name, wanted)
    shown = "tokens", "divergences", "largest_gap_nats", "alarms"
    cut = {
        key: {n: one[n] for n in shown} | {"failures": len(one["failures"])}
        for key, one in parts.items()
    }
    tokens, apart, beyond = (
        sum(p[n] for p in cut.values()) for n in ("tokens", "divergences", "failures")
    )
    figure = f"{apart} of {tokens:,} tokens are not the target's pick, {beyond} beyond rounding"
    return Requirement(name, wanted, all(one["clean"] for one in parts.values()), figure, cut)


def _scored(folder: Folder) -> Requirement:
    name = "scorecard on held-out prompts"
    wanted = (
        f"median error at most max({MEDIAN_BOUND:.0%}, {NOISE_FACTOR:g} x noise), "
        f"90th percentile at most {P90_BOUND:.0%}"
    )
    card = scorecard(folder, DRAFTERS)
    if card is None:
        return _open(name, wanted)
    shown = "error", "acceptance", "cost", "overhead"
    parts = {
        f"{r.drafter} {r.policy}": {n: round(getattr(r, n), 5) for n in shown} for r in card.rows
    }
    floor = "unknown" if card.noise_floor is None else f"{card.noise_floor:.2%}"
    figure = f"median {card.median_abs_error:.2%}, 90th percentile {card.p90_abs_error:.2%}, noise {floor}, {len(card.rows)} rows"
    return Requirement(name, wanted, card.good, figure, parts)


def _fastest(folder: Folder) -> Requirement:
    name, wanted = (
        "fastest drafter and policy on the lab target",
        "faster than our own plain loop in the same run",
    )
    rows = [row for each in _found(folder, "score").values() for row in each["rows"]]
    speeds = {f"{row['drafter']} {row['policy']}": row["speedup_measured"] for row in rows}
    speeds |= {
        f"{d} {each['policy']}": each["speedup_measured"]
        for d, each in _found(folder, "tree").items()
    }
    return _best(name, wanted, speeds)


def _step(folder: Folder, name: str, most: float) -> Requirement:
    found = folder.found(f"ladder-{name}")
    title = f"captured plain step, {name}"
    wanted = (
        f"at most {most:g} times the floor of the copy bandwidth and the matrix rate, at batch 1"
    )
    cells = {
        at: cell
        for at, cell in (found or {}).get("plain", {}).items()
        if at.startswith("batch 1,") and cell["distance"] is not None
    }
    if not cells:
        return _open(title, wanted)
    worst = max(cells, key=lambda at: cells[at]["distance"])
    figure = f"{cells[worst]['distance']:.2f} times ({worst}: {1e3 * cells[worst]['seconds']:.3f} ms), {found['bandwidth'] / 1e12:.2f} TB/s"
    return Requirement(
        title, wanted, cells[worst]["distance"] <= most and found["graphed"], figure, cells
    )


def _raced(folder: Folder) -> Requirement:
    name = "race against transformers on the lab target"
    wanted = f"at least {ASSISTED:g}x its assisted generation with the same drafter; nothing recommended that is slower than no speculation"
    found = folder.found("race")
    over = {each["group"]: each for each in (found or {}).get("over_assisted", [])}
    if ALL not in over:
        return _open(name, wanted)
    low = (
        f", {over[LOW_REPEAT]['ratio']:.2f}x on texts that loop little"
        if LOW_REPEAT in over
        else ""
    )
    figure = f"{over[ALL]['contestant']} {over[ALL]['ratio']:.2f}x {over[ALL]['assisted']}{low}; {found['requirement']}"
    parts = {r["contestant"]: r["speedup"] for r in found["rows"] if r["group"] == ALL}
    return Requirement(name, wanted, over[ALL]["ratio"] >= ASSISTED, figure, parts)


def _driven(folder: Folder) -> Requirement:
    name = f"fastest on {folder.size.shape}, random weights, recorded acceptances"
    wanted, found = (
        f"at least {DRIVEN:g}x our captured plain loop over all prompts, {ON_ONE:g}x on one task",
        _found(folder, "drive"),
    )
    rows = {
        f"{drafter} {row['policy']}": row
        for drafter, each in found.items()
        for row in each["rows"]
        if row["policy"] != "plain"
    }
    if not rows:
        return _open(name, wanted)
    best = max(rows, key=lambda key: rows[key]["speedup"])
    row = rows[best]
    tasks = {
        key: {g: x for g, x in each["groups"].items() if g.startswith("task:")}
        for key, each in rows.items()
    }
    most = max(
        ((x, g, key) for key, each in tasks.items() for g, x in each.items()),
        default=(0.0, "no task", best),
    )
    low = (
        f", {row['groups'][LOW_REPEAT]:.3f}x on texts that loop little"
        if LOW_REPEAT in row["groups"]
        else ""
    )
    figure = f"{best}: {row['speedup']:.3f}x{low}; most on one task {most[0]:.3f}x ({most[2]}, {most[1]})"
    figure += "" if row["speedup"] > 1 else "; recommended: no speculation"
    phases = "drafting", "verification", "policy_time", "other"
    parts = {
        key: {n: round(each[n], 4) for n in ("speedup", *phases)} | {"tasks": tasks[key]}
        for key, each in rows.items()
    }
    if not all(each["replay_equal"] for each in found.values()):
        return Requirement(name, wanted, False, f"{figure}; rounds differ from the replay's", parts)
    return Requirement(name, wanted, row["speedup"] >= DRIVEN and most[0] >= ON_ONE, figure, parts)


def _best(name: str, wanted: str, speeds: dict[str, float]) -> Requirement:
    if not speeds:
        return _open(name, wanted)
    best = max(speeds, key=speeds.__getitem__)
    passed = speeds[best] > 1
    figure = f"{best}: {speeds[best]:.3f}x" + ("" if passed else "; recommended: no speculation")
    return Requirement(
        name,
        wanted,
        passed,
        figure,
        {key: round(speed, 4) for key, speed in sorted(speeds.items(), key=lambda item: -item[1])},
    )


def write_report(folder: Folder, states: Sequence[tuple[str, str, str, str]]) -> list[Requirement]:
    """Writes report.json and REPORT.md into the campaign's folder."""
    lines = requirements(folder, states)
    card = folder.found("card") or {}
    head = {
        "size": folder.size.name,
        "device": device_name(folder.device),
        "target": folder.target,
        "complete": lines[0].passed,
    }
    head |= {
        "versions": versions(),
        "git": revision(),
        "heldout_loss_nats": card.get("heldout_loss_nats", {}),
    }
    parts = [dict(zip(("part", "rank", "state", "why"), state)) for state in states]
    replace_json(
        folder.out / "report.json",
        head | {"verdicts": [asdict(line) for line in lines], "parts": parts},
    )
    with replacing(folder.out / "REPORT.md") as path:
        path.write_text(_markdown(head, lines), encoding="utf-8")
    return lines


def _markdown(head: dict, lines: Sequence[Requirement]) -> str:
    where = f"Device: {head['device']}. Target: {str(head['target'])[:12]}. Complete: {head['complete']}."
    made = [f"# Campaign ({head['size']})", "", where, ""]
    losses = head["heldout_loss_nats"].get("target", {})
    made += (
        [
            "Held-out loss, nats a token: "
            + ", ".join(f"{name} {loss}" for name, loss in losses.items())
            + ".",
            "",
        ]
        if losses
        else []
    )
    made += ["| what | wanted | measured | holds |", "| --- | --- | --- | --- |"]
    words = {True: "yes", False: "**no**", None: "not measured"}
    made += [
        f"| {line.name} | {line.wanted} | {line.figure} | {words[line.passed]} |" for line in lines
    ]
    for line in lines:
        if line.passed is False:
            made += [
                "",
                f"## Short: {line.name}",
                "",
                *(f"- {key}: {value}" for key, value in line.parts.items()),
            ]
    return "\n".join(made) + "\n"
