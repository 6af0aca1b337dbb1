"""The command `simspec measure`."""

import json
from contextlib import redirect_stdout, suppress
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from toy_lm import toy_pair

from simspec import CostModel, cli
from simspec.cost.table import CostTable, load_cost

pytestmark = pytest.mark.usefixtures("few_replicates")


def toy(bundle, drafter, *rest):
    """The toy models in place of a model folder."""
    return SimpleNamespace(**dict(zip(("target", "drafter"), toy_pair(drafter))))


def command(*arguments):
    """What `simspec measure` prints."""
    out = StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        cli.main(["measure", *map(str, arguments)])
    return out.getvalue()


def test_measure_command_writes_a_model_or_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr("real.pair.load_pair", toy)
    out = tmp_path / "c.json"
    options = "-k", 1, "--repeats", 1, "--seconds", 0.5, "--out", out
    shown = json.loads(command(*options, "--json", "--context", 8))
    cost = load_cost(out)
    assert isinstance(cost, CostModel)
    assert shown["origin"]["engines"] == {"target": "eager", "drafter": "eager"}
    assert cost.to_dict() == shown
    assert cost.K == 1
    assert cost.name == "model-greedy"
    assert cost.origin.known
    assert cost.origin.threads == torch.get_num_threads()
    assert cost.origin.versions["torch"]
    output = command(
        *options, "--batch", 2, "--context", 8, "--context", 12, "--drafter", "early_exit"
    )
    table = load_cost(out)
    assert isinstance(table, CostTable)
    assert (table.batch, table.context) == ((2,), (8, 12))
    assert table.at(1, 10).K == 1
    assert "batch 2, context 12: draft of 1" in output
    assert "measured on cpu" in output
    shown = json.loads(command(*options, "--batch", 1, "--batch", 2, "--context", 8, "--json"))
    assert shown["origin"]["engines"] == {"target": "eager", "drafter": "eager"}
    assert CostTable.from_dict(shown) == load_cost(out)


@pytest.mark.parametrize("batches", [(1,), (1, 2)])
def test_printed_costs_load_as_a_cost_file(tmp_path, monkeypatch, batches):
    monkeypatch.setattr("real.pair.load_pair", toy)
    out, printed = tmp_path / "c.json", tmp_path / "printed.json"
    sizes = [argument for batch in batches for argument in ("--batch", batch)]
    printed.write_text(
        command(
            "-k",
            1,
            "--repeats",
            1,
            "--seconds",
            0.5,
            "--out",
            out,
            *sizes,
            "--context",
            8,
            "--json",
        )
    )
    assert json.loads(printed.read_text())["origin"]["dtype"] == "float64"
    assert load_cost(printed) == load_cost(out)
    assert CostTable.from_json(printed) == CostTable.from_json(out)
    if len(batches) == 1:
        assert CostModel.from_json(printed) == CostModel.from_json(out)


@pytest.mark.parametrize(
    "arguments", [["--batch", 0], ["--context", 0], ["--out", "nowhere/c.json"]]
)
def test_measure_command_errors_are_one_line_and_write_nothing(
    tmp_path, monkeypatch, capsys, arguments
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("real.pair.load_pair", toy)
    with pytest.raises(SystemExit) as stop:
        cli.main(["measure", *map(str, ["--out", "c.json", "-k", 1, *arguments])])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.startswith("simspec: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
