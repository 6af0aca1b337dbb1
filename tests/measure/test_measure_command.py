"""The command `simspec measure`."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from shell import run
from toy_lm import toy_pair

import real.commands.measure
from real.model_settings import ModelSettings
from simspec import CostModel
from simspec.cost import gate
from simspec.cost.table import CostTable, load_cost

CHECK = gate.check_claims
pytestmark = pytest.mark.usefixtures("few_replicates", "any_seconds")


def toys(folder, drafters, *rest):
    """The toy models in place of a model folder."""
    pairs = [zip(("target", "drafter"), toy_pair(name)) for name in drafters]
    return [SimpleNamespace(**dict(pair)) for pair in pairs]


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("real.pair.load_pairs", toys)


def test_one_drafter_gives_a_model_or_a_table(capsys):
    options = "-k", 1, "--seconds", 0.5, "--out", "c.json", "--context", 8
    assert run(capsys, "measure", *options)[0] == 0
    cost = load_cost("c.json")
    assert isinstance(cost, CostModel)
    assert (cost.K, cost.name, cost.origin.dtype) == (1, "model-greedy", "float64")
    assert cost.origin.known
    assert cost.origin.engines == {"target": "eager", "drafter": "eager"}
    assert cost.origin.threads == torch.get_num_threads()
    assert cost.origin.versions["torch"]
    more = "--context", 12, "--drafter", "early_exit"
    _, out, _ = run(capsys, "measure", *options, *more)
    table = load_cost("c.json")
    assert isinstance(table, CostTable)
    assert (table.batch, table.context, table.at(1, 10).K) == ((1,), (8, 12), 1)
    assert "verify 1" in out
    assert "measured on cpu" in out


def test_several_drafters_give_a_file_each(tmp_path, capsys):
    threads = torch.get_num_threads()
    given = ["--drafter", "model", "--drafter", "medusa", "--rule", "greedy", "--rule", "coupled"]
    sizes = ["-k", "6", "--seconds", "0", "--context", "24", "--threads", "1", "--out", tmp_path]
    try:
        code, out, _ = run(capsys, "measure", *given, *sizes)
    finally:
        torch.set_num_threads(threads)
    names = ["medusa-coupled", "medusa-greedy", "model-coupled", "model-greedy"]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert (code, files) == (0, [f"{name}.cost.json" for name in names])
    costs = {name: load_cost(f"{name}.cost.json") for name in names}
    assert all(name in out for name in names)
    assert costs["medusa-greedy"].K == 4  # its heads; not the six that were asked for
    assert costs["model-greedy"].K == 6
    assert np.array_equal(costs["medusa-greedy"].verify, costs["model-greedy"].verify[:5])
    assert costs["medusa-greedy"].origin.threads == 1


TWO = "--drafter", "model", "--drafter", "eagle", "--out"


@pytest.mark.parametrize(
    "given, words",
    [
        (["--out", "nowhere/c.json"], "no folder nowhere"),
        (["--for", "tiny-model-greedy", "--drafter", "model"], "--for names recordings"),
        ([], "--out is missing"),
        ([*TWO, "nowhere"], "no folder nowhere"),
        ([*TWO, ".", "--context", 8, "--context", 16], "at one context"),
        ([*TWO, ".", "--weights", "w"], "names one drafter's folder"),
    ],
)
def test_command_errors_are_one_line_and_write_nothing(given, words, tmp_path, capsys):
    code, _, error = run(capsys, "measure", "-k", 1, *given)
    assert code == 2
    assert error.startswith("simspec: ")
    assert error.count("\n") == 1
    assert words in error
    assert not list(tmp_path.iterdir())


def test_weights_of_one_drafter_serve_its_recordings(monkeypatch):
    folders = dict[str, Path]()
    monkeypatch.setattr("real.pair.load_pairs", lambda target, given, *_: folders.update(given))
    ModelSettings(weights=Path("w")).load_all(["eagle"])
    assert folders == {"eagle": Path("w")}


def test_costs_that_no_round_can_have_are_not_fit_to_publish(capsys, monkeypatch):
    """Passes of drafts at 0.3 of a plain one: no length of them is named; costs are written."""
    timed = real.commands.measure.measure_costs

    def cheap(settings, progress):
        ((asked, table),) = timed(settings, progress)
        cost = table.known[0]
        cost.verify[1:] = 0.3 * cost.baseline
        cost.draft[:] = 0.0
        object.__setattr__(cost, "overhead", 0.0)
        return [(asked, table)]

    monkeypatch.setattr(gate, "check_claims", CHECK)
    monkeypatch.setattr(real.commands.measure, "measure_costs", cheap)
    code, out, _ = run(capsys, "measure", "-k", 1, "--seconds", 0, "--out", "c.json")
    assert code == 1
    assert "which no round can reach: its costs have a round of 1 drafts at 0.3" in out
    assert "is best" not in out
