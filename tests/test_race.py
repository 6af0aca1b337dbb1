"""A race: throughput is exact on a simulated clock, and calls are shuffled."""

import json
from dataclasses import replace

import numpy as np
import pytest
from race_clock import LOOP, TASKS, Clock, failing, row, timed
from shell import command, refused

from real.bench.race import Contestant, Request, race
from real.bench.race_rows import prompt_groups, race_rows, race_summary
from real.prompts import ALL, LOW_REPEAT


def test_rates_equal_simulated_times():
    factor = {"factor": (2, 1, 4, 1)}
    runs, rows = timed(
        ("plain", 0.5, 0.25),
        ("generate", 0.5, 0.5),
        ("assisted:constant", 3.0, 0.5, {"commits": 2}),
        ("model=fixed:3", 1.0, 0.25, {"commits": 4, **factor}),
    )
    mine = row(rows, "model=fixed:3")
    times = np.array([18, 9, 36])
    assert (mine.prompts, mine.tokens, mine.seconds) == (4, 80, times.mean())
    assert mine.rate == pytest.approx(80 / times.mean())
    assert mine.per_pass == 4
    assert mine.equal == 4
    assert mine.speedup == pytest.approx((22 / times).mean())  # within the blocks of each repeat
    assert mine.own == mine.speedup
    assert mine.pass_ratio == pytest.approx(mine.speedup / 4)
    assert mine.low is mine.own_high is mine.pass_low is None  # too few prompts
    assert mine.spread == pytest.approx((80 / times).std(ddof=1) / (80 / times).mean())
    theirs = row(rows, "assisted:constant")
    assert theirs.speedup == pytest.approx(22 / 32)
    assert theirs.own == pytest.approx(42 / 32)
    assert row(rows, "generate").own == 1
    plain = row(rows, "plain")
    assert plain.first == 0.75
    assert plain.after == pytest.approx(76 / (22 - 3))
    assert plain.warm == 5.5
    assert plain.spread == 0
    assert row(rows, "plain", LOW_REPEAT).speedup == 1
    assert timed(("plain", 1, 1), repeats=1)[1][0].spread is None
    again = timed(
        ("plain", 0.5, 0.25),
        ("generate", 0.5, 0.5),
        ("assisted:constant", 3.0, 0.5, {"commits": 2}),
        ("model=fixed:3", 1.0, 0.25, {"commits": 4, **factor}),
    )[1]
    assert again == rows


def test_groups_are_all_low_repeat_and_tasks():
    runs, rows = timed(("plain", 1, 1))
    assert prompt_groups(runs[0], TASKS) == {
        ALL: [0, 1, 2, 3],
        LOW_REPEAT: [1, 2, 3],
        "task:code": [0, 3],
        "task:math": [1, 2],
    }
    assert [r.prompts for r in rows] == [4, 3, 2, 2]
    # 13 8-grams of 20 tokens: one that repeats is 1/13 < 0.1, two are 2/13
    one, two = [*range(8), 99, *range(8), 97, 96, 95], [*range(9), 99, *range(9), 95]
    assert prompt_groups(replace(runs[0], token=[[one, two]]), ["a", "a"])[LOW_REPEAT] == [0]
    looping = race_rows([replace(runs[0], token=[[LOOP] * 4] * 3)], TASKS)
    empty = row(looping, "plain", LOW_REPEAT)
    assert empty.prompts == 0
    assert empty.rate is None
    assert not empty.error


def test_control_different_sequences_are_counted():
    def changed(token, repeat, s):
        return [*token[:-1], 99] if s == 2 and repeat == 1 else token

    _, rows = timed(
        ("plain", 1, 1), ("model=fixed:1", 1, 1, {"change": changed}), ("generate", 1, 1)
    )
    assert row(rows, "model=fixed:1").equal == 3
    assert row(rows, "model=fixed:1", "task:math").equal == 1
    assert row(rows, "model=fixed:1", "task:code").equal == 2
    assert row(rows, "generate").equal == 4 == row(rows, "plain").equal


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_failing_contestant_reports_its_error(after):
    clock = Clock()
    runs, rows = timed(
        clock.contestant("plain", 1, 1),
        failing("generate_static", after),
        clock.contestant("model=a", 1, 2),
        clock=clock,
    )
    lost = row(rows, "generate_static")
    assert lost.error == "RuntimeError: no room"
    assert lost.rate is None
    assert row(rows, "model=a").rate == pytest.approx(20 / 41)
    json.dumps(race_summary(runs, rows, TASKS, {}), allow_nan=False)


def test_failing_plain_decoding_raises():
    with pytest.raises(RuntimeError, match="no"):
        timed(failing("plain", 3))


def test_race_command_on_embedded_models(tmp_path, monkeypatch):
    arguments = [
        "race",
        "tiny-model-greedy",
        "--contestant",
        "model=fixed:1",
        "--prompts",
        1,
        "--repeats",
        1,
        "--seed",
        3,
        "--budget",
        8,
    ]
    files = "--out", "r.json", "--plot", "p.png"
    code, out, _ = command(
        tmp_path,
        *arguments,
        "--rival",
        "generate",
        "--rival",
        "assisted:constant",
        "--json",
        *files,
    )
    report = json.loads(out)
    assert code == 0
    assert report == json.loads((tmp_path / "r.json").read_text())
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert report["device"].startswith("cpu")
    assert report["matmul"] == "highest"
    assert {"torch", "transformers"} <= report["versions"].keys()
    here = [r for r in report["rows"] if r["group"] == ALL]
    assert [r["contestant"] for r in here] == [
        "plain",
        "model=fixed:1",
        "generate",
        "assisted:constant",
    ]
    assert all(r["equal"] == 1 and r["rate"] > 0 and not r["error"] for r in here)
    assert report["recommended"] in ("plain", "model=fixed:1")
    assert report["raw"]["plain"]["tokens"] == report["raw"]["generate"]["tokens"] == [[8]]
    assert report["raw"]["plain"]["passes"] == [[8]]
    assert not report["measurement"]
    assert report["reasons"] == [
        "1 repeats, expected an odd number of at least 5",
        "1 prompts, expected at least 20",
    ]

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("real.jobs.race.race", interrupted)
    code, _, _ = command(tmp_path, *arguments, "--rival", "none", "--out", "other.json")
    assert code != 0
    assert {p.name for p in tmp_path.iterdir()} == {"r.json", "p.png"}


def test_race_command_prints_the_recommendation(tmp_path):
    arguments = (
        "race",
        "tiny-model-greedy",
        "--contestant",
        "model=fixed:1",
        "--rival",
        "none",
        "--prompts",
        1,
        "--repeats",
        1,
        "--budget",
        8,
    )
    code, out, _ = command(tmp_path, *arguments)
    assert code == 0
    assert "recommended: " in out.splitlines()[-2]
    assert "no measurement, not to be published: 1 repeats" in out.splitlines()[-1]
    assert "times plain by task" in out
    refused(tmp_path, *arguments, "--engine", "quick", words="engine 'quick' is unknown")
    refused(
        tmp_path,
        *arguments,
        "--cost",
        "eagle=c.json",
        words="expected drafter=COST.json, of a drafter among model",
    )
    refused(tmp_path, *arguments, "--out", "no/r.json", words="there is no folder no")
    refused(tmp_path, *arguments, "--out", "a", "--plot", "a", words="a would overwrite a")
    refused(tmp_path, *arguments, "--out", "a", "--save", "a", words="a would overwrite a")
    refused(tmp_path, *arguments, "--repeats", 0, words="--repeats is 0")
    refused(tmp_path, *arguments, "--tune-prompts", 0, words="--tune-prompts is 0")
    refused(tmp_path, *arguments, "--rival", "generat", words="expected none alone")
    refused(tmp_path, *arguments, "--contestant", "modell=fixed:1", words="did you mean model?")
    code, out, _ = command(tmp_path, "race", "--help")
    assert code == 0
    assert "Example:" in out
    assert "--json" in out


def calls_of(names, seed, repeats=2, prompts=5):
    """Calls of a race in order: (contestant, number of `begin`, prompt, budget), and warm-ups."""
    calls = []

    def contestant(name):
        began = []

        def begin():
            began.append(0)
            number = len(began)

            def generate(request):
                calls.append((name, number, request.address, request.budget))
                return [5] * request.budget, request.budget

            return generate

        return Contestant(name, begin, name != "plain", warm=lambda: calls.append((name, "warm")))

    race(
        [contestant(name) for name in names],
        [Request([1], 4 + s, s) for s in range(prompts)],
        repeats=repeats,
        seed=seed,
    )
    return calls


def test_contestants_of_a_block_run_back_to_back_in_shuffled_order():
    names, prompts = ["plain", "model=fixed:1", "generate"], 5
    calls = calls_of(names, 3)
    warmed = [i for i, call in enumerate(calls) if call[1] == "warm"]
    assert [
        calls[i][0] for i in warmed
    ] == names  # each once, behind its own first calls and before all that count
    counted = calls[warmed[-1] + 1 :]
    assert all(call[0] == calls[i][0] for i in warmed for call in calls[i - 2 : i])
    assert len(counted) == 3 * prompts * (2 + 1)
    whole = [call for call in counted if call[3] > 1]
    first = [call for call in counted if call[3] == 1]
    blocks = [whole[i : i + 3] for i in range(0, len(whole), 3)]
    assert [{call[2] for call in block} for block in blocks] == [{s} for s in range(prompts)] * 2
    assert all({call[0] for call in block} == set(names) for block in blocks)
    assert len({tuple(call[0] for call in block) for block in blocks}) > 2
    assert whole != counted[: len(whole)]  # the first repeat times first tokens block by block
    for name in names:
        states = [began for who, began, *_ in whole if who == name]
        assert states == sorted(states)  # one state a repeat, which goes on to the next prompt
        assert [states.count(state) for state in set(states)] == [prompts] * 2
        assert [s for who, _, s, _ in first if who == name] == list(range(prompts))
        fresh = {began for who, began, *_ in first if who == name}
        assert len(fresh - set(states)) == prompts  # none of these
    assert len({tuple(call[0] for call in calls_of(names, seed)) for seed in range(4)}) == 4
    assert calls_of(names, 3) == calls


def test_policies_that_only_replay_are_refused_before_models_are_read(tmp_path):
    """There are no models here: reading them is refused in other words."""
    race = ("race", "tiny-prompt_lookup-coupled", "--models", "none", "--rival", "none")
    for policy, words in (
        ("dynamic_tree:8", "is only replayed"),
        ("fixed:2", "holds no config.json"),
    ):
        refused(tmp_path, *race, "--contestant", f"prompt_lookup={policy}", words=words)
