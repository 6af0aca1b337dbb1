"""Files that released engines write, and what a reader concluded wrongly from them."""

import json

import pytest
from import_files import FIXTURES, changed, rows_of, written

from simspec.engines.formats import read_import
from simspec.engines.import_report import depth_counts
from simspec.engines.source import ImportOptions, read_source

DEPTH = "acceptance by depth"
LLAMACPP = (
    "I statistics      draft-simple: #calls(b,g,a) =    5    386    386, #gen drafts =    386, "
    "#acc drafts =    63, #gen tokens =   {drafted}, #acc tokens =    78, #mean acc len = 1.20, "
    "#acc rate/pos = (0.163, 0.039), dur(b,g,a) = 0.004, 8.560, 0.264 ms\n"
)
"""llama.cpp b11549 with K = 4 and a poor drafter: rates end at the deepest accepted position."""


def log_of(path, drafted):
    path.write_text(LLAMACPP.format(drafted=drafted))
    return path


def test_llamacpps_rates_end_at_the_deepest_accepted_position(tmp_path):
    result = read_import("llamacpp-log", log_of(tmp_path / "log", 1501))
    assert (result.rounds, result.drafted, result.accepted) == (386, 1501, 78)
    assert "several draft lengths" in result.withheld[DEPTH]
    assert result.length == pytest.approx(1 + 78 / 386)


def test_llamacpps_positions_without_an_accepted_token_count_as_rejected(tmp_path):
    result = read_import("llamacpp-log", log_of(tmp_path / "log", 4 * 386))
    assert result.draft_length == 4
    assert result.by_depth[4].accepted.tolist() == [[63, 15, 0, 0]]
    assert any("K = 4 is the least" in note for note in result.notes)
    stated = read_import(
        "llamacpp-log", log_of(tmp_path / "log", 4 * 386), ImportOptions(drafted=4)
    )
    assert not any("is the least" in note for note in stated.notes)
    longer = read_import(
        "llamacpp-log", log_of(tmp_path / "log", 4 * 386), ImportOptions(drafted=5)
    )
    assert depth_counts(longer) == {}
    with pytest.raises(ValueError, match="--drafted is 3"):
        read_import("llamacpp-log", log_of(tmp_path / "log", 4 * 386), ImportOptions(drafted=3))


def test_llamacpps_absurd_counts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected at most 255"):
        read_import("llamacpp-log", log_of(tmp_path / "log", 999_999_999_999_999))


def test_a_vllm_request_without_a_verify_step_is_left_out(tmp_path):
    rows = rows_of("vllm-requests.jsonl")
    one_token = {
        "id": "one",
        "metrics": {
            "speculative_decoding": {
                "num_spec_tokens": 3, "num_spec_steps": 0, "num_draft_tokens": 0,
                "num_accepted_draft_tokens": 0, "acceptance_histogram": [0, 0, 0, 0],
            }
        },
    }  # fmt: skip
    alone = read_import("vllm-requests", FIXTURES / "vllm-requests.jsonl")
    result = read_import("vllm-requests", written(tmp_path / "f", [one_token, *rows]))
    assert type(result) is type(alone)
    assert result.ids == alone.ids
    assert result.drafted.tolist() == alone.drafted.tolist()
    assert "requests left out, without a verify step: 1" in result.notes
    with pytest.raises(ValueError, match="no round with a draft"):
        read_import("vllm-requests", written(tmp_path / "f", [one_token]))


def openai_response(sequences):
    return {
        "id": "cmpl-1",
        "choices": [{"index": i, "text": "..."} for i in range(sequences)],
        "sglext": {
            "spec_tokens_details": [
                {"spec_verify_ct": 40, "spec_num_correct_drafts": 60 + i,
                 "spec_num_proposed_drafts": 120, "spec_accept_rate": (60 + i) / 120}
                for i in range(sequences)
            ]
        },
    }  # fmt: skip


def test_all_sequences_of_an_sglang_response_count(tmp_path):
    result = read_import("sglang", written(tmp_path / "f", [openai_response(2)]))
    assert (result.requests, result.rounds, result.accepted) == (2, 80, 121)


def test_chunks_of_a_stream_with_several_sequences_count_once(tmp_path):
    chunks = [openai_response(2)] * 3
    assert read_import("sglang", written(tmp_path / "f", chunks)).rounds == 80


@pytest.mark.parametrize("short", [1, 3])
def test_sglangs_ragged_verification_has_no_depths(tmp_path, short):
    def change(row):
        rounds = row["meta_info"]["spec_verify_ct"]
        caps = [0, 0, short, 0, rounds - short]  # a cap of 4 is K = 3: it counts the root
        row["meta_info"]["spec_cap_lens_histogram"] = caps

    path = changed(tmp_path / "f", "sglang.jsonl", change)
    result = read_import("sglang", path, ImportOptions(drafted=3))
    assert depth_counts(result) == {}
    assert "verified" in result.withheld[DEPTH]
    assert ("several lengths" in read_import("sglang", path).withheld[DEPTH]) == (short == 1)


def test_sglangs_caps_of_one_length_are_that_length(tmp_path):
    def change(row):
        row["meta_info"]["spec_cap_lens_histogram"] = [0] * 4 + [row["meta_info"]["spec_verify_ct"]]

    path = changed(tmp_path / "f", "sglang.jsonl", change)
    here = read_import("sglang", FIXTURES / "sglang.jsonl", ImportOptions(drafted=3))
    result = read_import("sglang", path, ImportOptions(drafted=3))
    assert result.by_depth[3].accepted.tolist() == here.by_depth[3].accepted.tolist()


def test_a_sweep_of_speculators_is_refused(tmp_path):
    head, *rows = (FIXTURES / "speculators.csv").read_text().splitlines()
    path = tmp_path / "perf_results.csv"
    path.write_text("\n".join([head, rows[0], rows[0], rows[0]]) + "\n")
    with pytest.raises(ValueError, match="subset 'math' comes 3 times with the same counts"):
        read_import("speculators", path)


def test_a_subset_measured_twice_is_read(tmp_path):
    head, *rows = (FIXTURES / "speculators.csv").read_text().splitlines()
    path = tmp_path / "acceptance.csv"
    path.write_text("\n".join([head, rows[0], rows[1].replace("code", "math")]) + "\n")
    assert read_import("speculators", path).rounds == 13


NO_DRAFTS = (
    "INFO 11-22 08:00:10 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 1.00, "
    "Accepted throughput: 0.00 tokens/s, Drafted throughput: 0.00 tokens/s, Accepted: 0 tokens, "
    "Drafted: 0 tokens, Per-position acceptance rate: 0.000, 0.000, 0.000, Avg Draft acceptance "
    "rate: nan%\n"
)


def test_a_vllm_log_without_drafts_says_so(tmp_path):
    path = tmp_path / "log"
    path.write_text(NO_DRAFTS)
    with pytest.raises(ValueError, match="1 line of SpecDecoding metrics counts no drafted token"):
        read_import("vllm-log", path)
    path.write_text("nothing\n")
    with pytest.raises(ValueError, match="no line holds SpecDecoding metrics"):
        read_import("vllm-log", path)


def test_a_vllm_interval_without_drafts_adds_nothing(tmp_path):
    path = tmp_path / "log"
    path.write_text(NO_DRAFTS + (FIXTURES / "vllm-log.txt").read_text())
    assert read_import("vllm-log", path).rounds == 13


@pytest.mark.parametrize(
    "name",
    ["vllm-log.txt", "vllm-prometheus.txt", "vllm-requests.jsonl", "vllm-bench-serve.json",
     "vllm-requests-summary.jsonl"],
)  # fmt: skip
def test_vllms_adaptive_verification_is_noted(name):
    result = read_import(name.partition(".")[0].removesuffix("-summary"), FIXTURES / name)
    assert any("enable_adaptive_verification" in note for note in result.notes)


def test_a_key_that_comes_twice_is_refused(tmp_path):
    row = json.dumps(rows_of("sglang.jsonl")[0])
    path = tmp_path / "f"
    path.write_text(row.replace('"spec_verify_ct"', '"spec_verify_ct": 9, "spec_verify_ct"'))
    with pytest.raises(ValueError, match="'spec_verify_ct' comes twice"):
        read_import("sglang", path)
    path.write_text(path.read_text() + "\n" + row)
    with pytest.raises(ValueError, match="'spec_verify_ct' comes twice"):
        read_import("sglang", path)


def test_nan_is_refused_where_it_is_read_and_passed_over_elsewhere(tmp_path):
    def change(row):
        row["meta_info"] |= {"e2e_latency": float("nan")}

    path = changed(tmp_path / "f", "sglang.jsonl", change)
    assert read_import("sglang", path).rounds == 7

    def spoil(row):
        row["meta_info"] |= {"spec_accept_rate": float("nan")}

    with pytest.raises(ValueError, match="spec_accept_rate is nan"):
        read_import("sglang", changed(tmp_path / "f", "sglang.jsonl", spoil))


def test_vllms_adaptive_verification_is_no_fixed_length(tmp_path):
    config = {"method": "eagle3", "model": "D", "num_speculative_tokens": 3}
    path = written(tmp_path / "f", [config])
    assert read_import("vllm", path).tiers[0].policy == "fixed:3"
    result = read_import("vllm", written(path, [config | {"enable_adaptive_verification": True}]))
    assert (result.tiers[0].lengths, result.tiers[0].policy) == ((3,), "")
    assert any("verifies a part of each draft" in note for note in result.notes)


@pytest.mark.parametrize(
    "text, method, length",
    [
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 5 "
         "--speculative-ngram-max-bfs-breadth 1", "NGRAM", 4),
        ("--speculative-algorithm DFLASH --speculative-draft-model-path D "
         "--speculative-num-draft-tokens 8", "DFLASH", 7),
    ],
)  # fmt: skip
def test_sglangs_blocks_count_the_root(tmp_path, text, method, length):
    path = tmp_path / "f"
    path.write_text(text)
    result = read_import("sglang", path)
    assert (result.method, result.tiers[0].policy) == (method, f"fixed:{length}")


def test_an_ngram_tree_of_sglang_has_no_policy(tmp_path):
    path = tmp_path / "f"
    path.write_text(
        "--speculative-algorithm NGRAM --speculative-num-draft-tokens 12 "
        "--speculative-ngram-max-bfs-breadth 4"
    )
    result = read_import("sglang", path)
    assert result.tiers[0].policy == ""
    assert any("11 nodes, 4 wide" in note for note in result.notes)


def scrape(path, drafted, accepted):
    lines = [
        f'trtllm_spec_decode_{kind}_tokens_total{{model_name="m",token_position="{i}"}} {count}.0'
        for kind, counts in (("drafted", drafted), ("accepted", accepted))
        for i, count in enumerate(counts)
    ]
    lines += ["trtllm_spec_decode_acceptance_length 1.78", "trtllm_spec_decode_draft_overhead 0.3"]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_llamacpps_counters_are_vllms_by_another_prefix(tmp_path):
    path = tmp_path / "metrics"
    counts = {"drafts": 386, "draft_tokens": 1501, "accepted_tokens": 78}
    lines = [f"llamacpp:spec_decode_num_{name}_total {n}" for name, n in counts.items()]
    lines += [
        f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {n}'
        for i, n in enumerate((63, 15))
    ]
    path.write_text("\n".join(lines) + "\n")
    result = read_import("llamacpp-prometheus", path)
    assert (result.rounds, result.drafted, result.accepted) == (386, 1501, 78)
    assert "several draft lengths" in result.withheld[DEPTH]
    before = read_source("llamacpp-prometheus", path)
    path.write_text(path.read_text().replace("1501", f"{1501 + 8}").replace("386", "388"))
    later = read_import("llamacpp-prometheus", path, ImportOptions(before=before, drafted=4))
    assert (later.rounds, later.drafted, later.draft_length) == (2, 8, 4)


def test_tensorrts_shares_are_of_the_rounds_that_drafted_a_depth(tmp_path):
    result = read_import(
        "tensorrt-llm-prometheus", scrape(tmp_path / "f", (100, 60, 20), (50, 24, 4))
    )
    assert (result.rounds, result.drafted, result.accepted) == (100, 180, 78)
    assert result.length == pytest.approx(1.78)
    assert result.marginals == {3: pytest.approx((0.5, 0.4, 0.2))}
    assert result.draft_length is None
    uneven = read_import(
        "tensorrt-llm-prometheus", scrape(tmp_path / "f", (100, 60, 20), (50, 24, 16))
    )
    assert uneven.marginals == {}
    assert "different rounds" in uneven.withheld[DEPTH]


def test_tensorrts_positions_that_no_round_drafted_do_not_count(tmp_path):
    result = read_import("tensorrt-llm-prometheus", scrape(tmp_path / "f", (9, 9, 0), (5, 3, 0)))
    assert result.draft_length == 2


def test_tensorrts_sums_alone_give_the_rate(tmp_path):
    path = tmp_path / "f"
    path.write_text(
        "trtllm_spec_decode_num_draft_tokens_total 12.0\n"
        "trtllm_spec_decode_num_accepted_tokens_total 6.0\n"
    )
    result = read_import("tensorrt-llm-prometheus", path)
    assert (result.rounds, result.drafted, result.accepted) == (None, 12, 6)


@pytest.mark.parametrize(
    "drafted, accepted, words",
    [
        ((9, 9), (5,), "expected the same"),
        ((9, 9), (5, 10), "no more accepted than drafted"),
        ((0, 0), (0, 0), "counts no draft"),
        ((9, 10), (5, 3), "a deeper position"),
        ((), (), "num_draft_tokens_total is missing"),
    ],
)
def test_wrong_counters_of_tensorrt_are_refused(tmp_path, drafted, accepted, words):
    with pytest.raises(ValueError, match=words):
        read_import("tensorrt-llm-prometheus", scrape(tmp_path / "f", drafted, accepted))


def test_appended_runs_of_model_optimizer_are_named(tmp_path):
    (row,) = rows_of("model-optimizer.json")
    with pytest.raises(ValueError, match="2 objects, expected one: Model-Optimizer appends"):
        read_import("model-optimizer", written(tmp_path / "f", [row, row]))
