"""Validators of export formats: right documents pass, and each wrong one is refused in one line."""

import pytest
from export_documents import MORE_RIGHT, RIGHT
from export_mutations import WRONG

from simspec.engines import sglang, tensorrt_llm, vllm
from simspec.engines.choice import Schedule
from simspec.engines.documents import parse_json, parse_yaml
from simspec.engines.formats import EXPORTS
from simspec.engines.request import Settings

CASES = [(name, *case) for name, cases in WRONG.items() for case in cases]
LOWER = Settings(engine_version="1.2.0")
SCHEDULE = RIGHT["tensorrt-llm"][0]


@pytest.mark.parametrize("name", EXPORTS)
def test_right_document_passes(name):
    text, settings = RIGHT.get(name, (EXPORTS[name].right, Settings()))
    EXPORTS[name].validate(text, settings)


@pytest.mark.parametrize("name, text, settings", MORE_RIGHT)
def test_other_right_documents_pass(name, text, settings):
    EXPORTS[name].validate(text, settings)


@pytest.mark.parametrize("name", [name for name in EXPORTS if name not in RIGHT])
def test_wrong_documents_that_a_format_declares_are_refused(name):
    assert EXPORTS[name].right
    assert EXPORTS[name].wrong
    for text in EXPORTS[name].wrong:
        with pytest.raises(ValueError):
            EXPORTS[name].validate(text, Settings())


@pytest.mark.parametrize("name", RIGHT)
def test_twenty_different_wrong_documents(name):
    right = RIGHT[name][0]
    assert len({right.replace(old, new, 1) for old, new, _ in WRONG[name]} - {right}) >= 20


@pytest.mark.parametrize("name, old, new, words", CASES)
def test_wrong_document_is_refused_in_one_line(name, old, new, words):
    right, settings = RIGHT[name]
    wrong = right.replace(old, new, 1)
    assert wrong != right
    with pytest.raises(ValueError) as caught:
        EXPORTS[name].validate(wrong, settings)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("text", ["", "\x00", "[" * 100_000, "9" * 5000, "{" * 50, None, 7])
def test_what_is_no_document_is_refused(name, text):
    with pytest.raises(ValueError) as caught:
        EXPORTS[name].validate(text, Settings(engine_version="1.3.0"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, settings, words",
    [
        (SCHEDULE, Settings(), "give --engine-version"),
        (SCHEDULE, Settings(engine_version="1.3.0rc9"), "among the candidates of 1.3.0"),
        (SCHEDULE, Settings(engine_version="new"), "engine version is 'new'"),
        (SCHEDULE, LOWER, "starts at 4, expected 1"),
        (SCHEDULE.replace("    4: 4", "    1: 3"), LOWER, "expected max_draft_len, 4"),
    ],
)
def test_tensorrt_schedule_depends_on_the_version(text, settings, words):
    with pytest.raises(ValueError, match=words):
        EXPORTS["tensorrt-llm"].validate(text, settings)


@pytest.mark.parametrize(
    "version, upper",
    [
        ("0.21.0", False), ("1.1.0rc5", False), ("v1.2", False), ("1.2.1", False),
        ("1.3.0rc27", True), ("1.3.0", True), ("1.3", True), ("1.4.0rc1", True), ("2.0.0", True),
    ],
)  # fmt: skip
def test_versions_of_tensorrt(version, upper):
    assert tensorrt_llm.upper_bounds(version) is upper


@pytest.mark.parametrize("batch, upper, lower", [(1, 4, 4), (4, 4, 4), (5, 2, 4), (33, 0, 1)])
def test_engine_rule_of_tensorrt(batch, upper, lower):
    config = tensorrt_llm.read(SCHEDULE, "1.3.0")
    assert tensorrt_llm.length_at(config, batch, upper=True) == upper
    schedule = {"draft_len_schedule": {1: 4, 8: 2, 32: 1}}
    assert tensorrt_llm.length_at(schedule, batch, upper=False) == lower


def test_control_bounds_read_as_the_other_kind_draft_otherwise():
    schedule = {"draft_len_schedule": tensorrt_llm.bounds(Schedule((4, 8), (4, 2)), upper=False)}
    assert tensorrt_llm.length_at(schedule, 3, upper=False) == 4
    assert tensorrt_llm.length_at(schedule, 3, upper=True) == 2


@pytest.mark.parametrize("batch, length", [(1, 5), (8, 5), (9, 3), (128, 1), (9999, 1)])
def test_engine_rule_of_vllm(batch, length):
    config = vllm.read(RIGHT["vllm"][0])
    assert vllm.length_at(config, batch) == length


@pytest.mark.parametrize(
    "batch, captured, steps",
    [
        (7, None, [1, 3, 5]), (8, None, [0, 2]), (6, (1, 2, 4, 8), [0, 2]),
        (4, (1, 2, 4, 8), [1, 3, 5]), (99, (1, 2, 4, 8), [0, 2]),
    ],
)  # fmt: skip
def test_engine_rule_of_sglang_pads_first(batch, captured, steps):
    config = sglang.read_adaptive(RIGHT["sglang-adaptive"][0])
    assert sglang.steps_at(config, batch, captured) == steps


def test_sglang_starts_at_a_candidate():
    sglang.read_adaptive(RIGHT["sglang-adaptive"][0], start=5)
    with pytest.raises(ValueError, match="num-steps is 4"):
        sglang.read_adaptive(RIGHT["sglang-adaptive"][0], start=4)


def test_uncaptured_rows_are_allowed_where_asked():
    wide = RIGHT["vllm"][0].replace("[33, 128, 1]", "[33, 128, 5]")
    assert vllm.read(wide, captured=0)["num_speculative_tokens"] == 5


@pytest.mark.parametrize("parse, limit", [(parse_json, "MAX_JSON"), (parse_yaml, "MAX_YAML")])
def test_huge_text_is_refused_before_it_is_read(parse, limit, monkeypatch):
    monkeypatch.setattr(f"simspec.engines.documents.{limit}", 9)
    assert parse("123456789", "document") == 123456789
    with pytest.raises(ValueError, match="at most 9 characters"):
        parse("1234567890", "document")


@pytest.mark.parametrize("text", ["<<: {a: 1}", "? [a]\n: 1", "- " * 9000, "[" * 65])
def test_yaml_beyond_plain_values_is_refused(text):
    with pytest.raises(ValueError, match="document"):
        parse_yaml(text, "document")
