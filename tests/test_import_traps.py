"""Definitions that other tools count by, and what misreading them would conclude.

| trap | test |
| --- | --- |
| bonus token counted or not | here; test_import_totals, test_import_rounds: `..bonus_token..` |
| SGLang's length holds the prefill's token | test_import_totals: `test_sglangs_own_length_..` |
| SGLang's proposed drafts, wrong under adaptive | test_import_totals: `test_sglangs_proposed_..` |
| SGLang's renamed fields read as 0 | test_import_totals: `..other_names..`, `..unknown_rename..` |
| llama.cpp's rounds without drafts, first token | test_import_totals: `test_llamacpps_passes_..` |
| AIPerf's invented histogram of llama.cpp | test_import_totals: `test_aiperfs_histogram_..` |
| rate of tested tokens, or of drafted ones | here |
| per cent, or share | test_import_totals: `test_bench_serves_rate_..` |
| mean over rounds, or over requests | test_import_rounds, test_import_published: `..two_means` |
| vLLM omits steps without drafts, and n > 1 | test_import_rounds: `test_steps_without_..`; here |
| streams repeat figures | test_import_totals: `test_chunks_of_one_stream_..` |
| one histogram of several draft lengths | here; test_import_totals: `test_a_histogram_of_..` |
| no draft length under a schedule | test_import_totals: `test_tensorrt_under_a_schedule_..` |
| last rounds cut by the token limit | here; test_import_rounds: `test_a_last_round_cut_..` |
| marginal rates, or conditional ones | here |
| EAGLE's `idxs` is the last index | test_import_totals: `test_eagles_indices_..` |
| Spec-Bench's lists run over turns; plain runs are 1s | here; test_import_rounds: `..plain_run..` |
| histograms keyed by emitted tokens | test_import_totals: `test_model_optimizer_is_read_by_..` |
| lengths by K of a chain model | test_round_trips: `test_lengths_of_a_chain_..` |
| positions of SpecDecode-Bench count the bonus token | test_import_exact: `test_wrong_files_..` |
"""

import pytest
from import_files import FIXTURES, FORMAT_OF, changed, rows_of

from simspec.engines.formats import read_import
from simspec.engines.import_report import depth_counts, import_report, length_at
from simspec.engines.source import ImportOptions

RATE = {
    "vllm-requests.jsonl": "draft_acceptance_rate",
    "aiperf.jsonl": "draft_acceptance_rate",
    "tensorrt-llm.jsonl": "acceptance_rate",
    "sglang.jsonl": "spec_accept_rate",
}
TESTED = [6 / 9, 4 / 6]
"""Accepted of tested tokens of the fixtures' two requests: [3, 1, 0, 2] and [0, 3, 1] of 3 each."""


def holder(value, key):
    """The object that holds the key, in a row of JSON."""
    if isinstance(value, dict) and value.get(key) is not None:
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for part in parts if (found := holder(part, key)) is not None), None)


@pytest.mark.parametrize("name", RATE)
def test_a_rate_of_tested_tokens_is_refused(tmp_path, name):
    rates = iter(TESTED)

    def change(row):
        if (found := holder(row, RATE[name])) is not None:
            found[RATE[name]] = next(rates)

    path = changed(tmp_path / "f", name, change)
    with pytest.raises(ValueError, match="accepted / drafted tokens"):
        read_import(FORMAT_OF[name], path)


def test_control_the_rate_of_drafted_tokens_is_read():
    for name in RATE:
        assert read_import(FORMAT_OF[name], FIXTURES / name)


def test_a_rate_of_tested_tokens_in_a_log_is_refused(tmp_path):
    text = (FIXTURES / "llamacpp-log-older.txt").read_text()
    assert "0.57576" in text
    (tmp_path / "f").write_text(text.replace("0.57576", "0.77576"))
    with pytest.raises(ValueError, match="accepted / drafted tokens"):
        read_import("llamacpp-log", tmp_path / "f")


@pytest.mark.parametrize(
    "name, pairs",
    [
        ("speculators.csv", [("0.5556,0.3333,0.2222", "0.5556,0.6000,0.6667")]),
        ("vllm-log.txt", [("0.556, 0.333, 0.222", "0.556, 0.600, 0.667")]),
        ("llamacpp-log.txt", [("0.556, 0.333, 0.222", "0.556, 0.600, 0.667")]),
        ("vllm-synthetic.json", [("0.555556, 0.333333, 0.222222", "0.555556, 0.6, 0.666667")]),
    ],
)
def test_conditional_rates_in_place_of_marginals_are_refused(tmp_path, name, pairs):
    text = (FIXTURES / name).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "f").write_text(text)
    with pytest.raises(ValueError, match="positions sum to|never grow|rises with depth"):
        read_import(FORMAT_OF[name], tmp_path / "f")


def test_responses_of_several_choices_are_counted_as_left_out():
    notes = read_import("vllm-requests", FIXTURES / "vllm-requests.jsonl").notes
    assert notes[-1] == "responses left out, without acceptance (n > 1, or no drafts): 1"


@pytest.mark.parametrize(
    "name",
    ["vllm-requests.jsonl", "sglang-stats.jsonl", "aiperf.jsonl", "spec-bench.jsonl",
     "angelslim.jsonl"],
)  # fmt: skip
def test_last_rounds_that_a_limit_may_have_cut_are_counted(name):
    notes = import_report(read_import(FORMAT_OF[name], FIXTURES / name))["notes"]
    assert notes[-1].startswith("2 of 7 rounds are a request's last")


def without_lists(row):
    stats = row["spec_decode_acceptance"]
    del stats["per_step_accepted"]
    del stats["per_step_drafted"]


def test_aiperfs_histogram_of_several_draft_lengths_is_withheld(tmp_path):
    path = changed(tmp_path / "f", "aiperf.jsonl", without_lists)
    result = read_import("aiperf", path)
    assert depth_counts(result) == {}
    with pytest.raises(ValueError, match="several draft lengths are in one histogram"):
        length_at(result, 3)


@pytest.mark.parametrize("name", ["aiperf.jsonl", "vllm-requests-summary.jsonl"])
def test_histograms_of_emitted_tokens_are_refused(tmp_path, name):
    def change(row):
        stats = holder(row, "acceptance_histogram")
        counts = stats["acceptance_histogram"]
        if isinstance(counts, dict):
            without_lists(row)
            stats["acceptance_histogram"] = {str(int(j) + 1): n for j, n in counts.items()}
        else:
            stats["acceptance_histogram"] = [0, *counts[:-1]]

    path = changed(tmp_path / "f", name, change)
    with pytest.raises(ValueError, match="bonus token"):
        read_import(FORMAT_OF[name], path)


def test_lists_of_several_turns_are_one_request():
    (first, _) = rows_of("spec-bench.jsonl")
    assert len(first["choices"][0]["decoding_steps"]) == 2
    result = read_import("spec-bench", FIXTURES / "spec-bench.jsonl", ImportOptions(drafted=3))
    assert result.offset.tolist() == [0, 4, 7]
