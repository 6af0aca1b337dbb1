"""Invalid options of commands: one line on stderr, exit code 2, and nothing written."""

import json
import subprocess
import sys

import pytest
from inputs import HEADS, RECORD_COMMAND
from shell import refused


@pytest.mark.parametrize(
    "policy, words",
    [
        ("fixd:3", "'fixd'"),
        ("", "''"),
        ("fixed:17", "drafts up to 17"),
        ("fixed:-1", "k is -1"),
        ("fixed:x", "k is 'x'"),
        ("fixed", "missing 1 required"),
        ("fixed:1,2", "positional argument"),
        ("fixed:1e400", "k is inf"),
        ("fixed:" + "9" * 5000, "k is inf"),
        ("confidence:2", "threshold is 2"),
        ("confidence:nan", "threshold is nan"),
        ("confidence:0.5,K=17", "drafts up to 17"),
        ("confidence:0.5,K=256", "K is 256"),
        ("confidence:0.5,K=-1", "K is -1"),
        ("beta_ts:acceptence", "reading is 'acceptence'"),
        ("beta_ts:alpha0=0", "alpha0 is 0"),
        ("beta_ts:more=1", "unexpected keyword"),
        ("beta_ts:scope=prompt", "scope is 'prompt'"),
        ("oracle:3", "oracle"),
    ],
)
def test_invalid_policy_is_refused(input_folder, policy, words):
    refused(
        input_folder,
        "sweep",
        "t.parquet",
        "--policy",
        "fixed:1",
        "--policy",
        policy,
        "--out",
        "o.csv",
        words=words,
    )
    refused(input_folder, "run", "t.parquet", "--policy", policy, "--cost", "c.json", words=words)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--by", "token"], "--by is 'token', expected one of trace, task, prompt"),
        (["--replicates", 0], "--replicates is 0, expected int >= 1"),
        (["--replicates", 10**9], "--replicates is 1000000000"),
        (["--seed=-1"], "--seed is -1"),
        (["--seed", 1 << 64], "--seed is 18446744073709551616"),
        (["--level", "nan"], "--level is nan"),
        (["--k", 0], "--k is 0, expected int >= 1"),
        (["--report", "gain"], "--report is 'gain', expected one of gains, oracle"),
        (["--nodes", 8], "--nodes goes with --report trees, not with gains"),
        (["--report", "oracle", "--keep", "x"], "--keep goes with --report gains"),
        (["--report", "drafters"], "--policy does not go with --report drafters"),
        (["--report", "differences", "--against", "fastest"], "fastest"),
        (["--report", "trees", "--nodes", 64], "a budget of 64 nodes, expected 1 to 63"),
        (["--report", "batch", "-b", 0], "expected int >= 1"),
        (["--report", "batch", "-b", 10**9], "expected int <="),
        (["--report", "batch", "--ends", "wait"], "expected one of refill, shrink"),
        (["--report", "batch", "--context", 9, "--cost", 0.1], "no seconds for cached tokens"),
        (["--report", "batch", "--captured", "-1"], "--captured is -1"),
        (["--batch", 1, "--batch", 2], "--batch is given 2 times"),
        (["--batch", 4, "--cost", 0.1], "is a ratio, the same for every batch"),
        (["--policy", "fixed:1"], "share a name"),
        (["--cost=-1"], "cost ratio is -1"),
        (["--cost", "inf"], "cost ratio is inf"),
        (["--cost", "absent.json"], "absent.json: not a cost model"),
        (["--cost", "folder"], "folder: not a cost model"),
        (["--cost", "empty"], "empty: not a cost model"),
        (["--cost", "t.parquet"], "t.parquet: not a cost model"),
        (["--cost", "short.json", "--policy", "fixed:4"], "prices drafts up to 3"),
        (["--out", "nowhere/o.csv"], "no folder nowhere"),
        (["--plot", "nowhere/o.png"], "no folder nowhere"),
        (["--out", "o.csv", "--plot", "nowhere/o.png"], "no folder nowhere"),
        (["--out", "folder"], "folder is a folder"),
        (["--plot", "."], ". is a folder"),
        (["--out", "t.parquet"], "t.parquet would overwrite t.parquet"),
        (["--plot", "folder/../t.parquet"], "would overwrite t.parquet"),
        (["--out", "c.json", "--cost", "c.json"], "c.json would overwrite c.json"),
        (["--out", "o", "--plot", "o"], "o would overwrite o"),
        (["--out", "empty/o.csv"], "no folder empty"),
    ],
)
def test_invalid_sweep_options_are_refused(input_folder, options, words):
    refused(input_folder, "sweep", "t.parquet", "--policy", "fixed:1", *options, words=words)


@pytest.mark.parametrize(
    "words, why",
    [
        (("tune", "oracle"), "policy 'oracle' has nothing to tune"),
        (("tune", "fixed:2"), "gives every argument that is tuned"),
        (("tune", "nobody"), "no policy is named 'nobody'"),
        (("tune", "beta_ts:colour=1"), "colour"),
        (("tune", "fixed", "--trials", "0"), "--trials is 0, expected int >= 16"),
        (("tune", "fixed", "--level", "1"), "--level is 1.0"),
        (("report", "--level", "1"), "--level is 1.0"),
        (("report", "--paper", "nothing"), "there is no table 'nothing'"),
        (("report", "--out", "t.parquet"), "would overwrite t.parquet"),
        (("policies", "--group", "none"), "group 'none' is unknown"),
        (("score",), "score is `simspec sweep --report oracle` now"),
        (("sweep", "absent.parquet"), "no such file"),
        (("sweep", "tiny-modl-greedy"), "did you mean tiny-model-greedy?"),
        (("sweep", "--report", "differences"), "no policy is named"),
    ],
)
def test_invalid_settings_of_other_commands_are_refused(input_folder, words, why):
    rest = ["t.parquet"] if words[0] in ("tune", "report") and "--paper" not in words else []
    refused(input_folder, *words, *rest, words=why)


@pytest.mark.parametrize(
    "options, words",
    [
        (["-k", 0], "K is 0"),
        (["-k", -1], "K is -1"),
        (["-k", 256], "--depth is 256, expected at most 255"),
        (["--budget", 0], "budget 0"),
        (["--budget", -3], "budget -3"),
        (["--per-task", 0], "0 prompts per task"),
        (["--per-task", -1], "-1 prompts per task"),
        (["--longest", 0], "no prompt of 1 to 0 tokens"),
        (["--rule", "beam"], "rule 'beam' is unknown"),
        (["--temperature=-1"], "temperature is -1"),
        (["--temperature=nan"], "temperature is nan"),
        (["--temperature=-1", "--rule", "coupled"], "temperature is -1"),
        (["--temperature=0", "--rule", "coupled"], "temperature 0.0"),
        (["--seed=-1"], "seed is -1"),
        (["--seed", 1 << 64], "seed is 18446744073709551616"),
        (["--dtype", "int8"], "dtype 'int8' is unknown"),
        (["--device", "gpu"], "device 'gpu' is unknown"),
        (["--device", "meta"], "device 'meta' is unknown"),
        (["--device", "cuda:x"], "device 'cuda:x' is unknown"),
        (["--device", "cuda:99"], "device 'cuda:99' asked for"),
        (["--drafter", "eagle9"], "drafter 'eagle9' is unknown"),
        (["--models", "nowhere"], "nowhere/target holds no config.json"),
        (["--models", "empty"], "empty/target holds no config.json"),
        (["--target", "no/such/folder"], "no/such/folder holds no config.json"),
        (["--weights", "nowhere"], "nowhere holds no config.json"),
        (["--drafter", "eagel"], "drafter 'eagel' is unknown: did you mean eagle?"),
        (["--drafter", "prompt-lookup"], "did you mean prompt_lookup?"),
        (
            ["--drafter", "transformer"],
            "'transformer' is unknown: expected one of eagle, early_exit",
        ),
        (["--weights", "nowhere", "--drafter", "early_exit"], "nowhere holds no drafter 'exit'"),
        *(
            (["--weights", "nowhere", "--drafter", name], f"nowhere holds no drafter '{name}'")
            for name in (*HEADS, "self_skip")
        ),
        *(
            (["--weights", "empty", "--drafter", name], f"empty holds no drafter '{name}'")
            for name in (*HEADS, "self_skip")
        ),
        (["--out", "nowhere/x.parquet"], "no folder nowhere"),
        (["--out", "x.json"], "expected one that ends in .parquet"),
        (["--out", "p.jsonl"], "expected one that ends in .parquet"),
        (["--out", "folder/../t.parquet", "t.parquet"], "would overwrite t.parquet"),
        (["--out", "c.parquet", "c.json"], "c.json would overwrite c.json"),
    ],
)
def test_invalid_record_options_are_refused(input_folder, options, words):
    refused(input_folder, *RECORD_COMMAND, *options, words=words)


@pytest.mark.parametrize(
    "options, words",
    [
        (["-k", 0], "depth is 0"),
        (["-k", -1], "depth is -1"),
        (["-k", 256], "--depth is 256, expected at most 255"),
        (["--repeats", 0], "repeats 0"),
        (["--context", 0], "expected sizes of at least 1"),
        (["--context=-1"], "expected sizes of at least 1"),
        (["--rule", "beam"], "rule 'beam' is unknown"),
        (["--temperature=-1"], "temperature is -1"),
        (["--seed=-1"], "seed is -1"),
        (["--drafter", "eagle9"], "drafter 'eagle9' is unknown"),
        (["--models", "nowhere"], "nowhere/target holds no config.json"),
        (["--out", "nowhere/c.json"], "no folder nowhere"),
        (["--out", "."], ". is a folder"),
    ],
)
def test_invalid_measure_options_are_refused(input_folder, options, words):
    refused(
        input_folder, "measure", "--out", "x.json", "-k", 1, "--repeats", 1, *options, words=words
    )


@pytest.mark.parametrize(
    "options, words",
    [
        (["--prompts", -1], "--prompts is -1, expected"),
        (["--seed=-1"], "seed is -1"),
        (["--dtype", "half"], "dtype 'half' is unknown"),
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--models", "nowhere"], "nowhere/target holds no config.json"),
        (["--weights", "nowhere"], "nowhere holds no config.json"),
        (["--cost", "p.jsonl"], "p.jsonl: not a cost model"),
        (["--cost", "short.json"], "prices drafts up to 3"),
    ],
)
def test_invalid_run_options_are_refused(input_folder, options, words):
    refused(
        input_folder,
        "run",
        "t.parquet",
        "--policy",
        "fixed:4",
        "--cost",
        "c.json",
        *options,
        words=words,
    )


MISSING = (
    ("run", "no.parquet"),
    ("run", "no.parquet", "--teacher-force"),
    ("run", "no.parquet", "--compare"),
    ("measure", "--for", "no.parquet"),
    ("audit", "no.parquet"),
    ("audit", "run.jsonl", "--against", "no.parquet"),
)


def test_missing_recording_is_refused_before_torch_is_imported(tmp_path):
    """All in one process, where torch cannot be imported."""
    code = (
        "import json, sys; from simspec.cli import _load_extras, main; _load_extras(); "
        "sys.modules['torch'] = None\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: print(end.code)"
    )
    call = [sys.executable, "-c", code, json.dumps(MISSING)]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"] * len(MISSING)
    assert done.stderr == len(MISSING) * "simspec: no.parquet: no such file\n"
