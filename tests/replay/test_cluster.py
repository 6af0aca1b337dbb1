"""A sweep on a Dask cluster of several processes on this machine, one of which is killed."""

import json
import os
import signal
import sys
import threading
import time

import pandas
import pytest
from shell import refused, run
from test_layers import loaded

from simspec import Trace, sweep, synthetic
from simspec.policies import beta_ts, cost_ts, fixed, oracle
from simspec.policy.policy import Policy
from simspec.replay import sweep as cluster
from simspec.replay.sweep import sweep_rows

NOBODY = "tcp://127.0.0.1:1"
pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own


class SlowTrace(Trace):
    """A recording whose replays take a while on a worker: they run beside its main thread."""

    def features(self, names):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
        return super().features(names)


def _as(kind, trace):
    return kind(**{name: getattr(trace, name) for name in trace.__dataclass_fields__})


def _local_policy():
    """A policy that no worker can import: it travels by value, as from a notebook."""

    def draft_more(params, state, slot, features, u):
        return slot < state[0], True

    def observe(params, state, computed, drafted, accepted, features, cost):
        state[0] = accepted + params[0]

    return Policy("echo", draft_more, observe, params=(1.0,), state0=(2.0,))


TRACES = {
    name: _as(SlowTrace, synthetic.iid(0.7, 20, 60, 6, seed=i, confidence=True))
    for i, name in enumerate("abc")
}
DRAWING = [beta_ts(), cost_ts(), "cali_ts:predictor=confidence"]
PLAIN = [fixed(2), oracle, "confidence:0.5", _local_policy()]
SWEEP = dict(policies=[*DRAWING, *PLAIN], costs=0.1, replicates=3, by="prompt")


@pytest.fixture(scope="module")
def local_cluster():
    """A scheduler here, with two worker processes that are started again where they die."""
    distributed = pytest.importorskip("distributed", reason="pip install 'simspec[cluster]'")
    workers = dict(n_workers=2, processes=True, threads_per_worker=1)
    quiet = dict(dashboard_address=None, silence_logs=50)
    with distributed.LocalCluster(**workers, **quiet, host="127.0.0.1") as started:
        yield started


@pytest.fixture
def scheduler(local_cluster):
    """The scheduler's address, once both workers are there."""
    local_cluster.wait_for_workers(2, timeout=60)
    return local_cluster.scheduler_address


@pytest.fixture(scope="module")
def expected():
    """The table of the same sweep in this process."""
    return sweep(TRACES, **SWEEP, progress=False)


def test_one_option_prints_the_same_table(scheduler, tmp_path, capsys):
    synthetic.iid(0.6, 5, 40, 4, seed=3).save(tmp_path / "a.parquet")
    policies = "--policy", "beta_ts", "--policy", "oracle"
    command = "sweep", tmp_path / "a.parquet", *policies, "--cost", 0.1, "--json"
    code, alone, _ = run(capsys, *command)
    assert code == 0
    code, spread, err = run(capsys, *command, "--cluster", scheduler)
    assert (code, err) == (0, "")
    assert json.loads(spread) == json.loads(alone)


def test_other_versions_on_a_worker_are_refused(scheduler, monkeypatch):
    from distributed.client import version_module

    versions = version_module.get_versions

    def older(packages=None):
        found = versions(packages)
        return found | {"packages": found["packages"] | {"numba": "0.1"}}

    monkeypatch.setattr(version_module, "get_versions", older)
    with pytest.raises(ValueError, match=r"worker tcp://\S+ has numba \S+, this process 0.1: "):
        sweep(TRACES, [fixed(1)], cluster=scheduler, progress=False)


def _kill_workers(address, everyone):
    """Kills one worker that is replaying at this moment, or all."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        processes = client.run(os.getpid)
        for _ in range(600):  # between two batches of tasks no worker is
            if busy := [name for name, tasks in client.processing().items() if tasks]:
                break
            time.sleep(0.05)
    assert busy
    for name in processes if everyone else busy[:1]:
        os.kill(processes[name], signal.SIGKILL)


@pytest.mark.parametrize("everyone", [False, True], ids=["one", "all"])
def test_table_is_bit_identical_with_workers_killed_half_way(scheduler, expected, everyone):
    rows = []
    for row in sweep_rows(TRACES, **SWEEP, cluster=scheduler):
        rows.append(row)
        if len(rows) == 300:
            _kill_workers(scheduler, everyone)
    pandas.testing.assert_frame_equal(pandas.DataFrame(rows), expected, check_exact=True)


@pytest.fixture
def recording(tmp_path):
    """A folder with one recording."""
    synthetic.iid(0.6, 2, 9, 2).save(tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize(
    "address, words",
    [(NOBODY, "no Dask scheduler answers at"), ("10.0.0.1:8786", "is no address of a Dask")],
)
def test_wrong_address_is_one_line(recording, address, words, monkeypatch):
    pytest.importorskip("distributed", reason="pip install 'simspec[cluster]'")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    options = "--policy", "fixed:1", "--cluster", address
    refused(recording, "sweep", "a.parquet", *options, words=words)


def test_missing_package_and_kept_results_beside_a_cluster_are_refused(recording, monkeypatch):
    asked = "sweep", "a.parquet", "--policy", "fixed:1", "--cluster", NOBODY
    refused(recording, *asked, "--keep", "kept", words="leave out --jobs and --keep")
    monkeypatch.setitem(sys.modules, "distributed", None)
    words = (
        f"a sweep on {NOBODY} needs Dask, which is not installed: pip install 'simspec[cluster]'"
    )
    refused(recording, *asked, words=words)


def test_dask_is_imported_only_where_it_is_asked_for():
    modules = "import simspec.cli, simspec.replay.sweep"
    assert loaded(modules, ("distributed", "dask", "joblib")) == []
