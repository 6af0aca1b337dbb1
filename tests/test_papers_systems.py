"""simspec paper: tables of all systems, of rates under sampling and of batches, by definition."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from documents import ROOT
from numba.core import config
from test_papers import figures

from simspec import replay
from simspec.numerics.formulas import expected_speedup
from simspec.numerics.stats import Estimate
from simspec.papers.card import HELD_OUT, Card, Lengths, find_cards
from simspec.papers.catalogue import TABLES
from simspec.papers.claim import Inputs
from simspec.papers.eagle import RACE, SHOWN_BATCHES
from simspec.papers.eesd_systems import CODELLAMA_13B, LLAMA_70B, VICUNA_13B
from simspec.papers.recorded import MEASURED, Recordings
from simspec.papers.s2d import LOSSES
from simspec.papers.table import MISSING, at, hm, tasks_of
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="seconds compiled, an hour interpreted")


@pytest.fixture(scope="module")
def few():
    """Twelve prompts of each bundled recording, one draw."""
    return Inputs(Recordings(ROOT / "traces", 12), (), 0, 1)


def one(inputs, drafter, name):
    (recorded,) = (r for r in inputs.recordings.deep(drafter, 10) if r.name == name)
    return recorded


@pytest.mark.parametrize(
    ("table", "task", "names", "printed"),
    [
        ("eesd-1", "math", ("math",), LLAMA_70B),
        ("eesd-2", "code", ("code",), CODELLAMA_13B),
        ("eesd-3", "chat", ("chat", "dialogue"), VICUNA_13B),
    ],
)
def test_systems_are_compared_by_hm_and_speedup(few, table, task, names, printed):
    made = TABLES[table](few)
    found = figures(made)
    for drafter, name, method, policy in (
        ("model", "smollm2/greedy/model", "Vanilla SD, K = 10", fixed(10)),
        ("medusa", "tiny-medusa-greedy", "Medusa, K = 4", fixed(4)),
        ("early_exit", "tiny-early_exit-greedy", "EESD (+Beta-TS)", beta_ts(K=10)),
    ):
        recorded = one(few, drafter, name)
        chosen = tasks_of(recorded, names)
        assert 0 < chosen.sum() < recorded.trace.sequences
        seconds = recorded.seconds(policy, MEASURED, 0, 1)[chosen].sum()
        plain = recorded.tokens[chosen].sum() * recorded.cost.baseline
        assert found[name, method, f"{task}: speedup"].estimate.value == pytest.approx(
            plain / seconds
        )
        percent = found[name, method, f"{task}: HM"].estimate
        assert percent.value == pytest.approx(hm(recorded, policy, few, chosen))
    methods = {str(row[1]).partition(",")[0]: row[-1] for row in made.rows}
    assert printed.items() <= methods.items()
    assert {name for name, text in methods.items() if text == "-"} == {
        "EAGLE", "GLIDE", "Hydra", "Prompt lookup"
    }  # fmt: skip
    assert not any("coupled" in str(row[0]) for row in made.rows)  # the paper decodes greedily
    theta = {str(row[0]) for row in made.rows if row[1] == "EESD (+Cali-TS)"}
    assert theta == {"tiny-early_exit-greedy"}


def test_samples_have_their_own_best_length(few):
    table = TABLES["eesd-figure-1b"](few)
    recorded = one(few, "early_exit", "smollm2/greedy/early_exit")
    rows = [row for row in table.rows if row[0] == recorded.name]
    assert rows
    for _, sample, *times, best in rows:
        part = recorded.trace.select([int(sample)])
        each = [recorded.cost.seconds(replay(part, fixed(k))).sum() for k in range(1, 11)]
        assert [t.estimate.value for t in times] == pytest.approx(
            [1000 * s / part.rows for s in each]
        )
        assert int(best) == 1 + int(np.argmin(each))


def test_a_sweep_of_lengths_ends_in_thompson_sampling(few):
    table = TABLES["eesd-figure-3"](few)
    found = figures(table)
    recorded = one(few, "early_exit", "tiny-early_exit-greedy")
    names = [row[1] for row in table.rows if row[0] == recorded.name]
    assert names == [*(f"K = {k}" for k in range(1, 11)), "Beta-TS", "Cali-TS"]
    for name, policy in (("K = 3", fixed(3)), ("Beta-TS", beta_ts(K=10))):
        seconds = recorded.seconds(policy, MEASURED, 0, 1).sum()
        expected = recorded.tokens.sum() * recorded.cost.baseline / seconds
        assert found[recorded.name, name, "all"].estimate.value == pytest.approx(expected)


def test_sampled_rates_give_the_formula(few):
    found = figures(TABLES["glide-1"](few))
    assert len(few.recordings.sampled("eagle", "glide", "no drafter")) == 2
    for recorded in few.recordings.sampled("eagle", "glide"):
        trace = recorded.trace
        assert trace.meta.rule == "rejection"
        tried = trace.depth > 0
        rate = float(trace.ratio[tried, 0].astype(np.float64).mean())
        c = recorded.cost.draft[1] / recorded.cost.baseline
        acceptance = found[recorded.name, "all: acc."].estimate.value
        assert acceptance == pytest.approx(100 * rate, rel=1e-6)
        speed = found[recorded.name, "all: E(spd.)"].estimate.value
        assert speed == pytest.approx(expected_speedup(rate, 5, c), rel=1e-6)


def test_a_batch_of_one_is_the_best_fixed_length_of_a_replay(few):
    found = figures(TABLES["eagle-7"](few))
    for recorded in few.recordings.of("eagle"):
        priced = at(recorded, MEASURED)
        each = {k: priced.seconds(fixed(k), MEASURED).sum() for k in range(1, 7)}
        best = min(each, key=each.get)
        cell = found[recorded.name, f"{recorded.trace.meta.temperature:g}", "batch 1"]
        expected = recorded.tokens.sum() * recorded.cost.baseline / each[best]
        assert cell.estimate.value == pytest.approx(expected, rel=1e-6)
        assert cell.extra == {"K": best}
        speedups = [
            found[recorded.name, f"{recorded.trace.meta.temperature:g}", f"batch {b}"]
            for b in SHOWN_BATCHES
        ]
        assert len({s.estimate.value for s in speedups}) == len(SHOWN_BATCHES)


def card(name, drafter, accepted):
    """An ablation's card: drafts of 5 from ten positions of each of two sequences, twice."""
    sums = np.array([[a, 10, 20] for a in accepted], np.float64)
    length = Estimate(sums[:, 0].sum() / 20, 0.0, 5.0, 0.95, 2)
    lengths = tuple(Lengths(where, length, sums) for where in (HELD_OUT, "a recording"))
    path = ROOT / "traces" / "ablations" / f"{name}.json"
    data = {"tokens": 9000}
    return Card(f"traces/ablations/{name}.json", path, drafter, {}, 5, lengths, "cpu", data)


def test_outputs_of_the_target_are_compared_with_text_alone(few):
    """4 of 40 tested tokens more, 4 of 20 drafts."""
    cards = [
        card(f"{drafter}-{name}", drafter, accepted)
        for drafter, half in (("glide", "layer9"), ("eagle", "shifted"))
        for name, accepted in ((half, (9, 11)), ("text", (6, 10)))
    ]
    inputs = Inputs(few.recordings, cards, 0, 1)
    for table, names, values in (
        ("glide-2", ["prompts", "all"], [0.4, 0.5, 0.1]),
        ("eagle-6", [HELD_OUT, "a recording"], [0.8, 1.0, 0.2]),
    ):
        rows = TABLES[table](inputs).rows
        assert [row[0] for row in rows] == names
        for _, *cells in rows:
            assert [cell.estimate.value for cell in cells] == pytest.approx(values)


def test_losses_of_eagle_are_rows_by_their_weights(few):
    weights = {"printed": {"weight": 0.1}, "tokens": {"weight": 1.0, "regression": 0.0}}
    cards = [
        replace(
            card(f"eagle-loss-{name}", "eagle", accepted),
            asked={f"loss.{key}": value for key, value in of.items()},
        )
        for (name, of), accepted in zip(weights.items(), ((9, 11), (6, 10)))
    ]
    rows = {row[0]: row for row in TABLES["s2d-3"](Inputs(few.recordings, cards, 0, 1)).rows}
    assert [rows[f"eagle-loss-{name}"][1:3] for name in weights] == [("1", "0.1"), ("0", "1")]
    found = [cell.estimate.value for cell in rows["eagle-loss-tokens"][3:6]]
    assert found == pytest.approx([0.8, 0.8, -0.2])
    assert rows["eagle-loss-printed"][5] == "-"
    assert rows["eagle-loss-features"][1:6] == (MISSING,) * 5
    assert [row[-1] for row in rows.values()] == ["2.73", "2.70", "1.61", "-"]


@pytest.mark.docs
def test_page_says_what_each_loss_of_eagle_adds():
    cards = [x for x in find_cards(ROOT) if Path(x.name).stem in LOSSES]
    rows = {row[0]: row for row in TABLES["s2d-3"](Inputs(Recordings(None), cards, 0, 1)).rows}
    told = [
        f"{-of.value:.3f} [{-of.high:.3f}, {-of.low:.3f}]"
        for of in (rows[f"eagle-loss-{name}"][5].estimate for name in ("tokens", "features"))
    ]
    whole = rows["eagle-loss-printed"][4].estimate.value
    page = " ".join((ROOT / "docs" / "training.md").read_text(encoding="utf-8").split())
    assert (
        f"EAGLE's accepted length on sampled outputs, {whole:.3f}, falls by {told[0]} without the "
        f"loss of features, by {told[1]} without that of tokens (`simspec paper s2d-3`; printed "
        "speedups 2.73, 1.61 and 2.70)"
    ) in page


def test_race_of_engines_gives_tokens_a_second(tmp_path):
    """30 tokens in 6, 3 and 2 seconds; a race without one of its contestants is refused."""
    seconds = {"generate": (2.0, 4.0), "plain": (1.0, 2.0), "eagle=fixed:2": (0.5, 1.5)}
    raw = {
        name: {"tokens": [[10, 20]] * 2, "seconds": [[a - 0.25, b], [a + 0.25, b]]}
        for name, (a, b) in seconds.items()
    }
    path = tmp_path / RACE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"raw": raw, "dtype": "bfloat16"}))
    inputs = Inputs(Recordings(tmp_path), ())
    table = TABLES["eagle-4"](inputs)
    assert "in bfloat16 on a CPU" in table.notes[0]
    found = [row[1:3] for row in table.rows]
    values = [cell.estimate.value for cells in found for cell in cells]
    assert values == pytest.approx([5.0, 1.0, 10.0, 2.0, 15.0, 3.0])
    path.write_text(json.dumps({"raw": {"plain": raw["plain"]}}))
    with pytest.raises(ValueError, match="not a race: lacks 'generate'"):
        TABLES["eagle-4"](inputs)
    path.unlink()
    assert all(row[1:3] == (MISSING, MISSING) for row in TABLES["eagle-4"](inputs).rows)
