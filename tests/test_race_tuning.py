"""Transformers' draft lengths are tuned on prompts that do not race."""

import pytest
from race_clock import Clock, failing, requests

from real.bench.hf_generate import (
    HF_METHODS,
    LENGTHS,
    NGRAMS,
    candidates,
    check_methods,
    other_prompts,
    parse_hf_method,
    resolve,
    tune,
    with_plain,
)
from real.bench.race import ContestantError
from simspec import synthetic


def test_candidates_are_every_length_with_the_other_options():
    assert candidates("assisted:constant,tuned,0") == [f"assisted:constant,{n},0" for n in LENGTHS]
    assert candidates("assisted:heuristic,tuned") == [f"assisted:heuristic,{n}" for n in LENGTHS]
    assert candidates("early_exit:4,tuned") == [f"early_exit:4,{n}" for n in LENGTHS]
    assert len(candidates("prompt_lookup:tuned")) == len(LENGTHS) * len(NGRAMS)
    assert candidates("prompt_lookup:tuned,4") == [f"prompt_lookup:{n},4" for n in LENGTHS]
    for method in ("generate", "assisted:heuristic", "prompt_lookup:3"):
        assert candidates(method) == [method]
    for method in HF_METHODS:
        for candidate in candidates(method):
            parse_hf_method(candidate)
    for method in ("assisted:tuned", "early_exit:tuned,2,0,1", "tuned", "generate:tuned"):
        with pytest.raises(ContestantError, match="is unknown"):
            check_methods([method])


def test_transformers_plain_decoding_always_races():
    assert with_plain([]) == []
    assert with_plain(["prompt_lookup:3"]) == ["generate", "prompt_lookup:3"]
    assert with_plain(["prompt_lookup:3", "generate"]) == ["generate", "prompt_lookup:3"]


def test_prompts_of_the_tuning_do_not_race():
    trace = synthetic.iid(0.6, 12, 20, 3)
    raced = trace.select([0, 3, 6, 9])
    for count, expected in ((5, 5), (20, 8)):
        others = other_prompts(trace, raced, count)
        assert others.sequences == expected
        assert not set(others.sequence.tolist()) & set(raced.sequence.tolist())
    with pytest.raises(ValueError, match="all 12 prompts race; expected others"):
        other_prompts(trace, trace, 5)


def test_fastest_candidate_is_chosen_by_tokens_over_seconds():
    clock = Clock()

    def make(names):
        lengths = {name: int(name.partition(",")[2].partition(",")[0]) for name in names}
        return [
            clock.contestant(name, 0, 1 + 0.1 * n**2, commits=1 + n) for name, n in lengths.items()
        ]

    tuned = "assisted:constant,tuned,0"
    found = tune(["generate", tuned], make, requests(4, 20), ["a", "b", "c", "d"], timer=clock)
    assert found.keys() == {tuned}
    rates = {
        f"assisted:constant,{n},0": 20 / (-(-20 // (1 + n)) * (1 + 0.1 * n**2)) for n in LENGTHS
    }
    assert found[tuned].rates == pytest.approx(rates)
    assert found[tuned].chosen == max(rates, key=rates.get) == "assisted:constant,3,0"
    assert found[tuned].prompts == ("a", "b", "c", "d")
    assert resolve(["generate", tuned], found) == ["generate", "assisted:constant,3,0"]
    assert resolve([tuned, "assisted:constant,3,0"], found) == ["assisted:constant,3,0"]
    assert tune(["generate"], make, requests(4, 20), [], timer=clock) == {}


def test_failing_candidates_are_left_out():
    clock = Clock()

    def tuned(broken):
        def make(names):
            return [
                failing(name, 0) if name in broken else clock.contestant(name, 1, 1)
                for name in names
            ]

        prompts = requests(4, 20), ["a", "b", "c", "d"]
        return tune(["assisted:constant,tuned"], make, *prompts, timer=clock)[
            "assisted:constant,tuned"
        ]

    names = candidates("assisted:constant,tuned")
    assert tuned(names[:1]).rates.keys() == set(names[1:])
    found = tuned(names)
    assert found.chosen == "assisted:constant,1"
    assert found.rates == {}
