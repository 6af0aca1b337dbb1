"""A killed race continues from its finished repeats, and a damaged file is refused."""

import json
from dataclasses import replace

import pytest
from race_clock import TASKS, Clock, requests

from real.bench.hf_generate import Tuning
from real.bench.race import Contestant, race
from real.bench.race_rows import race_rows
from real.bench.saved import RaceFile

SETTINGS = {"seed": 0}
COLUMNS = "token", "passes", "seconds"


class Killed(BaseException):
    pass


def entries(clock, kill=10**9):
    """Contestants of which the last is killed at its call number `kill`; counts of their calls."""
    calls = {"plain": 0, "model=fixed:1": 0}

    def counted(contestant):
        def begin():
            generate = contestant.begin()

            def call(request):
                calls[contestant.name] += 1
                if contestant.name != "plain" and calls[contestant.name] > kill:
                    raise Killed
                return generate(request)

            return call

        return replace(contestant, begin=begin)

    return [
        counted(clock.contestant(name, 1, i + 1, factor=(1,) * 5)) for i, name in enumerate(calls)
    ], calls


def raced(path, kill=10**9):
    clock = Clock()
    contestants, calls = entries(clock, kill)
    kept = RaceFile(path, SETTINGS)
    runs = race(contestants, requests(4, 20), 5, timer=clock, kept=kept)
    return runs, calls


def test_killed_race_continues_with_the_repeat_that_was_not_finished(tmp_path):
    path = tmp_path / "s.json"
    warm, first = 2, 4
    with pytest.raises(Killed):
        raced(path, kill=warm + first + 2 * 4 + 1)  # in the third repeat
    kept = RaceFile(path, SETTINGS)
    assert [len(runs.seconds) for runs in kept.load()] == [2, 2]
    runs, calls = raced(path)
    assert calls == dict.fromkeys(calls, warm + 3 * 4)
    assert [len(each.seconds) for each in runs] == [5, 5]
    assert race_rows(runs, TASKS) == race_rows(raced(None)[0], TASKS)
    again, calls = raced(path)
    assert again == runs
    assert set(calls.values()) == {0}


def test_order_of_a_continued_race_is_that_of_an_unbroken_one(tmp_path):
    def order(kept, repeats):
        calls = []

        def contestant(name):
            def generate(request):
                calls.append((name, request.address))
                return [5] * request.budget, request.budget

            return Contestant(name, lambda: generate, False)

        race([contestant(n) for n in ("plain", "a", "b")], requests(4, 20), repeats, kept=kept)
        return calls

    whole = order(None, 3)
    path = tmp_path / "s.json"
    order(RaceFile(path, SETTINGS), 2)
    rest = order(RaceFile(path, SETTINGS), 3)
    assert rest[-12:] == whole[-12:]
    assert whole[-12:] != whole[-24:-12]


def test_tuning_and_revisions_are_kept(tmp_path):
    path = tmp_path / "s.json"
    tuning = {
        "prompt_lookup:tuned": Tuning("prompt_lookup:2,2", {"prompt_lookup:2,2": 3.0}, ("a",))
    }
    RaceFile(path, SETTINGS, "one").save_tuning(tuning)
    assert RaceFile(path, SETTINGS, "two").tuning == tuning
    kept = RaceFile(path, SETTINGS, "two")
    assert kept.revisions == ["one", "two"]
    assert kept.load() == []
    with pytest.raises(ValueError, match="s.json was made with seed 0, this is 1"):
        RaceFile(path, {"seed": 1})
    assert RaceFile(None, SETTINGS).tuning is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda saved: saved.pop("runs"),
        lambda saved: saved.pop("revisions"),
        lambda saved: saved.update(tuning=5),
        lambda saved: saved["runs"][0].update(surplus=1),
        lambda saved: saved["runs"][0].update(error=5),
        lambda saved: saved["runs"][0]["seconds"].pop(),
        lambda saved: saved["runs"][0]["seconds"][0].pop(),
        lambda saved: saved["runs"][0]["seconds"][0].__setitem__(0, 0.0),
        lambda saved: saved["runs"][0]["seconds"][0].__setitem__(0, "1"),
        lambda saved: saved["runs"][0]["passes"][1].__setitem__(2, float("nan")),
        lambda saved: saved["runs"].reverse(),
        lambda saved: saved["runs"].pop(),
        lambda saved: [runs["first"].pop() for runs in saved["runs"]],
        lambda saved: [runs[c].pop() for runs in saved["runs"][1:] for c in COLUMNS],
        lambda saved: [each.pop() for r in saved["runs"] for c in COLUMNS for each in r[c]],
    ],
)
def test_damaged_file_is_refused_in_one_line(tmp_path, spoil):
    path = tmp_path / "s.json"
    raced(path)
    saved = json.loads(path.read_text())
    spoil(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="s.json holds |name another file") as caught:
        raced(path)
    assert "\n" not in str(caught.value)
