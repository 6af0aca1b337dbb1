"""Settings of hypothesis, measured figures in the summary, and a folder of inputs.

Hypothesis has no deadlines (the first example compiles) and fixed examples. `make mutants` asks
whether a test fails, not for the smallest example.
"""

import gc
import json
import os
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.main
from hypothesis import Phase, settings

EXAMPLES = 60  # of a test that states no number
# Examples are derived from the tests, so that a commit has one result;
# `--hypothesis-profile=explore` draws new ones.
settings.register_profile("steady", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.register_profile("explore", deadline=None, max_examples=500)
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile(
    "exam", deadline=None, derandomize=True, max_examples=EXAMPLES, phases=WITHOUT_SHRINKING
)
settings.load_profile("steady")
# Collecting the tests makes a million objects that stay: no look for garbage while it lasts.
gc.disable()
# Tests kill processes, not machines: syncing their files would be a tenth of the suite's time.
os.fsync = lambda file: None
# A folder's tests use helpers of another's, whichever of them is collected.
sys.path += [str(folder) for folder in sorted(Path(__file__).parent.iterdir()) if folder.is_dir()]
# Two workers on two cores, so one thread for each and for the commands that it starts; thread
# counts do not change a float64 result.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if find_spec("torch"):
    import torch

    torch.set_num_threads(1)


# Typer makes the tree of all commands again for every call, 20 ms: once for each state of an app.
_make_command = typer.main.get_command


@lru_cache(maxsize=16)
def _command(app, *_):
    return _make_command(app)


typer.main.get_command = lambda app: _command(
    app, app.info.epilog, len(app.registered_commands), len(app.registered_groups)
)

FROZEN = [0]  # modules of the last freeze
SLOW = (Path(__file__).parent / "slow_tests.txt").read_text(encoding="utf-8").split()


def pytest_collection_modifyitems(items):
    """Marks the tests of slow_tests.txt."""
    for item in items:
        if item.nodeid.partition("[")[0].rpartition("/")[2] in SLOW:
            item.add_marker("slow")


def _freeze():
    """Takes what is there out of garbage collection, where many modules are new."""
    if len(sys.modules) > FROZEN[0] + 100:
        gc.collect()
        gc.freeze()
        FROZEN[0] = len(sys.modules)


def pytest_collection_finish(session):
    """Modules and tests stay to the end: looking through them for garbage takes 0.3 s."""
    from forked_process import fork_waiting

    _freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
    if session.config.option.collectonly:
        return
    fork_waiting(session.items)
    if "real.pair" in sys.modules:  # else no command of it is tested
        from loaded_pairs import share_embedded

        share_embedded()


def pytest_runtest_teardown():
    """A test may have imported torch, transformers or statsmodels."""
    _freeze()


def pytest_terminal_summary(terminalreporter):
    """Prints what tests recorded under "measured": figures that a green dot would hide."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    lines = [value for r in reports for name, value in r.user_properties if name == "measured"]
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def few_replicates():
    """Measured costs draw 8 bootstrap replicates, not 200: for tests of anything but intervals.

    The 200 take as long as the rest of a toy's measurement; each draws the blocks in one way.
    """
    from real.measure import price

    drawn = price.draw_blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(price, "draw_blocks", lambda blocks, seed, *_: drawn(blocks, seed, 8))
        yield


@pytest.fixture(scope="module")
def any_seconds():
    """Seconds of toys on this machine are no speedups: for tests of anything but the seconds."""
    import real.contest
    from simspec.cost import gate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real.contest, "doubt", lambda *_: "")
        patch.setattr(gate, "check_claims", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def short_predictors():
    """Acceptance predictors take 20 steps, not 300: for tests of anything but what they learn."""
    from short_training import short_predictor

    from real.train import predictors

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictors, "train_predictor", short_predictor())
        yield


@pytest.fixture(scope="module")
def input_folder(tmp_path_factory):
    """A recording, cost models, prompts and training text; tests leave the folder unchanged."""
    from inputs import RECORDING

    from simspec import CostModel, load_trace

    folder = tmp_path_factory.mktemp("inputs")
    load_trace(RECORDING).select([0, 1]).save(folder / "t.parquet")
    CostModel.from_ratio(0.3, 16).to_json(folder / "c.json")
    CostModel.from_ratio(0.3, 3).to_json(folder / "short.json")
    rows = [
        {"id": f"p{i}", "task": "ab"[i % 2], "text": f"The target, number {i},"} for i in range(4)
    ]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text("a drafter proposes and the target disposes. " * 60)
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    return folder


@pytest.fixture(scope="session")
def server():
    """Runs commands in forks of one loaded process (`forked_jobs`)."""
    from forked_jobs import Server

    started = Server()
    yield started
    assert started.process.close() == 0


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Toy models in models/, and prompts for them; tests add files."""
    from toy_models import TEXT, WORDS, save_toy_models

    folder = tmp_path_factory.mktemp("models")
    save_toy_models(folder / "models")
    (folder / "text.txt").write_text(TEXT)
    rows = [
        {"id": f"p{i}", "task": "ab"[i % 2], "text": f"the target {WORDS[i]}"} for i in range(6)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
