"""Sums over rounds: what they determine, and every definition that another tool counts by."""

import numpy as np
import pytest
from import_files import FIXTURES, changed, rows_of, written

from simspec.engines.formats import read_import
from simspec.engines.import_report import depth_counts, depth_curve, import_report, length_at
from simspec.engines.source import ImportOptions, read_source

DEPTH = "acceptance by depth"
NINE = [5 / 9, 3 / 9, 2 / 9]
"""Marginals of 9 rounds of 3 drafts of which 5, 3 and 2 accepted at least 1, 2 and 3 tokens."""


def marginals(result):
    """{K: marginals} of a result."""
    return {
        K: [point.marginal for point in depth_curve(counts)]
        for (_, K), counts in depth_counts(result).items()
    }


def edited(path, name, *pairs):
    """A fixture's copy with some text replaced."""
    text = (FIXTURES / name).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "format, name",
    [
        ("vllm-prometheus", "vllm-prometheus.txt"),
        ("vllm-bench-serve", "vllm-bench-serve.json"),
        ("llamacpp-log", "llamacpp-log.txt"),
        ("llamacpp-prometheus", "llamacpp-prometheus.txt"),
        ("tensorrt-llm-prometheus", "tensorrt-llm-prometheus.txt"),
        ("angelslim", "angelslim-vllm.json"),
        ("model-optimizer", "model-optimizer.json"),
    ],
)
def test_totals_of_nine_rounds(format, name):
    result = read_import(format, FIXTURES / name)
    assert (result.rounds, result.accepted) == (9, 10)
    assert result.length == pytest.approx(1 + 10 / 9)
    assert marginals(result)[3] == pytest.approx(NINE)
    assert length_at(result, 3) == {"": pytest.approx(1 + sum(NINE))}
    with pytest.raises(ValueError, match="start at other tokens"):
        length_at(result, 1)


@pytest.mark.parametrize("format", ["tensorrt-llm", "sglang"])
def test_sums_of_requests_keep_requests(format):
    options = ImportOptions(drafted=3 if format == "sglang" else None)
    result = read_import(format, FIXTURES / f"{format}.jsonl", options)
    (counts,) = depth_counts(result).values()
    assert counts.tried[:, 0].tolist() == [4, 3]
    assert counts.accepted.tolist() == [[3, 2, 1], [2, 1, 1]]
    assert result.length_per_request == pytest.approx((2.5 + 1 + 4 / 3) / 2)


def test_vllm_summaries_are_kept_by_draft_length():
    result = read_import("vllm-requests", FIXTURES / "vllm-requests-summary.jsonl")
    assert marginals(result)[3] == pytest.approx([4 / 6, 3 / 6, 2 / 6])
    assert marginals(result)[2] == pytest.approx([1, 0])
    with pytest.raises(ValueError, match="draft length varies"):
        length_at(result, 3)


def test_a_histogram_of_several_lengths_is_withheld(tmp_path):
    def change(row):
        stats = row["metrics"]["speculative_decoding"]
        del stats["acceptance_histogram_by_draft_length"]

    path = changed(tmp_path / "f", "vllm-requests-summary.jsonl", change)
    result = read_import("vllm-requests", path)
    assert depth_counts(result) == {}
    assert "several draft lengths" in result.withheld[DEPTH]
    assert result.length == pytest.approx(1 + 10 / 7)


def test_a_histogram_of_one_length_is_read_without_keys(tmp_path):
    row = rows_of("vllm-requests-summary.jsonl")[0]
    del row["metrics"]["speculative_decoding"]["acceptance_histogram_by_draft_length"]
    result = read_import("vllm-requests", written(tmp_path / "f", [row]))
    assert marginals(result) == {3: pytest.approx([3 / 4, 2 / 4, 1 / 4])}


def test_counters_since_an_earlier_scrape():
    before = read_source("vllm-prometheus", FIXTURES / "vllm-prometheus-before.txt")
    path = FIXTURES / "vllm-prometheus.txt"
    result = read_import("vllm-prometheus", path, ImportOptions(before=before))
    assert (result.rounds, result.drafted, result.accepted) == (5, 15, 6)
    assert marginals(result)[3] == pytest.approx([3 / 5, 2 / 5, 1 / 5])
    later = read_source("vllm-prometheus", path)
    with pytest.raises(ValueError, match="counts more than"):
        read_import(
            "vllm-prometheus", FIXTURES / "vllm-prometheus-before.txt", ImportOptions(before=later)
        )


def test_counters_of_two_engines_add_up_and_of_two_models_do_not(tmp_path):
    text = (FIXTURES / "vllm-prometheus.txt").read_text()
    path = tmp_path / "two.txt"
    path.write_text(text + text.replace('engine="0"', 'engine="1"'))
    assert read_import("vllm-prometheus", path).rounds == 18
    path.write_text(text + text.replace('"llama"', '"other"'))
    with pytest.raises(ValueError, match="2 models"):
        read_import("vllm-prometheus", path)


def test_counters_of_varying_draft_lengths_are_withheld(tmp_path):
    path = edited(tmp_path / "f", "vllm-prometheus.txt", ("} 27.0", "} 20.0"))
    result = read_import("vllm-prometheus", path)
    assert "several draft lengths" in result.withheld[DEPTH]
    assert result.length == pytest.approx(1 + 10 / 9)


def test_few_short_drafts_are_noted(tmp_path):
    path = edited(
        tmp_path / "f", "vllm-prometheus.txt", ("} 9.0", "} 900.0"), ("} 27.0", "} 2691.0")
    )  # 900 rounds, 9 tokens short
    result = read_import("vllm-prometheus", path)
    assert result.draft_length == 3
    assert any("9 drafted tokens fewer" in note and "0.0100" in note for note in result.notes)


def test_log_lines_are_summed():
    result = read_import("vllm-log", FIXTURES / "vllm-log.txt")
    assert (result.rounds, result.drafted, result.accepted) == (13, 39, 14)
    assert marginals(result)[3] == pytest.approx([7 / 13, 4 / 13, 3 / 13])


def test_a_last_draft_cut_short_counts_as_a_round_of_a_log(tmp_path):
    cut = ("Drafted: 12 tokens", "Drafted: 10 tokens")
    result = read_import("vllm-log", edited(tmp_path / "f", "vllm-log.txt", cut))
    assert (result.rounds, result.drafted, result.accepted) == (13, 37, 14)


def test_log_lines_of_varying_draft_lengths_give_the_rate_only(tmp_path):
    path = edited(tmp_path / "f", "vllm-log.txt", ("length: 2.11", "length: 1.77"))
    result = read_import("vllm-log", path)
    assert (result.rounds, result.length) == (None, None)
    assert (result.drafted, result.accepted) == (39, 14)
    assert any(DEPTH in key for key in result.withheld)


def test_bench_serves_rate_is_in_per_cent(tmp_path):
    def change(row):
        row["spec_decode_acceptance_rate"] /= 100

    with pytest.raises(ValueError, match="37.04 per cent"):
        read_import("vllm-bench-serve", changed(tmp_path / "f", "vllm-bench-serve.json", change))


def test_a_length_without_the_bonus_token_is_refused(tmp_path):
    def change(row):
        row["spec_decode_acceptance_length"] -= 1

    with pytest.raises(ValueError, match="with the bonus token"):
        read_import("vllm-bench-serve", changed(tmp_path / "f", "vllm-bench-serve.json", change))


def test_sglangs_own_length_contains_the_prefills_token():
    result = read_import("sglang", FIXTURES / "sglang.jsonl")
    assert result.length == pytest.approx(1 + 10 / 7)
    own = np.mean([row["meta_info"]["spec_accept_length"] for row in rows_of("sglang.jsonl")])
    assert own > result.length_per_request + 0.2
    assert any("counts the prefill's token" in note for note in result.notes)


def test_sglangs_proposed_drafts_are_not_believed():
    result = read_import("sglang", FIXTURES / "sglang.jsonl")
    assert result.drafted is None
    assert set(result.withheld) == {DEPTH, "acceptance rate"}
    (total,) = import_report(result)["totals"]
    assert total["acceptance_rate"] is None
    with pytest.raises(ValueError, match="expected 4 a round as --drafted says"):
        read_import("sglang", FIXTURES / "sglang.jsonl", ImportOptions(drafted=4))


RENAMED = [
    ("spec_num_correct_drafts", "spec_accepted_drafts"),
    ("spec_num_proposed_drafts", "spec_proposed_drafts"),
    ("spec_correct_drafts_histogram", "spec_accept_histogram"),
]
OLDER = [
    ("spec_num_correct_drafts", "spec_accept_token_num"),
    ("spec_num_proposed_drafts", "spec_draft_token_num"),
]


@pytest.mark.parametrize("names", [RENAMED, OLDER], ids=["aliases", "older names"])
def test_sglangs_other_names_are_read(tmp_path, names):
    path = edited(tmp_path / "f", "sglang.jsonl", *names)
    options = ImportOptions(drafted=3)
    here = read_import("sglang", FIXTURES / "sglang.jsonl", options)
    result = read_import("sglang", path, options)
    assert (result.rounds, result.accepted, result.length) == (7, 10, here.length)


def test_an_unknown_rename_is_an_error_and_not_zero(tmp_path):
    path = edited(tmp_path / "f", "sglang.jsonl", ("spec_num_correct_drafts", "spec_new_name"))
    with pytest.raises(ValueError, match="spec_new_name.*this SGLang has other names"):
        read_import("sglang", path)


def test_names_that_contradict_each_other_are_refused(tmp_path):
    def change(row):
        row["meta_info"]["spec_accepted_drafts"] = 0

    with pytest.raises(ValueError, match="differ"):
        read_import("sglang", changed(tmp_path / "f", "sglang.jsonl", change))


@pytest.mark.parametrize(
    "name, rounds", [("sglang.jsonl", 4), ("tensorrt-llm.jsonl", 4), ("llamacpp-timings.jsonl", 12)]
)
def test_chunks_of_one_stream_count_once(tmp_path, name, rounds):
    row = rows_of(name)[0] | {"id": "x"}
    path = tmp_path / "stream"
    written(path, [row, row, row])
    format = name.partition(".")[0]
    result = read_import(format, path)
    assert result.requests == 1
    assert (result.drafted if format.startswith("llama") else result.rounds) == rounds


def test_tensorrt_under_a_schedule_has_no_depths(tmp_path):
    def change(row):
        row["choices"][0]["speculative_decoding"]["num_spec_tokens"] = None

    result = read_import("tensorrt-llm", changed(tmp_path / "f", "tensorrt-llm.jsonl", change))
    assert depth_counts(result) == {}
    assert DEPTH in result.withheld
    assert result.length == pytest.approx(1 + 10 / 7)


def test_tensorrts_means_alone_have_no_weights(tmp_path):
    def change(row):
        del row["choices"][0]["speculative_decoding"]

    result = read_import("tensorrt-llm", changed(tmp_path / "f", "tensorrt-llm.jsonl", change))
    assert (result.length, result.rounds) == (None, None)
    assert result.length_per_request == pytest.approx((2.5 + 1 + 4 / 3) / 2)


def test_llamacpps_passes_are_not_rounds():
    result = read_import("llamacpp-timings", FIXTURES / "llamacpp-timings.jsonl")
    assert result.rounds is None
    assert (result.drafted, result.accepted) == (21, 10)
    assert result.length == pytest.approx(24 / 14)
    assert "rounds without a draft and the prefill's token" in result.length_means
    with pytest.raises(ValueError, match="not in the file"):
        length_at(result, 3)


def test_llamacpps_statistics_are_cumulative():
    result = read_import("llamacpp-log", FIXTURES / "llamacpp-log.txt")
    assert (result.rounds, result.requests) == (9, 2)  # the last line, not the sum of both


def test_llamacpps_older_line_gives_the_rate_of_generated_tokens():
    result = read_import("llamacpp-log", FIXTURES / "llamacpp-log-older.txt")
    assert (result.drafted, result.accepted, result.rounds) == (297, 171, None)
    (total,) = import_report(result)["totals"]
    assert total["acceptance_rate"] == pytest.approx(171 / 297)
    assert any("tested or not" in note for note in result.notes)


def test_llamacpps_short_drafts_are_withheld(tmp_path):
    path = edited(tmp_path / "f", "llamacpp-log.txt", ("#gen tokens =     27", "#gen tokens = 20"))
    assert "several draft lengths" in read_import("llamacpp-log", path).withheld[DEPTH]


def test_aiperfs_histogram_of_llamacpp_is_invented():
    result = read_import("aiperf", FIXTURES / "aiperf-llamacpp.jsonl")
    assert depth_counts(result) == {}
    assert (result.rounds, result.length, result.drafted) == (None, None, 12)
    assert "not measured" in next(iter(result.withheld.values()))


def test_control_the_same_histogram_of_vllm_is_read(tmp_path):
    def change(row):
        row["spec_decode_acceptance"] |= {"engine": "vllm", "num_spec_tokens": 3}

    result = read_import("aiperf", changed(tmp_path / "f", "aiperf-llamacpp.jsonl", change))
    assert marginals(result)[3] == pytest.approx([1, 0.5, 0])


def test_eagles_indices_are_one_less_than_rounds():
    result = read_import("eagle", FIXTURES / "eagle.jsonl")
    assert result.rounds == 7
    assert result.length == pytest.approx(17 / 7)
    assert marginals(result)[5][:3] == pytest.approx([5 / 7, 5 / 7 * 3 / 5, 5 / 7 * 3 / 5 * 2 / 3])
    with pytest.raises(ValueError, match="not given"):
        length_at(result, 5)


def test_speculators_total_row_is_not_counted_twice():
    result = read_import("speculators", FIXTURES / "speculators.csv")
    assert (result.rounds, result.accepted) == (13, 14)
    assert marginals(result)[3] == pytest.approx([7 / 13, 4 / 13, 3 / 13])
    assert any("sums the others" in note for note in result.notes)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("num_drafts", "drafts", "lacks columns"),
        ("0.5556", "1.5", "expected a share"),
        ("math,9", "math,x", "expected a finite number"),
        ("math,9", "math,9.5", "expected a whole number"),
        ("2.1111", "1.1111", "with the bonus token"),
        ("0.5556", "0.1", "positions sum to 10"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, old, new, words):
    with pytest.raises(ValueError, match=words):
        read_import("speculators", edited(tmp_path / "f", "speculators.csv", (old, new)))


def test_model_optimizer_is_read_by_emitted_length_and_per_step():
    (total,) = import_report(read_import("model-optimizer", FIXTURES / "model-optimizer.json"))[
        "totals"
    ]
    assert total["accepted_length"] == pytest.approx(1 + 10 / 9)
    assert total["accepted_length_per_request"] == 2.15


def test_model_optimizers_sparse_rates_are_not_used(tmp_path):
    def change(row):
        row["Acceptance_Length_Histogram"] = {"1": 50, "3": 50}
        row["Conditional_Acceptance_Rate"] = {"1": 1.0, "3": 0.5}

    path = changed(tmp_path / "f", "model-optimizer.json", change)
    assert marginals(read_import("model-optimizer", path))[2] == pytest.approx([0.5, 0.5])


def test_a_profile_without_counts_has_rates_without_intervals():
    result = read_import("model-optimizer", FIXTURES / "model-optimizer-profile.json")
    report = import_report(result)
    assert [row["marginal"] for row in report["acceptance_by_depth"]] == pytest.approx(NINE)
    assert {row["low"] for row in report["acceptance_by_depth"]} == {None}
    assert length_at(result, 3) == {"": pytest.approx(1 + 10 / 9)}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"measured": False}, "not measured"),
        ({"schema_version": "2.0"}, "expected 1.0"),
        ({"marginal_accept_rates": [5 / 9, 3 / 5, 2 / 3]}, "never rise"),
        ({"marginal_accept_rates": [0.9, 0.8, 0.7]}, "within 2%"),
        ({"num_speculative_tokens": 2}, "2 shares"),
    ],
)
def test_profiles_that_mislead_are_refused(tmp_path, change, words):
    path = changed(tmp_path / "f", "model-optimizer-profile.json", lambda row: row.update(change))
    with pytest.raises(ValueError, match=words):
        read_import("model-optimizer", path)


def test_block_verification_has_no_depths(tmp_path):
    path = changed(
        tmp_path / "f", "model-optimizer-profile.json",
        lambda row: row.update(verification_method="block"),
    )  # fmt: skip
    result = read_import("model-optimizer", path)
    assert "as a whole" in result.withheld[DEPTH]
    assert import_report(result)["acceptance_by_depth"] == []


@pytest.mark.parametrize("shift", [1, -1])
@pytest.mark.parametrize("name", ["tensorrt-llm.jsonl", "sglang.jsonl"])
def test_a_histogram_that_counts_the_bonus_token_is_refused(tmp_path, name, shift):
    def change(row):
        holder = row["choices"][0]["speculative_decoding"] if "choices" in row else row["meta_info"]
        (key,) = [key for key in holder if "histogram" in key]
        holder[key] = [0, *holder[key]] if shift > 0 else [*holder[key][1:], 0]

    with pytest.raises(ValueError, match="bonus token"):
        read_import(name.partition(".")[0], changed(tmp_path / "f", name, change))
