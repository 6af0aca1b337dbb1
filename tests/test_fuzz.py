"""Damaged files of every kind: documented errors, soon and in little memory.

A few hundred files; with SIMSPEC_SLOW a hundred thousand, in pieces that may run in parallel.
"""

import os
from collections import Counter

import fuzz
import pytest

SLOW = bool(os.environ.get("SIMSPEC_SLOW"))
FILES, PIECES = (100_000, 20) if SLOW else (400, 1)


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    return fuzz.Fuzzer("fuzz_readers", 0, tmp_path_factory.mktemp("fuzz") / "work")


@pytest.mark.skipif(SLOW, reason="the slow suite has processes that may hang or die")
def test_damaged_files_give_documented_errors(fuzzer):
    refused, kinds = 0, Counter()
    for number in range(FILES):
        outcome = fuzzer.examine(number)
        assert not outcome.fault, outcome
        refused += outcome.refused
        kinds[outcome.kind] += 1
    assert refused > FILES / 2
    assert len(kinds) > len(fuzzer.kinds) / 2


@pytest.mark.skipif(not SLOW, reason="minutes")
@pytest.mark.parametrize("piece", range(PIECES))
def test_a_hundred_thousand_damaged_files(piece, record_property):
    size = FILES // PIECES
    given = ["--first", piece * size, "--files", size, "--out", "out/fuzz"]
    result = fuzz.fuzz(fuzz.parse(list(map(str, given))))
    assert result["files"] == size
    assert result["faults"] == []
    record_property("measured", f"files {given[1]} on: {size} in {result['seconds']} s, no fault")


def test_files_depend_on_seed_and_number_alone(fuzzer):
    made = [fuzzer.made(number) for number in range(40)]
    assert made == [fuzzer.made(number) for number in range(40)]
    assert len(set(made)) > 35


def test_every_valid_file_is_read(fuzzer):
    """Control: the readers take what was not damaged."""
    for name in fuzzer.kinds:
        if name != "tokenizer":
            assert fuzzer.samples_of(name)


PLANTED = {
    "no_check_of_keys": "KeyError: 'rows'", "no_check_of_nesting": "RecursionError",
    "two_lines": "a message of 2 lines", "slow": "it took 2.", "hangs": "no answer within 1.5 s",
    "declared_size": "MiB for a file of", "memory_hidden": "memory ran out first",
    "aborts": "its process ended with -6", "warns": "RuntimeWarning",
}  # fmt: skip


@pytest.mark.parametrize("reader", PLANTED)
def test_control_planted_bugs_are_found(reader):
    wall = "1.5" if reader == "hangs" else "30"
    given = ["--readers", "fuzz_planted", "--only", reader, "--wall", wall]
    outcomes = fuzz.outcomes(fuzz.parse([*given, "--files", "300"]), range(300))
    fault = next(outcome.fault for outcome in outcomes if outcome.fault)
    outcomes.close()
    assert PLANTED[reader] in fault


def test_control_a_sound_reader_has_no_fault():
    given = ["--readers", "fuzz_planted", "--only", "sound", "--files", "300", "--jobs", "2"]
    result = fuzz.fuzz(fuzz.parse(given))
    assert result["files"] == 300
    assert result["faults"] == []
    assert result["kinds"]["sound"]["refused"] > 150


def test_one_bug_does_not_end_the_run():
    """Files behind one that kills its reader are read by the next process."""
    given = ["--readers", "fuzz_planted", "--only", "aborts", "--files", "60"]
    result = fuzz.fuzz(fuzz.parse(given))
    assert result["files"] == 60
    assert {fault["fault"] for fault in result["faults"]} == {"its process ended with -6"}
