"""The engines that results report: of the target, and of a drafter that may not be captured."""

import json
from contextlib import redirect_stdout, suppress
from copy import deepcopy
from io import StringIO
from types import SimpleNamespace

import pytest
from toy_lm import TOYS, toy_pair

from real.decode.engine import ENGINES, attach_engine, engines_of, make_passes
from real.model.target import Target
from simspec import cli

NOT_CAPTURED = ("hydra", "glide", "self_skip", "prompt_lookup")


def pair_on(passes, drafter_name):
    """A toy pair on these passes."""
    target, drafter = deepcopy(toy_pair(drafter_name))
    target = Target(target.decoder, drafter.taps, 64, passes)
    attach_engine(passes, target.decoder, drafter)
    return target, drafter


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("drafter_name", sorted(set(TOYS) - {"glide2"}))
def test_results_report_the_engine_of_each_model(drafter_name, engine):
    target, drafter = pair_on(make_passes(engine, 4, 40), drafter_name)
    captured = drafter_name not in NOT_CAPTURED
    expected = engine if captured else "eager"
    assert drafter.engine == expected
    assert engines_of(target, drafter) == {"target": engine, "drafter": expected}


@pytest.mark.parametrize(
    ("drafter_name", "expected"),
    [("hydra", "eager"), ("glide", "eager"), ("self_skip", "eager"), ("model", "fast")],
)
def test_measure_prints_the_engine_of_each_model(
    tmp_path, monkeypatch, few_replicates, drafter_name, expected
):
    def load(folder, name, *rest):
        return SimpleNamespace(**dict(zip(("target", "drafter"), pair_on(rest[-1], name))))

    monkeypatch.setattr("real.pair.load_pair", load)
    arguments = ["-k", 1, "--seconds", 0, "--context", 8, "--engine", "fast", "--json"]
    arguments += ["--drafter", drafter_name, "--out", tmp_path / "c.json"]
    out = StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        cli.main(["measure", *map(str, arguments)])
    assert json.loads(out.getvalue())["origin"]["engines"] == {
        "target": "fast",
        "drafter": expected,
    }
