"""The commands that need models: demo, train, record, measure, run, audit. `register` is simspec's entry point."""

import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Dtype = Annotated[str, typer.Option(help="float32, float64 or bfloat16.")]
Bundle = Annotated[Path | None, typer.Option(help="Folder with target/, model/, early_exit/; default: the embedded models.")]
TargetPath = Annotated[str | None, typer.Option("--target", help="A transformers checkpoint in place of <bundle>/target.")]
Weights = Annotated[Path | None, typer.Option(help="The drafter's folder, in place of <bundle>/<drafter>.")]
DrafterName = Annotated[str, typer.Option("--drafter", help="model or early_exit.")]
RuleName = Annotated[
    str, typer.Option("--rule", help="greedy; coupled (noise shared by text position: replays exactly); rejection (coins: replays in law).")
]
Temperature = Annotated[float, typer.Option(help="Divides the logits, where the rule is not greedy; 1 is the model's own distribution.")]
TopK = Annotated[int, typer.Option("--top-k", help="Only so many best tokens can be picked; 0: all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Only the fewest best tokens that hold this share can be picked.")]
Seed = Annotated[int, typer.Option(help="Of all draws.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to simspec's application; ImportError where torch or transformers is missing."""
    for name in ("torch", "transformers", "safetensors"):
        if find_spec(name) is None:
            raise ImportError(f"{name} is not installed")
    for command in (demo, train, record, measure, run, audit):
        app.command()(command)
    from real.commands import drive, force, scorecard

    from real.rivals_command import rivals

    for command in (force, drive, scorecard, rivals):
        app.command()(command)


@contextmanager
def _progress():
    """Gives tell(remark, done, of): one bar a remark on stderr, and a plain line at its end where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bars: dict[str, int] = {}
    note = TextColumn("{task.fields[note]}")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def tell(remark: str, done: int, of: int, note: str = "") -> None:
            if remark not in bars:
                bars[remark] = progress.add_task(remark, total=of, note=note)
            progress.update(bars[remark], completed=done, total=of, note=note)
            if not console.is_terminal and done == of:
                print(f"{remark}: {done}/{of} {note}".rstrip(), file=sys.stderr)

        yield tell


def _rule(name: str, temperature: float, seed: int, top_k: int = 0, top_p: float = 1.0):
    from real.sampling import Rule
    from simspec.rng import check_seed

    check_seed(seed)
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}, expected a finite number >= 0")
    return Rule(name, top_k=top_k, top_p=top_p) if name == "greedy" else Rule(name, temperature, seed, top_k, top_p)


def _grown(tree: str | None) -> tuple:
    if tree is None:
        return ()
    width, x, levels = tree.partition("x")
    if not (x and width.isdecimal() and levels.isdecimal()):
        raise ValueError(f"--tree is {tree!r}; expected WIDTHxLEVELS such as 4x6")
    return int(width), int(levels)


def _pair(bundle, drafter, device, dtype, target, weights):
    from real.pair import TINY, load_pair

    return load_pair(bundle or TINY, drafter, device, dtype, target, weights)


def demo(
    prompts: Annotated[int, typer.Option(help="Prompts to run for real on each recording.")] = 10,
    seed: Seed = 0,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
    as_json: Json = False,
):
    """Sweep the bundled recordings, pick a policy, run it on the embedded models, compare with the replay.

    Exits with code 1 if a run and its replay differ. Example: simspec demo --prompts 48 --plot demo.png
    """
    from real.demo import demo as show
    from real.demo import draw

    with _progress() as tell:
        found = show(prompts, seed, tell=tell)
    draw(found, plot)
    if as_json:
        print(json.dumps(found.summary() | {"plot": str(plot)}))
    else:
        _print_demo(found, plot)
    if not found.comparison.equal:
        raise typer.Exit(1)


def _print_demo(found, plot) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    means = found.table.groupby(["policy", "trace"], sort=False).speedup.mean().unstack(sort=False)
    table = Table("policy", *means.columns, title="modelled speedup, at costs measured here")
    for name, row in means.iterrows():
        table.add_row(name, *(f"{x:.3f}" for x in row))
    console.print(table)
    heads = "recording", "its best policy", "simulated", "measured", "rounds", "exceptions", "failures"
    table = Table(*heads, title="run for real, compared with the replay")
    for name, o in found.outcomes.items():
        c = o.comparison
        counts = c.rounds, len(c.exceptions), len(c.failures)
        table.add_row(name, o.policy, f"{o.simulated:.3f}", f"{o.measured:.3f}", *map(str, counts))
    console.print(table)
    best = found.outcomes[found.best]
    verdict = "the runs did what the replays said" if found.comparison.equal else "RUNS AND REPLAYS DIFFER"
    console.print(f"best: {best.policy} on {found.best}; {verdict}. Picture: {plot}. Device: {best.device}", highlight=False)


def train(
    text: Annotated[list[str], typer.Argument(metavar="[DRAFTER] TEXT...", help="A drafter's name to train it alone; then files or \
folders: .txt, .md, .jsonl or .jsonl.xz with a \"text\" field.")],
    out: Annotated[Path, typer.Option(help="The bundle: target/, and a folder for every drafter.")],
    work: Annotated[Path | None, typer.Option(help="Tokens, checkpoints, curves; default <out>-work.")] = None,
    heldout: Annotated[list[Path] | None, typer.Option(help="Text kept apart, repeatable; its loss goes into the card.")] = None,
    minutes: Annotated[float | None, typer.Option(help="For the target, each drafter a tenth [60]; for a drafter alone [6].")] = None,
    steps: Annotated[str | None, typer.Option(help="Exact steps in place of minutes: of target,model,early_exit and so on, the last for \
all that follow: 2662,1800,1800; of a drafter alone: 1800.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value for the drafter named, repeatable: inputs=token.")] = None,
    soft: Annotated[bool | None, typer.Option("--soft/--hard", help="Learn the target's distribution, or the text's tokens; \
default: the drafter's own.")] = None,
    rate: Annotated[float | None, typer.Option(help="Peak learning rate of a drafter alone; default: its own.")] = None,
    patience: Annotated[int, typer.Option(help="Stop a drafter after so many validations without a better one; 0 never.")] = 0,
    name: Annotated[str | None, typer.Option(help="Its folder in the bundle; default: the drafter's name.")] = None,
    against: Annotated[str | None, typer.Option(help="Another drafter's folder in the bundle, to be compared with on equal texts.")] = None,
    distil_tokens: Annotated[int, typer.Option(help="Tokens that the target writes for its drafters.")] = 1_000_000,
    blend: Annotated[float, typer.Option(help="Share of what drafters learn from that the target wrote; the rest is the text.")] = 0.5,
    rows: Annotated[int | None, typer.Option(help="Windows of 512 tokens in a step of the target, drafters take twice as many of 192 [8]; \
windows of a drafter alone [16].")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads for torch; 0 leaves its default.")] = 0,
    device: Device = "cpu",
    seed: Seed = 0,
    toy: Annotated[bool, typer.Option(help="Minute sizes, to try the pipeline.")] = False,
    as_json: Json = False,
):
    """Train a small target and its drafters from text, or one drafter for a target that is there; killed, it continues where it was.

    Example of all: simspec train corpus/ --heldout dev.txt --out models/mine --minutes 30

    Example: simspec train eagle corpus/ --out models/mine --set inputs=token --name eagle-token --against eagle
    """
    import torch

    from real.lab import Lab, build, searched, single, stepped, timed, varied
    from real.lab import toy as small
    from real.learn import lines
    from real.lesson import lesson, named, read_settings
    from real.provenance import check_device
    from real.train import Plan
    from simspec.rng import check_seed

    check_device(device)
    check_seed(seed)
    drafter, files = named(text)
    minutes = minutes if minutes is not None else 6.0 if drafter else 60.0
    rows = rows if rows is not None else 16 if drafter else 8
    if not 0 < minutes < float("inf") or min(distil_tokens, rows) < 1 or min(threads, patience) < 0:
        given = f"minutes {minutes}, distil-tokens {distil_tokens}, rows {rows}, threads {threads}, patience {patience}"
        raise ValueError(f"{given}; expected minutes > 0, at least one token and row, threads and patience >= 0")
    for folder in (out, work):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file, expected a folder for the models or their work")
    counts = [] if steps is None else steps.split(",")
    few, many = (1, 1) if drafter else (3, 99)
    if counts and not (few <= len(counts) <= many and all(c.isdigit() and int(c) for c in counts)):
        wanted = "a positive number such as 1800" if drafter else "three positive numbers or more such as 2662,1800,1800"
        raise ValueError(f"--steps is {steps!r}; expected {wanted}")
    if drafter is None and (settings or name or against or rate):
        raise ValueError("--set, --rate, --name and --against are for one drafter; name it in front of the text: simspec train eagle TEXT")
    if threads:
        torch.set_num_threads(threads)
    if not 0 <= blend <= 1:
        raise ValueError(f"--blend is {blend}; expected a share, from 0 to 1")
    lab = Lab(files, tuple(map(str, heldout or ())), distil_tokens=distil_tokens, blend=blend, device=device, seed=seed)
    lab = small(lab) if toy else timed(lab, minutes, minutes / 10, rows)
    work = work or out.with_name(out.name + "-work")
    with _progress() as tell:
        if drafter is None:
            lab = lab if soft is None and not patience else varied(lab, soft, patience)
            build(stepped(lab, *map(int, counts)) if counts else lab, out, work, tell)
            card = json.loads((out / "card.json").read_text())
        else:
            plan = Plan(*map(int, counts), minutes=0 if counts else minutes, rows=rows, length=192, seed=seed, patience=patience)
            if toy:
                plan = replace(plan, steps=plan.steps or 4, rows=2, length=16)
            more = read_settings(settings or ())
            asked = searched(lab, more, name) if drafter == "self_skip" else lesson(drafter, plan, soft, more, name or "", rate)
            card = single(lab, asked, out, work, tell, against)
    if as_json:
        print(json.dumps(card))
    elif drafter is None:
        print(f"wrote {out}: held-out loss {card['heldout_loss_nats']}, agreement {card['agreement_on_target_text']}")
    else:
        print("\n".join([f"wrote {out / (name or drafter)}", *lines(card)]))


def record(
    prompts: Annotated[list[Path], typer.Argument(help='JSON lines: {"id", "task", "text" or "turns", "source"?}.')],
    out: Annotated[Path, typer.Option(help="The recording, .parquet.")],
    drafter: DrafterName = "model",
    rule: RuleName = "greedy",
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[int, typer.Option("--depth", "-k", help="Draft depth K at every position.")] = 16,
    budget: Annotated[int, typer.Option(help="New tokens a prompt.")] = 96,
    per_task: Annotated[int, typer.Option(help="Prompts of every task.")] = 20,
    longest: Annotated[int, typer.Option(help="Longest prompt taken, in tokens.")] = 400,
    tree: Annotated[str | None, typer.Option(help="Dynamic trees too, WIDTHxLEVELS such as 4x6: for policies dynamic_tree:NODES.")] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    bundle: Bundle = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
):
    """Record what a drafter proposes from every position of the target's text; killed, it continues at its last shard.

    Example: simspec record prompts.jsonl --drafter early_exit --rule coupled --out traces/mine.parquet
    """
    from real.draft import growing
    from real.features import offered
    from real.jobs import record_to
    from real.prompts import draw, read_prompts
    from real.record import Settings
    from simspec.output import check_output

    if out.suffix != ".parquet":
        raise ValueError(f"{out} is no name for a recording, expected one that ends in .parquet; its card gets .json")
    for path in (out, out.with_suffix(".json")):
        check_output(path, *prompts)
    made_by = _rule(rule, temperature, seed, top_k, top_p)
    grown = _grown(tree)
    Settings(k, budget, made_by, (), (), grown)  # refused before the models are read
    if per_task < 1:
        raise ValueError(f"{per_task} prompts of every task asked for, expected at least 1")
    pair = _pair(bundle, drafter, device, dtype, target, weights)
    chosen = draw([p for path in prompts for p in read_prompts(path, pair.tokenizer, longest)], per_task, seed)
    if grown:
        growing(pair.drafter, grown[1])
    settings = Settings(k, budget, made_by, pair.end_tokens, () if made_by.sampled else offered(pair.drafter), grown)
    with _progress() as tell:
        made = record_to(out, pair, chosen, settings, tell)
    print(json.dumps(made) if as_json else f"wrote {out}: {made['texts']} texts, {made['rows']} rows, card {out.with_suffix('.json')}")


def measure(
    out: Annotated[Path, typer.Option(help="The cost model, .json; a table where several batch sizes or contexts are given.")],
    drafter: DrafterName = "model",
    rule: RuleName = "greedy",
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[int, typer.Option("--depth", "-k", help="Longest draft to price.")] = 16,
    batch: Annotated[list[int] | None, typer.Option(help="Texts decoded together, repeatable; default 1.")] = None,
    context: Annotated[list[int] | None, typer.Option(help="Tokens before the round, repeatable; default 128.")] = None,
    repeats: Annotated[int, typer.Option(help="Runs at every length; medians are kept.")] = 4,
    rows: Annotated[int, typer.Option(help="Price trees too, of up to so many submitted tokens; 0: chains alone.")] = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    bundle: Bundle = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
):
    """Measure what drafting and verifying cost on this machine, as a cost model for `simspec sweep --cost`.

    One text is timed in the decode loop itself; a larger batch adds what bare batched passes take longer. A size that does not fit
    the card is left out. Example: simspec measure --drafter early_exit --batch 1 --batch 8 --context 128 --context 512 --out costs.json
    """
    from real.measure import measure_table
    from simspec.output import check_output

    check_output(out)
    if not 1 <= k <= 255 or repeats < 1:
        raise ValueError(f"depth is {k} and repeats {repeats}; expected 1 <= depth <= 255 and at least one repeat")
    made_by = _rule(rule, temperature, seed, top_k, top_p)
    pair = _pair(bundle, drafter, device, dtype, target, weights)
    sizes = batch or [1], context or [128]
    with _progress() as tell:
        said = partial(tell, f"measuring {out.stem}")
        table = measure_table(pair.target, pair.drafter, made_by, k, *sizes, repeats=repeats, seed=seed, progress=said, rows=rows)
    made = table.simplest()
    made.to_json(out)
    lines = *table.describe(), f"wrote {out}, measured on {table.device}"
    print(json.dumps(made.to_dict()) if as_json else "\n".join(lines))


def run(
    trace: Annotated[str, typer.Argument(help="A recording's file or bundled name; its prompts, rule and seed are run again.")],
    policy: Annotated[str, typer.Option(help="name[:arg,...], as in `simspec sweep`, trees too; or beam:width,k=levels.")] = "beta_ts",
    cost: Annotated[Path | None, typer.Option(help="Cost model's JSON; default: measured now.")] = None,
    prompts: Annotated[int, typer.Option(help="Only so many of its prompts, spread over the tasks; 0 for all.")] = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    bundle: Bundle = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    text: Annotated[bool, typer.Option(help="Print the texts too.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the texts and rounds to this .jsonl, for `simspec audit`.")] = None,
    as_json: Json = False,
):
    """Run a policy for real on a recording's prompts and compare every round with the replay.

    Exits with code 1 if they differ. Example: simspec run tiny-model-greedy --policy fixed:3 --prompts 20
    """
    from real.emitted import header_of, save_run, texts_of
    from real.jobs import run_on, spread, submitted
    from real.measure import measure as time
    from real.pair import check_pair, rule_of
    from real.tree import beam
    from simspec import CostModel, load_trace, policies
    from simspec.bundle import locate
    from simspec.output import check_output
    from simspec.tree_policy import TreePolicy, check_trace

    (path,) = locate([trace]).values()
    if save is not None:
        check_output(save, path, cost or "")
    recorded = load_trace(path)
    if prompts:
        recorded = recorded.select(spread(recorded.sequences, prompts))
    meant = beam(policy, recorded.K) if policy.startswith("beam") else policies.parse(policy)
    recorded.features(getattr(meant, "reads", ()))  # a slip is told before models are loaded
    if isinstance(meant, TreePolicy):
        check_trace(recorded, meant)
    elif meant is policies.tree_oracle:
        raise ValueError("tree_oracle is only replayed (simspec sweep); run a tree that does not know the text, such as optimal_tree:16")
    price = None if cost is None else CostModel.from_json(cost)
    rule_of(recorded)
    pair = _pair(bundle, recorded.meta.drafter, device, dtype, target, weights)
    check_pair(recorded, pair, trace)
    with _progress() as tell:
        if price is None:
            said = partial(tell, "measuring")
            rows, rule = submitted(meant, recorded.K), rule_of(recorded)
            price = time(pair.target, pair.drafter, rule, recorded.K, repeats=2, progress=said, rows=rows)
        found = run_on(recorded, pair, meant, price, seed, tell)
    if save is not None:
        save_run(save, header_of(rule_of(recorded), pair, found.policy, recorded.meta.end_tokens), texts_of(recorded, found.results))
    if as_json:
        print(json.dumps(found.summary()))
    else:
        if text:
            for name, token in zip(recorded.meta.ids, found.texts):
                print(f"--- {name}\n{pair.tokenizer.decode(token.tolist())}")
        compared = found.comparison
        print(
            f"{found.policy}: {compared.rounds} rounds compared, {len(compared.exceptions)} exceptions, {len(compared.failures)} failures; "
            f"speedup {found.measured:.3f} measured, {found.simulated:.3f} simulated"
        )
    if not found.comparison.equal:
        raise typer.Exit(1)


def audit(
    run: Annotated[str, typer.Argument(help="What `simspec run --save` wrote, .jsonl; or a recording's file or bundled name.")],
    against: Annotated[str | None, typer.Option(help="A recording of the same prompts: tells target flips from draft flips.")] = None,
    bundle: Bundle = None,
    target: TargetPath = None,
    device: Device = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32, float64 or bfloat16; default: the run's own.")] = None,
    weights: Weights = None,
    risk: Annotated[float, typer.Option(help="Chance of a false alarm that the tests of sampled text may have.")] = 1e-4,
    as_json: Json = False,
):
    """Force an emitted run through the target and report which of its tokens the target would not have written.

    Greedy and coupled texts: how far each token is from the target's pick, in nats and units in the last place; what rounding explains is
    excused. Sampled texts: tokens of probability 0, and tests of the law, with both error rates; whether a text leans to its drafter is
    tested where that lies in the bundle. Exits with code 1 where something is wrong.

    Example: simspec run tiny-model-greedy --prompts 20 --save run.jsonl; simspec audit run.jsonl --against tiny-model-greedy
    """
    from real.audit import audit as judge
    from real.drafters import BUILTIN
    from real.emitted import emitted_of, load_run
    from real.finding import show
    from real.pair import TINY
    from simspec import load_trace
    from simspec.bundle import locate

    def recording(name: str):
        (path,) = locate([name]).values()
        return load_trace(path)

    emitted = load_run(Path(run)) if run.endswith(".jsonl") else emitted_of(recording(run))
    reference = None if against is None else recording(against)
    name = emitted.header.drafter
    leans = emitted.header.rule == "rejection" and name in BUILTIN and (weights or (bundle or TINY) / name).is_dir()
    pair = _pair(bundle, name if leans else "prompt_lookup", device, dtype or emitted.header.dtype, target, weights if leans else None)
    wrote = emitted.header.target
    if not 0 < risk < 1:
        raise ValueError(f"--risk is {risk}; expected a chance in (0, 1) such as 1e-4")
    if wrote and wrote.split("/")[-1] != pair.name.split("/")[-1]:
        raise ValueError(f"{run} was made with target {wrote}, this is {pair.name}; name that one by --bundle or --target")
    with _progress() as tell:
        found = judge(pair.target, emitted, reference, pair.drafter if leans else None, risk, partial(tell, "auditing"))
    if as_json:
        print(json.dumps(found.summary()))
    else:
        show(run, emitted.header, found, pair.tokenizer)
    if not found.clean:
        raise typer.Exit(1)
