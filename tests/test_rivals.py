"""The race against transformers: everybody's text is the same, rates are exact by a clock that is told, nothing slower is recommended."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from shell import command, refused
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from toy_lm import END, VOCAB, toy_recording

from real.bench.hf_generate import (
    RIVALS,
    RivalError,
    check_own,
    check_rival,
    entrants,
    load_rival,
    pairs,
    rival,
)
from real.bench.race import PLAIN, Contestant, race
from real.bench.ranking import Row, members, over, over_assisted, recommend, rows, summary, verdict
from real.model.checkpoint import WeightsError, save_decoder
from real.pair import prompts_of
from real.prompts import ALL, LOW_REPEAT
from simspec import policies, replay

OURS = [
    "model=fixed:2",
    "model=beta_ts",
    "model=confidence:0.5",
    "model=static:2x1x1",
    "prompt_lookup=fixed:3",
]
THEIRS = [*RIVALS, "assisted:constant,2,0", "prompt_lookup:3"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The toy pair as checkpoints that transformers reads."""
    folder = tmp_path_factory.mktemp("bundle")
    _, target, drafter = toy_recording("model", "greedy")
    for name, decoder in (("target", target.decoder), ("model", drafter.lm)):
        (folder / name).mkdir()
        save_decoder(decoder, folder / name, END[0], 64, torch.float64)
    words = Tokenizer(WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    words.save(str(folder / "target" / "tokenizer.json"))
    return folder


def raced(bundle, ours, theirs, dtype="float64", repeats=2, engine="eager"):
    trace = toy_recording("model", "greedy")[0].select(
        [0, 3, 6]
    )  # the last one's text ends by itself
    running = entrants(
        bundle, trace, pairs(bundle, trace, ours, engine, dtype=dtype), ours, theirs, dtype=dtype
    )
    return trace, race(running, prompts_of(trace), trace.budget, trace.sequence, repeats)


@pytest.fixture(scope="module")
def everybody(bundle):
    return raced(bundle, OURS, THEIRS)


def test_everybody_continues_by_the_recorded_text(everybody):
    trace, runs = everybody
    texts = [trace.token[a:b].tolist() for a, b in zip(trace.offset, trace.offset[1:])]
    assert [r.name for r in runs] == [PLAIN, *OURS, *THEIRS]
    assert not any(r.error for r in runs)
    assert any(text[-1] in END for text in texts)
    assert any(text[-1] not in END for text in texts)
    for r in runs:
        assert r.token == [texts, texts], r.name
        assert r.passes[0] == r.passes[1] and r.name, r.name  # every repeat starts anew
    found = {r.name: r for r in runs}
    for name in (PLAIN, "generate", "generate_static"):
        assert found[name].passes[0] == [len(text) for text in texts]
        assert not found[name].drafts
    for name in (*OURS, "assisted:constant", "prompt_lookup:10"):
        assert sum(found[name].passes[0]) < trace.rows and found[name].drafts, name
    assert found["generate_static"].remark == "static cache, not compiled"


def test_passes_are_the_rounds_of_the_replay_and_of_an_assistant_that_drafts_as_many(everybody):
    trace, runs = everybody
    found = {r.name: r.passes[0] for r in runs}
    replayed = replay(trace, policies.parse("fixed:2"))
    assert (
        found["model=fixed:2"]
        == (replayed.offset[1:] - replayed.offset[:-1]).tolist()
        == found["assisted:constant,2,0"]
    )


def test_rivals_do_not_move_each_other(bundle, everybody):
    alone = raced(bundle, [], ["assisted:heuristic"], repeats=1)[1][1]
    assert alone.passes == [
        next(r for r in everybody[1] if r.name == "assisted:heuristic").passes[0]
    ]
    kept = raced(
        bundle, [], ["assisted:heuristic,1,0", "assisted:heuristic_transient,1,0"], repeats=1
    )[1]
    assert (
        kept[1].passes != kept[2].passes
    )  # one goes on to the next text with what it learnt, the other does not


def test_float32_too(bundle):
    trace, runs = raced(bundle, ["model=fixed:2"], ["generate", "assisted:constant"], "float32", 1)
    assert all(r.token == runs[0].token and not r.error for r in runs)
    assert len(runs) == 4


@pytest.mark.parametrize("engine", ["fast", "strict"])
def test_captured_passes_race_with_the_same_texts_and_rounds(bundle, everybody, engine):
    _, runs = raced(bundle, ["model=fixed:2", "model=static:2x1x1"], [], repeats=1, engine=engine)
    found = {r.name: r for r in everybody[1]}
    assert [r.error for r in runs] == [""] * 3
    for r in runs:
        assert (r.token[0], r.passes[0]) == (found[r.name].token[0], found[r.name].passes[0])


def test_settings_of_a_chat_model_do_not_reach_the_race(bundle):
    path = bundle / "target" / "generation_config.json"
    path.write_text(
        json.dumps(
            {"repetition_penalty": 9.0, "do_sample": True, "temperature": 5.0, "max_new_tokens": 2}
        )
    )
    try:
        trace, runs = raced(bundle, [], ["generate"], repeats=1)
    finally:
        path.unlink()
    assert runs[1].token == runs[0].token
    assert max(map(len, runs[1].token[0])) > 2


# A clock that is told: each contestant's call takes a fixed time and a time for each pass.


class Told:
    """Seconds that pass only where a contestant says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def contestant(
        self, name, start, each, commits=1, change=lambda token, repeat, s: token, factor=(1, 1, 1)
    ):
        """Takes start + each * passes, times the repeat's factor; commits so many tokens a pass."""
        texts = []

        def begin():
            mine = len(texts)
            texts.append(0)

            def once(prompt, budget, sequence):
                passes, repeat = -(-budget // commits), sum(met > 1 for met in texts[:mine])
                texts[mine] += 1
                self.now += (start + each * passes) * factor[repeat]
                return change(TEXTS[sequence][:budget], repeat, sequence), passes

            return once

        return Contestant(name, begin, "=" in name or ":" in name)


LOOP = [7, 8] * 10
TEXTS = [LOOP, list(range(20)), list(range(20, 40)), [*range(18), 0, 1]]
TASKS = ["code", "math", "math", "code"]


def timed(*contestants, repeats=3, told=None):
    clock = told or Told()
    made = [
        clock.contestant(*c[:3], **(c[3] if len(c) > 3 else {})) if isinstance(c, tuple) else c
        for c in contestants
    ]
    runs = race(made, [[1]] * 4, [20] * 4, repeats=repeats, timer=clock)
    return runs, rows(runs, TASKS)


def row(found, name, group=ALL):
    return next(r for r in found if (r.contestant, r.group) == (name, group))


def test_rates_are_exact():
    factor = {"factor": (2, 1, 4, 1)}
    runs, found = timed(
        ("plain", 0.5, 0.25),
        ("generate", 0.5, 0.5),
        ("model=fixed:3", 1.0, 0.25, {"commits": 4, **factor}),
    )
    mine = row(found, "model=fixed:3")
    assert (mine.prompts, mine.tokens, mine.seconds) == (4, 80, 4 * 2.25 * 2)  # the middle repeat
    assert mine.rate == pytest.approx(80 / 18)
    assert mine.per_pass == 4
    assert mine.equal == 4
    assert mine.speedup == pytest.approx(80 / 18 / (80 / 22))
    assert mine.over_generate == pytest.approx(80 / 18 / (80 / 42))
    speeds = torch.tensor([80 / 18, 80 / 9, 80 / 36], dtype=torch.float64)
    assert mine.spread == pytest.approx(float(speeds.std() / speeds.mean()))
    plain = row(found, "plain")
    assert plain.first == 0.75
    assert plain.after == pytest.approx(76 / (22 - 3))
    assert plain.warm == 5.5
    assert plain.spread == 0
    assert row(found, "plain", LOW_REPEAT).speedup == 1
    assert timed(("plain", 1, 1), repeats=1)[1][0].spread is None
    again = timed(
        ("plain", 0.5, 0.25),
        ("generate", 0.5, 0.5),
        ("model=fixed:3", 1.0, 0.25, {"commits": 4, **factor}),
    )[1]
    assert again == found


def test_groups_are_all_those_that_loop_little_and_the_tasks():
    runs, found = timed(("plain", 1, 1))
    assert members(runs[0], TASKS) == {
        ALL: [0, 1, 2, 3],
        LOW_REPEAT: [1, 2, 3],
        "task:code": [0, 3],
        "task:math": [1, 2],
    }
    assert [r.prompts for r in found] == [4, 3, 2, 2]
    # 13 8-grams of 20 tokens: one that repeats is 1/13 < 0.1, two are 2/13
    one, two = [*range(8), 99, *range(8), 97, 96, 95], [*range(9), 99, *range(9), 95]
    assert members(replace(runs[0], token=[[one, two]]), ["a", "a"])[LOW_REPEAT] == [0]
    looping = rows([replace(runs[0], token=[[LOOP] * 4] * 3)], TASKS)
    empty = row(looping, "plain", LOW_REPEAT)
    assert empty.prompts == 0
    assert empty.rate is None
    assert not empty.error


def test_control_a_text_that_differs_is_counted():
    def changed(token, repeat, s):
        return [*token[:-1], 99] if s == 2 and repeat == 1 else token

    _, found = timed(
        ("plain", 1, 1), ("model=fixed:1", 1, 1, {"change": changed}), ("generate", 1, 1)
    )
    assert row(found, "model=fixed:1").equal == 3
    assert row(found, "model=fixed:1", "task:math").equal == 1
    assert row(found, "model=fixed:1", "task:code").equal == 2
    assert row(found, "generate").equal == 4 == row(found, "plain").equal


def made_row(name, rate, group=ALL, **more):
    return Row(name, group, "=" in name or ":" in name, 4, rate=rate, speedup=rate / 10, **more)


def both(name, rate, rate_there, **more):
    return [made_row(name, rate, **more), made_row(name, rate_there, LOW_REPEAT)]


@pytest.mark.parametrize(
    "others, expected",
    [
        ([], PLAIN),
        (both("model=a", 9, 9), PLAIN),  # slower
        (both("model=a", 10, 10), PLAIN),  # no faster
        (both("model=a", 12, 11), "model=a"),
        (both("model=a", 12, 11) + both("model=b", 13, 11), "model=b"),
        (both("model=a", 12, 11) + both("model=b", 13, 9), "model=a"),  # b is fast in loops alone
        (both("model=a", 12, 11, low=0.98, high=1.4), PLAIN),  # not surely
        (both("model=a", 12, 11, low=1.02, high=1.4), "model=a"),
        (
            both("model=a", 12, 11) + both("generate_static", 14, 14),
            PLAIN,
        ),  # somebody else is faster without drafts
        (both("prompt_lookup:10", 30, 30), PLAIN),  # not ours to recommend
        ([replace(made_row("model=a", 12), rate=None, speedup=None, error="no")], PLAIN),
        ([made_row("model=a", 12)], PLAIN),  # ran, but not where texts loop little
    ],
)
def test_nothing_slower_than_no_speculation_is_recommended(others, expected):
    found = [*both("plain", 10, 10), *both("generate", 8, 8), *others]
    assert recommend(found) == expected
    assert verdict(found).startswith(f"recommended: {expected}, ")
    assert ("generate_static is 1.40 times as fast" in verdict(found)) == (
        len(others) == 4 and others[2].contestant == "generate_static"
    )


def test_where_all_texts_loop_all_prompts_decide():
    gone = Row("plain", LOW_REPEAT, False, 0)
    assert (
        recommend(
            [
                made_row("plain", 10),
                gone,
                made_row("model=a", 12),
                replace(gone, contestant="model=a", drafts=True),
            ]
        )
        == "model=a"
    )


def test_a_slow_drafter_is_measured_and_not_recommended():
    _, found = timed(("plain", 1, 1), ("model=slow", 1, 3, {"commits": 2}))
    assert recommend(found) == PLAIN
    assert row(found, "model=slow").per_pass == 2
    _, found = timed(("plain", 1, 1), ("model=quick", 1, 1, {"commits": 2}))
    assert recommend(found) == "model=quick"


def test_over_assisted_takes_the_best_of_both_with_the_same_drafter():
    contestants = [
        ("plain", 1, 1),
        ("model=a", 0, 3, {"commits": 4}),
        ("model=b", 0, 2, {"commits": 4}),
        ("eagle=c", 0, 1, {"commits": 4}),
    ]
    runs, _ = timed(
        *contestants,
        ("assisted:constant", 0, 4, {"commits": 4}),
        ("assisted:heuristic", 0, 5, {"commits": 4}),
    )
    names = {"contestant": "model=b", "assisted": "assisted:constant"}
    assert over_assisted(runs, TASKS)[0] == {"group": ALL, "prompts": 4} | names | {
        "ratio": 2.0,
        "low": None,
        "high": None,
    }
    assert over_assisted(runs[:4], TASKS) == []
    many = [
        replace(r, token=[t * 3 for t in r.token], seconds=[t * 3 for t in r.seconds]) for r in runs
    ]
    assert over(many[2], many[4], list(range(12))) == pytest.approx(
        (2, 2, 2)
    )  # every prompt alike: no width
    with pytest.raises(ValueError, match="no 'plain' among"):
        rows(runs[1:], TASKS)


def failing(name, after):
    """Fails at its call number `after`."""
    calls = [0]

    def begin():
        def once(prompt, budget, sequence):
            calls[0] += 1
            if calls[0] > after:
                raise RuntimeError("no\n room")
            return TEXTS[sequence][:budget], budget

        return once

    return Contestant(name, begin, True)


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_who_cannot_run_says_why_and_the_others_go_on(after):
    clock = Told()
    runs, found = timed(
        clock.contestant("plain", 1, 1),
        failing("generate_static", after),
        clock.contestant("model=a", 1, 2),
        told=clock,
    )
    lost = row(found, "generate_static")
    assert lost.error == "RuntimeError: no room"
    assert lost.rate is None
    assert row(found, "model=a").rate == pytest.approx(20 / 41)
    json.dumps(summary(runs, found, TASKS, {}), allow_nan=False)


def test_plain_may_not_fail():
    with pytest.raises(RuntimeError, match="no"):
        timed(failing("plain", 3))


def test_a_bundle_without_a_small_model_still_races(bundle, tmp_path):
    (tmp_path / "target").symlink_to(bundle / "target")
    _, runs = raced(
        tmp_path, ["prompt_lookup=fixed:2"], ["generate", "assisted:constant"], repeats=1
    )
    assert "model holds no small model" in runs[3].error
    assert not runs[2].error
    assert runs[2].token == runs[0].token
    with pytest.raises(WeightsError, match="cannot be loaded by transformers"):
        load_rival(tmp_path / "model", "float32", "cpu")


def test_what_cannot_be_asked_is_refused():
    assisted = [
        f"assisted{rest}"
        for rest in (
            "",
            ":other",
            ":constant,0",
            ":constant,2,3",
            ":constant,x",
            ":constant,1,0.5,2",
        )
    ]
    for text in (
        "generat",
        "generate:1",
        "prompt_lookup",
        "prompt_lookup:0",
        "prompt_lookup:x",
        *assisted,
    ):
        with pytest.raises(RivalError, match="is unknown; expected generate, "):
            check_rival(text)
    options = {
        "num_assistant_tokens_schedule": "heuristic",
        "num_assistant_tokens": 5,
        "assistant_confidence_threshold": 0.0,
    }
    assert check_rival("assisted:heuristic,5,0") == ("assisted", options)
    for text in ("model", "model=", "=fixed:1"):
        with pytest.raises(RivalError, match="no drafter=policy"):
            check_own(text)
    with pytest.raises(RivalError, match="only replayed"):
        check_own("model=oracle")
    with pytest.raises(ValueError, match="did you mean fixed"):
        check_own("model=fixd:1")
    with pytest.raises(RivalError, match="needs a small model"):
        rival("assisted:constant", None)
    for contestants, prompts, repeats in (
        ([failing("a", 0)] * 2, [[1]], 1),
        ([failing("a", 0)], [], 1),
        ([failing("a", 0)], [[1]], 0),
    ):
        with pytest.raises(ValueError, match="no contestant twice"):
            race(contestants, prompts, [1] * len(prompts), repeats=repeats)


def test_warnings_are_not_swallowed_but_for_the_one(bundle):
    load_rival(bundle / "model", "float64", "cpu")
    log = logging.getLogger("transformers.generation.utils")
    say = lambda text: log.filter(
        logging.LogRecord(log.name, logging.WARNING, "", 0, text, (), None)
    )  # noqa: E731
    assert say("another warning")
    assert not say("Passing `generation_config` together with generation-related arguments")


def test_the_command_races_on_the_embedded_models(tmp_path, monkeypatch):
    given = [
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
    ]
    files = "--out", "r.json", "--plot", "p.png"
    code, out, _ = command(
        tmp_path, *given, "--rival", "generate", "--rival", "assisted:constant", "--json", *files
    )
    said = json.loads(out)
    assert code == 0
    assert said == json.loads((tmp_path / "r.json").read_text())
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert said["device"].startswith("cpu")
    assert said["matmul"] == "highest"
    assert {"torch", "transformers"} <= said["versions"].keys()
    here = [r for r in said["rows"] if r["group"] == ALL]
    assert [r["contestant"] for r in here] == [
        "plain",
        "model=fixed:1",
        "generate",
        "assisted:constant",
    ]
    assert all(r["equal"] == 1 and r["rate"] > 0 and not r["error"] for r in here)
    assert said["recommended"] in ("plain", "model=fixed:1")
    assert said["raw"]["plain"]["tokens"][0] == said["raw"]["generate"]["tokens"][0]

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("real.jobs.race.race", interrupted)
    code, _, _ = command(tmp_path, *given, "--rival", "none", "--out", "other.json")
    assert code != 0
    assert {p.name for p in tmp_path.iterdir()} == {"r.json", "p.png"}


def test_the_command_says_what_it_found(tmp_path):
    given = (
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
    )
    code, out, _ = command(tmp_path, *given)
    assert code == 0
    assert "recommended: " in out.splitlines()[-1]
    assert "times plain by task" in out
    refused(tmp_path, *given, "--engine", "quick", words="engine 'quick' is unknown")
    refused(
        tmp_path,
        *given,
        "--cost",
        "eagle=c.json",
        words="expected drafter=COST.json, of a drafter among model",
    )
    refused(tmp_path, *given, "--out", "no/r.json", words="there is no folder no")
    refused(tmp_path, *given, "--out", "a", "--plot", "a", words="a would overwrite a")
    refused(tmp_path, *given, "--repeats", 0, words="--repeats is 0")
    refused(tmp_path, *given, "--rival", "generat", words="expected none alone")
    refused(tmp_path, *given, "--contestant", "modell=fixed:1", words="did you mean model?")
    code, out, _ = command(tmp_path, "race", "--help")
    assert code == 0
    assert "Example:" in out
    assert "--json" in out


def told_of(names, seed, repeats=2, prompts=5):
    """(what each call was, in order) of a race: contestant, the number of its `begin`, prompt, budget; and its warmings between."""
    heard = []

    def contestant(name):
        began = []

        def begin():
            began.append(0)
            mine = len(began)

            def once(prompt, budget, sequence):
                heard.append((name, mine, sequence, budget))
                return [5] * budget, budget

            return once

        return Contestant(name, begin, name != "plain", warm=lambda: heard.append((name, "warm")))

    race(
        [contestant(name) for name in names],
        [[1]] * prompts,
        [4 + s for s in range(prompts)],
        repeats=repeats,
        seed=seed,
    )
    return heard


def test_calls_are_shuffled_and_each_contestant_meets_the_prompts_in_their_order():
    names, prompts = ["plain", "model=fixed:1", "generate"], 5
    heard = told_of(names, 3)
    warmed = [i for i, each in enumerate(heard) if each[1] == "warm"]
    assert [
        heard[i][0] for i in warmed
    ] == names  # each once, behind its own first calls and before all that count
    counted = heard[warmed[-1] + 1 :]
    assert all(each[0] == heard[i][0] for i in warmed for each in heard[i - 2 : i])
    assert len(counted) == 3 * prompts * (2 + 1)
    for name in names:
        whole = [
            (began, sequence)
            for who, began, sequence, budget in counted
            if who == name and budget > 1
        ]
        first = [
            (began, sequence)
            for who, began, sequence, budget in counted
            if who == name and budget == 1
        ]
        states = sorted({began for began, _ in whole})
        assert whole == [(began, s) for began in states for s in range(prompts)]
        assert len(states) == 2
        assert [s for _, s in first] == list(range(prompts))
        assert len({began for began, _ in first} - set(states)) == prompts  # none of these
    order = [each[0] for each in counted]
    assert order != sorted(order, key=names.index)
    assert len({tuple(each[0] for each in told_of(names, seed)) for seed in range(4)}) == 4
    assert told_of(names, 3) == heard
