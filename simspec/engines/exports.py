"""Settings of serving engines, written from replays with their provenance.

Sources: vllm/config/speculative.py and v1/spec_decode/dynamic/utils.py of vLLM, srt/server_args.py
of SGLang, common/arg.cpp of llama.cpp, generation/configuration_utils.py of transformers,
sdk/speculative.py of AIConfigurator, sim/config.go of BLIS.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

import simspec
from simspec.cost.model import CostModel
from simspec.cost.provenance import CostOrigin
from simspec.cost.table import cost_file
from simspec.engines import EXPORT_FORMATS, Export
from simspec.engines.choice import (
    Choice,
    Evidence,
    Schedule,
    acceptance_by_depth,
    accepted_drafts,
    choose,
    gather,
)
from simspec.engines.ngram import RULES, ngram_rule
from simspec.numerics.stats import Estimate
from simspec.output.files import check_output, parse_json, replacing, reraised, write_json
from simspec.policies import parse
from simspec.policy.policy import Policy
from simspec.replay.evaluation import covers, unsettled
from simspec.trace.recordings import cost_beside, locate

SIDECAR = ".provenance.json"
NOT_COVERED = (
    "time outside rounds: prefill, scheduling, sampling settings of the server, network",
    "sequences of a batch that draft unalike: each is replayed alone, at the whole batch's costs",
    "lengths chosen on other prompts: the gain is counted on the prompts that chose them",
    "other prompts, temperatures, targets and drafters than those recorded",
)
LENGTH, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
NGRAM = ("prompt_lookup_min", "prompt_lookup_max")


GONE = {"medusa": "0.33", "mlp_speculator": "0.33"}
"""Methods that vLLM dropped, and the first version without them."""
V1_METHODS = ("suffix", "custom_class", *GONE)
"""Methods that vLLM serves on its V1 model runner, also where it serves others on V2."""


class Mechanisms(NamedTuple):
    """An engine's names of drafters: of those of recordings, then by what they load: a draft model,
    perhaps one (weights may be part of the target), or none."""

    engine: str
    names: Mapping[str, str]
    load: tuple[str, ...] = ()
    may_load: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


VLLM = Mechanisms(
    "vLLM",
    {"model": "draft_model", "eagle": "eagle", "medusa": "medusa", "prompt_lookup": "ngram"},
    ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "custom_class"),
    ("mtp", "dspark"), ("ngram", "ngram_gpu", "suffix"),
)  # fmt: skip
SGLANG = Mechanisms(
    "SGLang", {"eagle": "EAGLE", "model": "STANDALONE", "prompt_lookup": "NGRAM"},
    ("EAGLE", "EAGLE3", "STANDALONE", "DFLASH"), ("NEXTN", "FROZEN_KV_MTP", "DSPARK"), ("NGRAM",),
)  # fmt: skip
LLAMACPP = Mechanisms(
    "llama.cpp", {"model": "draft-simple", "prompt_lookup": "ngram-simple"},
    ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"), (),
    ("draft-mtp", "ngram-simple"),
)  # fmt: skip
TRANSFORMERS = Mechanisms(
    "transformers", {"model": "assistant", "prompt_lookup": "prompt_lookup"},
    own=("assistant", "prompt_lookup"),
)  # fmt: skip

BLIS = Mechanisms(
    "BLIS", {"model": "draft", "eagle": "eagle", "medusa": "medusa", "prompt_lookup": "ngram"},
    own=("mtp", "eagle", "medusa", "ngram", "draft"),
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """Recordings, what was chosen from them, and the settings of `simspec export`."""

    evidence: Evidence
    choice: Choice
    settings: Export

    @property
    def schedule(self) -> Schedule:
        """The draft lengths; ValueError where none drafts, or the policy adapts its own."""
        schedule = self.choice.schedule
        if schedule is None:
            raise ValueError(
                f"policy {self.choice.policies[0]!r} has no fixed draft length, and this format "
                "holds nothing else: give --policy fixed:K, or none"
            )
        if schedule.longest == 0:
            raise ValueError(
                "plain decoding is the fastest at these costs, so there is nothing to export: "
                "give --policy fixed:K to export a length all the same"
            )
        return schedule

    @property
    def length(self) -> int:
        """The one draft length; ValueError where batch sizes differ, or none drafts."""
        schedule = self.schedule
        if not schedule.single:
            raise ValueError(
                f"batch sizes {list(schedule.batch)} draft {list(schedule.length)} tokens, but "
                "this format holds one length: give one --batch-sizes, or --policy fixed:K"
            )
        return schedule.longest

    @property
    def ngram(self) -> tuple[int, int]:
        """(shortest, longest) suffix that a prompt lookup matches, by the recording's rule."""
        engine, _, rule = self.evidence.drafter.partition(" ")
        found = ngram_rule(rule) if engine == "ngram" else RULES["prompt_lookup"]
        return found.least, found.most

    def drafter(self, known: Mechanisms) -> tuple[str, str | None]:
        """(the engine's name of the drafter, its model); ValueError for one that it does not have.

        A model has to be named where the mechanism loads one: recordings do not name its files.
        """
        drafter, method = self.evidence.drafter, self.settings.method
        if drafter.startswith("ngram "):  # along a text, by the rule that follows
            drafter = "prompt_lookup"
        if method is None and drafter not in known.names:
            raise ValueError(
                f"{known.engine} has no counterpart of drafter {drafter!r}, expected one of "
                f"{', '.join(known.names)}: name its mechanism with --method"
            )
        method = known.names[drafter] if method is None else method
        listed = (*known.load, *known.may_load, *known.own)
        if method not in listed:
            raise ValueError(f"--method is {method!r}, expected one of {', '.join(listed)}")
        model = self.settings.draft_model or None
        if method in known.load and model is None:
            raise ValueError(
                f"method {method!r} loads a draft model, and a recording does not name its files: "
                "give --draft-model"
            )
        return method, None if method in known.own else model


def _threshold(request: Request, inclusive: bool, engine: str) -> tuple[float, int]:
    """(threshold, longest draft) of a confidence policy; threshold 0 of a fixed length.

    Errors of `own_threshold`.
    """
    if request.choice.schedule is not None:
        return 0.0, request.length
    threshold, policy = own_threshold(request.choice.policies[0], inclusive, engine)
    return threshold, policy.longest(request.evidence.K)


def own_threshold(name: str, inclusive: bool, engine: str) -> tuple[float, Policy]:
    """(an engine's setting that drafts as this confidence policy does, the policy).

    inclusive: whether the engine submits the token below the threshold. ValueError for the other
    kind, since its drafts differ by a token, and for any other policy.
    """
    policy = parse(name)
    if not isinstance(policy, Policy) or not name.startswith("confidence:"):
        raise ValueError(
            f"{engine} has no setting that drafts as policy {name!r} does: give fixed:K or "
            f"confidence:P,inclusive={str(inclusive).lower()}"
        )
    threshold, submits = policy.params
    if bool(submits) != inclusive:
        does = "submits" if inclusive else "drops"
        raise ValueError(
            f"policy {name!r} does not draft as {engine} does, which {does} the token below the "
            f"threshold: give confidence:{threshold:g},inclusive={str(inclusive).lower()}"
        )
    return threshold, policy


def _flags(flags: Mapping[str, object]) -> str:
    """'--name value ...' as a shell reads it."""
    return " ".join(f"{name} {shlex.quote(str(value))}" for name, value in flags.items()) + "\n"


def _vllm_drafter(request: Request) -> dict[str, Any]:
    method, model = request.drafter(VLLM)
    config: dict[str, Any] = {"method": method}
    if model is not None:
        config["model"] = model
    if method in ("ngram", "ngram_gpu"):
        config |= dict(zip(NGRAM, request.ngram))
    return config


def vllm(request: Request) -> str:
    """The JSON of `--speculative-config`, by batch size where the lengths differ."""
    schedule, config = request.schedule, _vllm_drafter(request)
    config[LENGTH] = request.length if config["method"] == "suffix" else schedule.longest
    if not schedule.single:
        config[BY_BATCH] = [list(step) for step in schedule.steps]
    return json.dumps(config) + "\n"


def vllm_synthetic(request: Request) -> str:
    """The JSON of `--speculative-config` with the acceptance measured at that length."""
    length = request.length
    rates = acceptance_by_depth(request.evidence.traces.values(), length)
    config = _vllm_drafter(request) | {
        LENGTH: length,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [round(rate, 6) for rate in rates],
    }
    return json.dumps(config) + "\n"


def sglang(request: Request) -> str:
    """The flags of SGLang, on one line; SGLang counts the root of a chain as a drafted token."""
    (algorithm, model), steps = request.drafter(SGLANG), request.length
    flags: dict[str, object] = {"--speculative-algorithm": algorithm}
    if model is not None:
        flags["--speculative-draft-model-path"] = model
    if algorithm not in ("NGRAM", "DFLASH", "DSPARK"):  # these draft a block in one step
        flags |= {"--speculative-num-steps": steps, "--speculative-eagle-topk": 1}
    flags["--speculative-num-draft-tokens"] = steps + 1
    if algorithm == "NGRAM":  # SGLang's default is a tree 10 wide
        flags["--speculative-ngram-max-bfs-breadth"] = 1
    return _flags(flags)


def llamacpp(request: Request) -> str:
    """The flags of llama.cpp, on one line.

    p_min drops the token below it, so the policy is confidence:P,inclusive=false. All lengths are
    written, since the defaults changed between versions.
    """
    p_min, length = _threshold(request, inclusive=False, engine="llama.cpp")
    kind, model = request.drafter(LLAMACPP)
    flags: dict[str, object] = {"--spec-type": kind}
    if kind == "ngram-simple":
        if p_min:
            raise ValueError(f"{kind} has no threshold: give --policy fixed:K, or none")
        flags["--spec-ngram-simple-size-n"] = request.ngram[1]
        return _flags(flags | {"--spec-ngram-simple-size-m": length})
    if model is not None:
        flags["--model-draft"] = model
    lengths = {"--spec-draft-n-max": length, "--spec-draft-n-min": 0, "--spec-draft-p-min": p_min}
    return _flags(flags | lengths)


def transformers(request: Request) -> str:
    """The JSON of generation_config.json: of the assistant, or of the target for prompt lookup.

    | policy | key |
    | --- | --- |
    | fixed:K | num_assistant_tokens, or prompt_lookup_num_tokens |
    | confidence:P | assistant_confidence_threshold: the token below it is submitted |
    | hf_heuristic:N | num_assistant_tokens_schedule |

    The threshold is always written: transformers' default is 0.4.
    """
    method, _ = request.drafter(TRANSFORMERS)
    config: dict[str, Any]
    if method == "prompt_lookup":
        config = {"prompt_lookup_num_tokens": request.length}
        config["max_matching_ngram_size"] = request.ngram[1]
    else:
        schedule, threshold, name = "constant", 0.0, request.choice.policies[0]
        if name.startswith("hf_heuristic:"):
            policy = parse(name)
            assert isinstance(policy, Policy)
            schedule = "heuristic" if policy.scope == "stream" else "heuristic_transient"
            length = int(policy.state0[0])
        else:
            threshold, length = _threshold(request, inclusive=True, engine="transformers")
        config = {
            "num_assistant_tokens": length,
            "num_assistant_tokens_schedule": schedule,
            "assistant_confidence_threshold": threshold,
        }
    return json.dumps(config, indent=1) + "\n"


def _accepted(request: Request) -> dict[int, Estimate]:
    """{K: accepted drafts a step}: of the length that --policy states, else of each up to K."""
    lengths = range(1, request.evidence.K + 1) if request.choice.chosen else [request.length]
    return {k: accepted_drafts(request.evidence.traces.values(), k) for k in lengths}


def aiconfigurator(request: Request) -> str:
    """The flags of `aiconfigurator cli`, a line for each draft length: accepted drafts a step."""
    each = _accepted(request).items()
    return "".join(
        _flags({"--nextn": k, "--nextn-accepted": round(found.value, 6)}) for k, found in each
    )


def blis(request: Request) -> str:
    """The flags of `blis run`, a line for each draft length: 1 + rate K is the accepted length."""
    method, _ = request.drafter(BLIS)
    return "".join(
        _flags({
            "--num-speculative-tokens": k, "--speculative-acceptance-rate": round(a.value / k, 6),
            "--speculative-method": method,
        })
        for k, a in _accepted(request).items()
    )  # fmt: skip


class ExportFormat(NamedTuple):
    """A document of an engine: how it is written, whose own costs should price it, what it does
    not say, and the shortest draft to choose from."""

    write: Callable[[Request], str]
    engine: str
    not_covered: tuple[str, ...]
    shortest: int = 0


EXPORTS = {
    "vllm": ExportFormat(vllm, "vllm", (
        "batches larger than the last range: vLLM uses the last range's length",
        "data parallel sizes above 1, where vLLM ignores the batch sizes",
        "piecewise CUDA graphs: a schedule by batch size forces them under the V1 model runner",
        "devices of compute capability 10.x, whose largest graph holds 1024 rows: --captured",
        "what a length of 0 costs in vLLM (vllm#49548 reports a collapse)",
    )),
    "vllm-synthetic": ExportFormat(vllm_synthetic, "", (
        "dependence between rounds: the engine draws each round's acceptance alone",
    ), shortest=1),
    "sglang": ExportFormat(sglang, "sglang", (
        "NGRAM matches the text of all requests, where a recording's lookup reads its own alone",
    )),
    "llamacpp": ExportFormat(llamacpp, "llamacpp", (
        "several slots: llama.cpp drafts for each slot by itself",
        "p_min: llama.cpp compares a softmax over its ten best candidates, never below 0.1, where "
        "a recording holds the probability over all tokens; it drafts longer",
        "ngram-simple matches suffixes of one length, where a recording's lookup tries fewer too",
    )),
    "transformers": ExportFormat(transformers, "transformers", (
        "the threshold's own adaptation: with scikit-learn transformers moves it as it decodes",
    )),
    "aiconfigurator": ExportFormat(aiconfigurator, "", (
        "the drafter's costs: AIConfigurator prices layers of multi-token prediction",
    ), shortest=1),
    "blis": ExportFormat(blis, "", (
        "the drafter's costs: BLIS prices the wider verification alone",
    ), shortest=1),
}  # fmt: skip


def write_export(settings: Export) -> tuple[dict[str, Any], list[str]]:
    """(provenance, notes) of the document in `out`, with the provenance next to it.

    ValueError, one line, for what cannot be exported; then nothing is written.
    """
    if settings.format not in EXPORTS:
        raise ValueError(
            f"format {settings.format!r} is unknown, expected one of {', '.join(EXPORT_FORMATS)}"
        )
    for name in ("engine", "target"):
        if getattr(settings, name) is not None:
            raise ValueError(f"format {settings.format} does not read --{name}: leave it out")
    paths = locate(settings.recordings)
    files = list(paths.values())
    if len({file.resolve() for file in files}) < len(files):
        raise ValueError("a recording is given twice, expected each once: its prompts count once")
    beside = [cost for file in files if (cost := cost_beside(file)) is not None]
    for path in (settings.out, Path(f"{settings.out}{SIDECAR}")):
        check_output(path, *files, *beside, settings.cost or "")
    sizes = settings.batch_sizes
    batch = None if sizes is None else [int(word) for word in sizes.split(",")]
    evidence, notes = gather(paths, settings.cost, batch, settings.context)
    shortest = EXPORTS[settings.format].shortest
    choice = choose(evidence, settings.policy, settings.captured, shortest=shortest)
    if not choice.chosen and choice.schedule is not None and not choice.schedule.single:
        notes.append(
            f"{settings.policy} is cut where batch (K + 1) exceeds {settings.captured} rows"
        )
    origin, own = write_choice(settings, evidence, choice, paths, _command(settings))
    return origin, notes + own


def write_choice(
    settings: Export, evidence: Evidence, choice: Choice, paths: Mapping[str, Path], command: str
) -> tuple[dict[str, Any], list[str]]:
    """(provenance, notes) of the document of this choice in `out`; as `write_export`."""
    form, out = EXPORTS[settings.format], settings.out
    costs = [cost for of_sizes in evidence.costs.values() for cost in of_sizes]
    request, of_vllm = Request(evidence, choice, settings), settings.format.startswith("vllm")
    own = vllm_notes(request.drafter(VLLM)[0], costs) if of_vllm else []
    text = form.write(request)
    origin = {"format": settings.format, "command": command}
    origin |= _provenance(text, settings, evidence, choice, paths)
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    write_json(Path(f"{out}{SIDECAR}"), origin)
    doubts = [f"not confirmed {why}" for why in dict.fromkeys(map(unsettled, costs)) if why]
    return origin, [*price_notes(costs, form.engine), *own, *doubts]


def _command(settings: Export) -> str:
    """The command line that writes the same again."""
    words = ["simspec", "export", settings.format, *settings.recordings]
    for field in fields(settings)[2:]:
        value = getattr(settings, field.name)
        if field.name != "as_json" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def version_numbers(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version: 0.32.0+cpu has (0, 32, 0); () where it has none."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def check_method(method: str, version: str) -> None:
    """ValueError for a method that this version of vLLM has not."""
    if method in GONE and version_numbers(version) >= version_numbers(GONE[method]):
        raise ValueError(
            f"vLLM {version} has no method {method!r}, which versions below {GONE[method]} take: "
            "use one of them, or another drafter"
        )


def vllm_notes(method: str, costs: Iterable[CostModel]) -> list[str]:
    """Notes on versions without this method, and on costs of another runner than serves it.

    ValueError where the costs are of a version without it.
    """
    notes, gone = [], GONE.get(method)
    for origin in (cost.origin for cost in costs if cost.origin):
        check_method(method, version := origin.versions.get("vllm", ""))
        old = method == "ngram" and () < version_numbers(version) < (0, 32)
        v1 = old or method in V1_METHODS or origin.device.startswith("cpu")
        notes += runner_notes([origin], "V1" if v1 else "V2", f"vLLM serves {method}")
    if gone is not None:
        notes.append(f"vLLM {gone} and later have no method {method!r}")
    return [*dict.fromkeys(notes)]


def runner_notes(origins: Iterable[CostOrigin], runner: str, what: str) -> list[str]:
    """A note where these costs are of another runner of vLLM's than `what` uses."""
    others = sorted({origin.runner for origin in origins} - {"", runner})
    return [
        f"priced on vLLM's {other} runner, and {what} on {runner}, whose passes cost otherwise: "
        "measure that one"
        for other in others
    ]


def price_notes(costs: Iterable[CostModel], engine: str) -> list[str]:
    """A note where these costs are not the engine's own; none where they are, or for engine ""."""
    priced = {cost.origin.engines.get("target", "") if cost.origin else "" for cost in costs}
    others = sorted(name for name in priced if name.split(" ")[0] != engine)
    if not engine or not others:
        return []
    named = ", ".join(name or "costs of no engine" for name in others)
    remedy = "measure its own (`simspec engine measure`), or confirm the setting on it"
    return [f"priced on {named}, not on {engine}, whose best draft length may differ: {remedy}"]


def _provenance(
    text: str, settings: Export, evidence: Evidence, choice: Choice, paths: Mapping[str, Path]
) -> dict[str, Any]:
    """Provenance as plain data for JSON; files by name and SHA-256, never by their folder.

    level and covers are of the speedups' intervals: over prompts, and over prices where all costs
    hold replicates. length_chosen: whether replay chose the lengths.
    """
    about = ("rule", "temperature", "device")
    recordings = [
        _file(paths[name])
        | {"K": trace.K}
        | {key: getattr(trace.meta, key) for key in about}
        | {"prompts": trace.sequences, "tokens": trace.rows}
        for name, trace in evidence.traces.items()
    ]
    sources: dict[str, CostModel] = {}
    for name, path in paths.items():
        source = settings.cost or str(cost_beside(path))
        sources.setdefault(source, evidence.costs[name][0])
    by_length = {}
    if settings.format in ("aiconfigurator", "blis"):
        found = _accepted(Request(evidence, choice, settings))
        by_length = {"accepted_drafts_by_length": {k: a.to_dict() for k, a in found.items()}}
    return {
        "simspec": simspec.__version__,
        "document_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "target": evidence.target,
        "drafter": evidence.drafter,
        "predicted": [
            {"batch": size, "policy": policy, "speedup": gain.to_dict()}
            for size, policy, gain in zip(evidence.batch, choice.policies, choice.gains)
        ],
        "level": choice.gains[0].level,
        "covers": covers(cost for costs in evidence.costs.values() for cost in costs),
        "length_chosen": choice.chosen,
        **by_length,
        "recordings": recordings,
        "costs": [_cost(source, model) for source, model in sources.items()],
        "not_covered": [*EXPORTS[settings.format].not_covered, *NOT_COVERED],
    }


def _cost(source: str, model: CostModel) -> dict[str, Any]:
    try:
        return {"ratio": float(source)}
    except ValueError:
        origin = model.origin
        runner = {"runner": origin.runner} if origin and origin.runner else {}
        held = {"device": model.device, "origin": origin and origin.to_dict()}
        return _file(cost_file(source)) | held | runner


def _file(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"name": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


Length = Annotated[int, Meta(ge=1, lt=1 << 31)]
Range = tuple[Length, Length, Annotated[int, Meta(ge=0, lt=1 << 31)]]


def read_vllm(text: str) -> dict[str, Any]:
    """A `--speculative-config` that drafts by a length, or by lengths by batch size.

    ValueError, one line, for no such object, and for ranges that vLLM clamps, sorts or fills up
    without a word.
    """
    with reraised(ValueError, "not JSON of a speculative_config"):
        parse_json(text)  # which refuses a key twice
        config = msgspec.json.decode(text, type=dict[str, Any])
    if config.get("rejection_sample_method") == "fly":
        raise ValueError("its rejection_sample_method fly is lossy: expected another")
    with reraised(ValueError, f"{LENGTH} is {config.get(LENGTH)!r:.60}"):
        longest = msgspec.convert(config.get(LENGTH), Length)
    if config.get(BY_BATCH) is not None:
        lengths_by_batch(config[BY_BATCH], longest, 0)
    return config


def lengths_by_batch(ranges: Any, longest: int, batch: int) -> list[int]:
    """[0, draft length of 1 request, .., of `batch` requests]; beyond the ranges as in the last.

    ranges: [[first batch size, last, length], ..] from 1 on, without gaps; ValueError for others.
    """
    expected = "expected [first batch size, last, length], .."
    with reraised(ValueError, f"{BY_BATCH} is {str(ranges)[:60]}, {expected}"):
        held = msgspec.convert(ranges, Annotated[list[Range], Meta(min_length=1)])
    lengths, end = [0], 0
    for i, (low, high, length) in enumerate(held):
        if low != end + 1 or high < low or length > longest:
            raise ValueError(
                f"{BY_BATCH}[{i}] is {[low, high, length]}, expected a range from {end + 1} on and "
                f"at most {longest} tokens: vLLM would clamp, sort or fill it up"
            )
        lengths += [length] * (min(high, batch) + 1 - len(lengths))
        end = high
    return lengths + [lengths[-1]] * (batch + 1 - len(lengths))
