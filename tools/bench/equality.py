"""Real runs compared round by round with their replays, and their tokens audited, as one JSON:
python tools/bench/equality.py RECORDING ... --models FOLDER --out FILE.json

Each recording is run on `--prompts` of its prompts with every `--policy`. What a run emitted is
audited against the target's own predictions. Under the rejection rule rounds are tested as
distributions, with a false alarm in a thousand runs. Killed, it goes on behind the last recording
and policy in FILE.json. Exits with 1 where a run differs from its replay by more than near-ties, or
a token is not the target's.

| key | meaning |
| --- | --- |
| runs | one a recording and policy: rounds compared, exceptions (near-ties), failures, audit |
| p_values | under the rejection rule, whose failures are alarms of these tests |
| rounds, exceptions, failures, tokens, flips | sums; flips: audited tokens not the target's pick |
"""

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from real.files import replace_json
from real.jobs.audit import audit_run
from real.jobs.run import RunSettings, SampledOutcome, run_recording
from real.model.stored_weights import sha256
from real.model_settings import ModelSettings

SUMS = ("rounds", "exceptions", "failures", "tokens", "flips")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("recording", nargs="+")
    parser.add_argument("--models", type=Path, help="default: the embedded models")
    parser.add_argument("--policy", action="append", help="repeatable; default fixed:3, cost_ts")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def versions() -> dict[str, str]:
    return {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def compared(name: str, policy: str, models: ModelSettings, prompts: int, folder: Path) -> dict:
    cost = Path(name).with_suffix(".cost.json")
    settings = RunSettings(policy, cost, prompts, save=folder / "run.jsonl")
    outcome, _, _ = run_recording(name, models, settings)
    audited, _, _ = audit_run(str(settings.save), models)
    if isinstance(outcome, SampledOutcome):
        tests = outcome.tests
        rounds = {"rounds": tests.rounds, "exceptions": 0, "failures": len(tests.alarms)}
        rounds["p_values"] = dict(tests.p_values)
    else:
        found = outcome.comparison
        margins = [flip.margin for flip in found.exceptions]
        rounds = {"rounds": found.rounds, "exceptions": len(margins), "margins": margins}
        rounds["failures"] = len(found.failures)
    return {
        "recording": name,
        "sha256": sha256(Path(name)),
        "asked": policy,
        "policy": outcome.policy,
        **rounds,
        "tokens": audited.tokens,
        "flips": len(audited.divergences),
        "alarms": list(audited.alarms),
        "speedup_simulated": outcome.simulated,
        "speedup_measured": outcome.measured,
        "device": outcome.device,
    }


def sums(runs: list[dict]) -> dict[str, int]:
    return {key: sum(run[key] for run in runs) for key in SUMS}


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    models = ModelSettings(options.models, dtype=options.dtype, engine=options.engine)
    settings = {key: getattr(options, key) for key in ("prompts", "threads", "dtype", "engine")}
    report: dict = {"settings": settings, "versions": versions(), "runs": []}
    if options.out.exists():
        before = json.loads(options.out.read_text(encoding="utf-8"))
        if before["settings"] != settings:
            sys.exit(f"{options.out} holds runs of other settings; name another file by --out")
        # runs of a recording that has changed since are made again
        report["runs"] = [
            run
            for run in before["runs"]
            if run.get("sha256") in (None, sha256(Path(run["recording"])))
        ]
    done = {(run["recording"], run["asked"]) for run in report["runs"]}
    for name in options.recording:
        for policy in options.policy or ("fixed:3", "cost_ts"):
            if (name, policy) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = compared(name, policy, models, options.prompts, Path(folder))
            report["runs"].append(found)
            replace_json(options.out, report | sums(report["runs"]))
            print(json.dumps(found), flush=True)
    print(sums(report["runs"]))
    failed = any(run["failures"] or run["alarms"] for run in report["runs"])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
